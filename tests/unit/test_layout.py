"""Layouts as values: how they are written, read, counted and refused."""

import pytest

from paceline.errors import SpecError
from paceline.layout import Layout, all_layouts
from paceline.spec import RunSpec
from paceline.study import Study

RUN = {"strategy": "torch-mesh", "global_batch": 16, "steps": 1}


def test_it_is_written_as_it_is_read() -> None:
    layout = Layout.from_text("pipeline=2, shard=4,replicate=1")
    assert layout == Layout(shard=4, pipeline=2)
    assert layout.text == "shard=4,pipeline=2"
    assert Layout().text == "shard=1"
    spec = RunSpec.parse({**RUN, "layout": "tensor=2"}, "run")
    assert RunSpec.model_validate_json(spec.model_dump_json()) == spec
    assert spec.model_dump()["layout"] == "tensor=2"


def test_its_product_is_the_number_of_workers() -> None:
    assert RunSpec.parse({**RUN, "layout": "shard=2,tensor=2,pipeline=2"}, "run").workers == 8
    assert RunSpec.parse({**RUN, "layout": "shard=2", "workers": 2}, "run").workers == 2
    with pytest.raises(SpecError, match=r"layout shard=2 is of 2 workers and 4 were asked for; leave workers out"):
        RunSpec.parse({**RUN, "layout": "shard=2", "workers": 4}, "run")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("data=2", "there is no dimension 'data'; choose from replicate, shard, tensor, pipeline, context, expert"),
        ("shard=0", "write such as shard=2,tensor=2,pipeline=2"),
        ("shard", "is not understood"),
        ("shard=2,shard=2", "has shard twice"),
    ],
)
def test_what_is_no_layout_is_refused_in_words(text: str, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        RunSpec.parse({**RUN, "layout": text}, "run")


def test_a_run_without_one_keeps_the_key_that_it_had() -> None:
    assert RunSpec(strategy="torch-ddp", workers=2, global_batch=8, steps=1).key() == "64039b3061bb920b"
    assert RunSpec.parse({**RUN, "layout": "shard=2"}, "a").key() != RunSpec.parse({**RUN, "workers": 2}, "b").key()


def test_ranks_of_the_tensor_dimension_are_neighbours_and_those_of_the_pipeline_furthest_apart() -> None:
    layout = Layout(replicate=2, shard=2, tensor=2, pipeline=2, context=2, expert=4)
    names = ("tensor", "context", "shard", "expert", "replicate", "pipeline")
    assert [layout.apart(name) for name in names] == [1, 2, 4, 1, 8, 16]


def test_experts_are_dealt_among_ranks_that_are_there_anyway() -> None:
    layout = Layout(shard=4, context=2, expert=8)
    assert (layout.workers, layout.data_ranks, layout.holders) == (8, 4, 8)


def test_all_layouts_of_a_worker_count_are_its_products() -> None:
    assert [layout.text for layout in all_layouts(2)] == [
        "shard=2", "replicate=2", "tensor=2", "context=2", "pipeline=2",
    ]  # fmt: skip
    assert len(all_layouts(8)) == 35
    assert all(layout.workers == 12 for layout in all_layouts(12))


def test_all_in_a_study_stands_for_every_layout_of_its_workers() -> None:
    study = Study(fixed={**RUN, "workers": 2, "layout": "all"})
    assert [spec.layout.text for spec in study.specs() if spec.layout] == [layout.text for layout in all_layouts(2)]
    several = Study(fixed={**RUN, "layout": "all"}, factors={"workers": [1, 2]})
    assert sorted(spec.workers for spec in several.specs()) == [1, 2, 2, 2, 2, 2]
    with pytest.raises(SpecError, match="layout all needs to know how many workers"):
        Study(fixed={**RUN, "layout": "all"}).specs()


def test_a_layout_takes_the_place_of_a_studys_workers() -> None:
    study = Study(fixed=RUN, factors={"workers": [1, 2]}).with_fields({"layout": ["shard=4", "shard=2,tensor=2"]})
    assert [spec.workers for spec in study.specs()] == [4, 4]


def test_accumulation_that_was_stored_as_a_knob_is_the_field_now_and_keeps_its_key() -> None:
    old = RunSpec.parse({"strategy": "torch-ddp", "global_batch": 8, "steps": 1, "knobs": {"accumulation": 4}}, "old")
    new = RunSpec(strategy="torch-ddp", global_batch=8, steps=1, accumulation=4)
    assert old == new
    assert new.key() == "4a3c6a34c40e59e3"
    with pytest.raises(SpecError, match="accumulation 0 is out of range; it must be at least 1"):
        RunSpec.parse({**RUN, "accumulation": 0}, "none")
    with pytest.raises(SpecError, match="accumulation is 2 and the knob of the same name 4"):
        RunSpec.parse({**RUN, "accumulation": 2, "knobs": {"accumulation": 4}}, "both")
