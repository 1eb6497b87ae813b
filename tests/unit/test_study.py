"""Study: a grid of runs from data."""

import pytest

from paceline.errors import SpecError
from paceline.study import Study, built_in_studies

FIXED = {"strategy": "fake", "global_batch": 256, "epochs": 1}


def write(folder, text, name="trial.toml"):
    path = folder / name
    path.write_text(text)
    return str(path)


def values(study, *names):
    return [tuple(getattr(spec, name) for name in names) for spec in study.specs()]


def test_a_study_without_factors_is_one_run():
    assert len(Study(fixed=FIXED).specs()) == 1


def test_factors_are_crossed_in_the_order_written():
    study = Study(fixed=FIXED, factors={"workers": [1, 2], "seed": [7, 8, 9]})
    assert values(study, "workers", "seed") == [(1, 7), (1, 8), (1, 9), (2, 7), (2, 8), (2, 9)]


def test_fixed_fields_hold_for_every_run():
    assert {spec.global_batch for spec in Study(fixed=FIXED, factors={"workers": [1, 2, 4]}).specs()} == {256}


def test_values_named_twice_make_one_run():
    assert values(Study(fixed=FIXED, factors={"workers": [2, 1, 2]}), "workers") == [(2,), (1,)]


def test_knobs_may_be_factors_of_their_own():
    study = Study(fixed=FIXED, factors={"knobs": {"step_ms": [1.0, 2.0], "jitter": [0.0, 0.1]}, "workers": [1, 2]})
    assert [spec.knobs for spec in study.specs()][::2] == [
        {"step_ms": 1.0, "jitter": 0.0},
        {"step_ms": 1.0, "jitter": 0.1},
        {"step_ms": 2.0, "jitter": 0.0},
        {"step_ms": 2.0, "jitter": 0.1},
    ]
    assert len(study.specs()) == 8


def test_a_knob_that_is_a_factor_joins_those_that_are_fixed():
    study = Study(fixed={**FIXED, "knobs": {"send_ms": 3.0}}, factors={"knobs": {"step_ms": [1.0, 2.0]}})
    assert [spec.knobs for spec in study.specs()] == [
        {"send_ms": 3.0, "step_ms": 1.0},
        {"send_ms": 3.0, "step_ms": 2.0},
    ]
    assert study.fixed["knobs"] == {"send_ms": 3.0}


def test_options_and_the_optimizer_may_be_factors_too():
    study = Study(fixed=FIXED, factors={"options": {"depth": [1, 2]}, "optimizer": {"lr": [0.1, 0.2]}})
    assert [(spec.options["depth"], spec.optimizer.lr) for spec in study.specs()] == [
        (1, 0.1),
        (1, 0.2),
        (2, 0.1),
        (2, 0.2),
    ]


def test_whole_tables_may_be_the_values_of_a_factor():
    study = Study(fixed=FIXED, factors={"optimizer": [{"name": "adam"}, {"name": "sgd", "lr": 0.1}]})
    assert [spec.optimizer.name for spec in study.specs()] == ["adam", "sgd"]


@pytest.mark.parametrize("value", [2, [], "1,2", {"a": [1]}])
def test_a_factor_that_is_no_list_of_values_is_refused_with_an_example(value):
    with pytest.raises(SpecError) as caught:
        Study(name="trial", fixed=FIXED, factors={"workers": value}).specs()
    assert str(caught.value) == "study trial: factor workers must be a list of values, such as [1, 2, 4]"


def test_a_nested_factor_that_is_no_list_is_named_in_full():
    with pytest.raises(SpecError, match=r"factor knobs\.step_ms must be a list of values"):
        Study(fixed=FIXED, factors={"knobs": {"step_ms": 1.0}}).specs()


def test_a_fixed_word_where_a_factor_needs_a_table_is_refused():
    with pytest.raises(SpecError, match="optimizer"):
        Study(fixed={**FIXED, "optimizer": "adam"}, factors={"optimizer": {"lr": [0.1, 0.2]}}).specs()


def test_a_wrong_field_is_refused_with_the_study_and_the_nearest_name():
    with pytest.raises(SpecError) as caught:
        Study(name="trial", fixed={**FIXED, "wrokers": 2}).specs()
    assert str(caught.value) == "study trial: there is no field 'wrokers'; did you mean 'workers'?"


def test_a_wrong_value_of_a_factor_is_refused_with_the_study():
    with pytest.raises(SpecError, match="study trial: workers 0 is out of range; it must be at least 1"):
        Study(name="trial", fixed=FIXED, factors={"workers": [1, 0]}).specs()


def test_a_study_is_read_from_toml_and_named_after_its_file(tmp_path):
    path = write(
        tmp_path,
        """
        about = "two knobs"
        repeats = 3
        order_seed = 5
        [fixed]
        strategy = "fake"
        global_batch = 256
        epochs = 1
        [factors]
        workers = [1, 2]
        [factors.knobs]
        step_ms = [1.0, 2.0]
        """,
    )
    study = Study.load(path)
    assert (study.name, study.about, study.repeats, study.order_seed) == ("trial", "two knobs", 3, 5)
    assert [(spec.workers, spec.knobs["step_ms"]) for spec in study.specs()] == [(1, 1.0), (1, 2.0), (2, 1.0), (2, 2.0)]


