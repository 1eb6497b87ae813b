"""The surroundings of a run."""

from paceline.runs.meters.environment import environment, unlike_fields


def test_the_environment_names_versions_processors_and_memory():
    found = environment()
    assert {"python", "numpy", "frameworks", "cpu", "cores", "memory_bytes", "gpus", "kernel", "libc"} <= found.keys()
    assert found["python"]
    assert found["memory_bytes"] > 0


def test_equal_environments_have_no_unlike_fields():
    assert unlike_fields([{"cpu": "a", "python": "3.12"}, {"cpu": "a", "python": "3.12"}]) == []


def test_fields_that_differ_are_named_in_order():
    assert unlike_fields([{"python": "3.12", "cpu": "a"}, {"python": "3.13", "cpu": "b"}]) == ["cpu", "python"]


def test_a_field_that_one_of_them_lacks_is_unlike():
    assert unlike_fields([{"cpu": "a"}, {"cpu": "a", "libc": "2.36"}]) == ["libc"]


def test_the_third_of_three_counts_too():
    assert unlike_fields([{"cpu": "a"}, {"cpu": "a"}, {"cpu": "b"}]) == ["cpu"]


def test_host_and_commit_make_no_times_unlike():
    assert unlike_fields([{"host": "a", "git_commit": "1"}, {"host": "b", "git_commit": "2"}]) == []