def test_a_study_may_carry_a_name_of_its_own(tmp_path):
    assert Study.load(write(tmp_path, 'name = "scaling"\n')).name == "scaling"


def test_a_study_file_needs_no_toml_ending(tmp_path):
    assert Study.load(write(tmp_path, "repeats = 2\n", name="trial.txt")).repeats == 2


def test_an_unknown_key_of_a_study_is_refused_with_file_and_nearest_name(tmp_path):
    path = write(tmp_path, "repeat = 2\n")
    with pytest.raises(SpecError) as caught:
        Study.load(path)
    assert str(caught.value) == f"study {path}: there is no field 'repeat'; did you mean 'repeats'?"


def test_a_study_that_never_repeats_is_refused(tmp_path):
    with pytest.raises(SpecError, match="repeats 0 is out of range; it must be at least 1"):
        Study.load(write(tmp_path, "repeats = 0\n"))


def test_a_file_that_is_not_toml_is_refused_with_the_line(tmp_path):
    path = write(tmp_path, 'name = "trial"\nrepeats = = 2\n')
    with pytest.raises(SpecError) as caught:
        Study.load(path)
    message = str(caught.value)
    assert message.startswith(f"study {path} is not valid TOML: ")
    assert "line 2" in message
    assert message.endswith("mend that line")


def test_a_file_that_is_not_text_is_refused(tmp_path):
    path = tmp_path / "trial.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SpecError, match="is not valid TOML"):
        Study.load(str(path))


def test_a_toml_file_that_is_not_there_is_refused_with_what_to_check(tmp_path):
    path = tmp_path / "gone.toml"
    with pytest.raises(SpecError) as caught:
        Study.load(str(path))
    assert str(caught.value) == f"study {path} cannot be read: No such file or directory; check the path"


def test_a_name_that_is_no_study_is_refused_with_what_there_is():
    with pytest.raises(SpecError) as caught:
        Study.load("no-such-study-at-all")
    message = str(caught.value)
    assert message.startswith("there is no study 'no-such-study-at-all': neither a built-in one (")
    assert "nor a TOML file" in message


@pytest.mark.parametrize("name", sorted(built_in_studies()))
def test_every_built_in_study_is_found_by_name_and_has_runs(name):
    study = Study.load(name)
    assert study.name == name
    assert study.specs()


def test_a_list_of_several_values_replaces_a_field_as_a_factor():
    study = Study(fixed={**FIXED, "workers": 1}).with_fields({"workers": [1, 2]})
    assert "workers" not in study.fixed
    assert study.factors == {"workers": [1, 2]}


@pytest.mark.parametrize("value", [4, [4]])
def test_one_value_replaces_a_factor_as_a_fixed_field(value):
    study = Study(fixed=FIXED, factors={"workers": [1, 2]}).with_fields({"workers": value})
    assert study.fixed["workers"] == 4
    assert study.factors == {}


@pytest.mark.parametrize(
    ("given", "rival"),
    [
        ({"local_batch": 64}, "global_batch"),
        ({"global_batch": 64}, "local_batch"),
        ({"steps": 10}, "epochs"),
        ({"epochs": 10}, "steps"),
    ],
)
def test_a_replaced_field_drives_out_its_rival(given, rival):
    for place in ("fixed", "factors"):
        study = Study(**{place: {rival: [1, 2]}}).with_fields(given)
        assert study.fixed == given
        assert study.factors == {}


def test_replacing_fields_leaves_the_study_itself_as_it_was():
    study = Study(fixed=FIXED, factors={"workers": [1, 2]})
    study.with_fields({"workers": 4, "seed": [1, 2]})
    assert study.fixed == FIXED
    assert study.factors == {"workers": [1, 2]}


def test_a_knob_given_with_one_value_replaces_that_of_the_study_and_leaves_the_others():
    study = Study(fixed={**FIXED, "knobs": {"step_ms": 1.0, "send_ms": 2.0}}, factors={"knobs": {"jitter": [0.1, 0.2]}})
    changed = study.with_tables({"knobs": {"step_ms": [9.0], "jitter": [0.3]}})
    assert changed.fixed["knobs"] == {"step_ms": 9.0, "send_ms": 2.0, "jitter": 0.3}
    assert [spec.knobs for spec in changed.specs()] == [{"step_ms": 9.0, "send_ms": 2.0, "jitter": 0.3}]
    assert study.fixed["knobs"] == {"step_ms": 1.0, "send_ms": 2.0}


def test_a_knob_given_with_several_values_becomes_a_factor():
    study = Study(fixed={**FIXED, "knobs": {"step_ms": 1.0}}).with_tables({"knobs": {"step_ms": [1.0, 2.0]}})
    assert [spec.knobs for spec in study.specs()] == [{"step_ms": 1.0}, {"step_ms": 2.0}]


def test_a_setting_given_beside_a_factor_of_whole_tables_is_refused_in_words():
    study = Study(fixed=FIXED, factors={"optimizer": [{"name": "adam"}, {"name": "sgd"}]})
    with pytest.raises(SpecError, match="optimizer must be a table of settings to replace lr in it"):
        study.with_tables({"optimizer": {"lr": [0.1]}})


def test_a_gpu_is_cut_for_the_most_workers_of_the_study():
    study = Study(fixed={**FIXED, "device": "cuda-slice"}, factors={"workers": [1, 2, 4]})
    assert values(study, "workers", "slices") == [(1, 4), (2, 4), (4, 4)]


def test_slices_that_were_asked_for_stay():
    study = Study(fixed={**FIXED, "device": "cuda-slice", "slices": 8}, factors={"workers": [1, 2]})
    assert values(study, "slices") == [(8,), (8,)]


def test_runs_on_other_devices_have_no_slices():
    study = Study(fixed=FIXED, factors={"workers": [1, 2], "device": ["cpu", "cuda-slice"]})
    assert values(study, "device", "slices") == [
        ("cpu", None), ("cuda-slice", 2), ("cpu", None), ("cuda-slice", 2),
    ]  # fmt: skip


def test_slices_without_a_device_that_has_them_are_refused():
    with pytest.raises(SpecError, match="slices 4 go with device cuda-slice, not cpu"):
        Study(fixed={**FIXED, "slices": 4}).specs()


def test_a_budget_gives_small_batches_more_steps_and_large_ones_at_least_some():
    study = Study.parse(
        {"budget": {"samples": 1000, "steps": 50}, "factors": {"global_batch": [8, 64]}, "fixed": {"strategy": "fake"}},
        "trial",
    )
    assert [(spec.global_batch, spec.steps) for spec in study.specs()] == [(8, 125), (64, 50)]
    assert {spec.steps for spec in study.with_fields({"steps": 7}).specs()} == {7}


def test_runs_beside_have_the_fixed_fields_but_the_target_and_fields_of_their_own():
    study = Study.parse(
        {
            "fixed": {"strategy": "fake", "workload": "mlp", "target_accuracy": 0.9, "steps": 9},
            "factors": {"global_batch": [8, 16]},
            "beside": [{"workers": [1, 2], "local_batch": 4}],
        },
        "trial",
    )
    *searched, alone, pair = study.specs()
    assert [spec.target_accuracy for spec in searched] == [0.9, 0.9]
    assert [(spec.workers, spec.local_batch, spec.target_accuracy) for spec in (alone, pair)] == [
        (1, 4, None),
        (2, 4, None),
    ]
    assert alone.workload == "mlp"


def test_runs_beside_may_be_a_search_of_their_own_with_lists_in_tables_and_a_budget():
    study = Study.parse(
        {
            "fixed": {"workload": "mlp", "strategy": "fake", "target_accuracy": 0.9,
                      "optimizer": {"name": "sgd", "momentum": 0.9}},
            "budget": {"samples": 100, "steps": 1},
            "factors": {"global_batch": [8], "optimizer": {"lr": [0.1]}},
            "beside": [{
                "target_loss": 2.2, "global_batch": [8, 64], "budget": {"samples": 400, "steps": 10},
                "optimizer": {"name": "adamw", "lr": [0.01, 0.1]},
            }],
        },
        "test",
    )  # fmt: skip
    first, *others = study.specs()
    assert (first.optimizer.momentum, first.steps, first.target_accuracy) == (0.9, 13, 0.9)
    assert [(run.global_batch, run.steps, run.optimizer.lr) for run in others] == [
        (8, 50, 0.01), (8, 50, 0.1), (64, 10, 0.01), (64, 10, 0.1),
    ]  # fmt: skip
    # A table takes the place of the fixed one.
    assert {(run.optimizer.name, run.optimizer.momentum, run.target_loss) for run in others} == {("adamw", 0.0, 2.2)}


def test_a_budget_beside_a_study_that_is_none_is_refused():
    study = Study.parse(
        {"fixed": {"global_batch": 8, "steps": 1}, "beside": [{"budget": {"samples": 0, "steps": 1}}]}, "test"
    )
    with pytest.raises(SpecError, match="budget beside it: samples 0 is out of range"):
        study.specs()


@pytest.mark.parametrize("scales", ["tiny", ["huge"], [3]])
def test_scales_that_a_study_has_not_cannot_leave_runs_out(scales):
    entry = {"local_batch": 4, "not_in": scales}
    study = Study.parse({"fixed": {"steps": 1, "global_batch": 8}, "beside": [entry], "scales": {"tiny": {}}}, "test")
    with pytest.raises(SpecError, match="lists scales of the study \\(tiny\\); write such as not_in = \\['tiny'\\]"):
        study.specs()
