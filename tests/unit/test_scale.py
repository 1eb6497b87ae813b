"""Scales: a study made smaller says so in every run, and never becomes another study."""

import pytest

from paceline.analysis.labels import setting_title
from paceline.errors import SpecError
from paceline.plan import complete
from paceline.scale import FULL, shrink
from paceline.study import Study, built_in_studies

FIXED = {"strategy": "fake", "dataset": "mnist", "global_batch": 256, "epochs": 30}
TINY = {"dataset": "mnist-5k", "train_samples": 512, "epochs": 2, "repeats": 1}
# What a scale may touch; everything else is what the study is about.
SIZES = {"dataset", "train_samples", "dataset_copies", "epochs", "steps", "shrunk"}


def study(**fields):
    return Study(name="trial", repeats=3, **{"fixed": FIXED, "scales": {"tiny": TINY}, **fields})


def test_what_was_shrunk_is_written_into_every_run():
    smaller = shrink(study(factors={"workers": [1, 2]}), "tiny")
    assert smaller.repeats == 1
    for spec in smaller.specs():
        assert (spec.dataset, spec.train_samples, spec.epochs) == ("mnist-5k", 512, 2)
        assert spec.shrunk.text == "scale tiny: 512 of 60,000 images, 2 of 30 epochs"


def test_every_title_says_what_was_shrunk():
    (spec,) = shrink(study(), "tiny").specs()
    assert setting_title(complete(spec)) == (
        "mnist-small on mnist-5k (first 512) · strong scaling, global batch 256 · 2 epochs"
        " · scale tiny: 512 of 60,000 images, 2 of 30 epochs"
    )


def test_a_shrunk_run_never_answers_for_one_that_was_asked_for_as_it_is():
    (shrunk,) = shrink(study(), "tiny").specs()
    assert shrunk.key() != shrunk.model_copy(update={"shrunk": None}).key()


def test_more_repeats_keep_the_runs_that_were_made_with_fewer():
    (few,) = shrink(study(), "tiny").specs()
    (many,) = shrink(study().model_copy(update={"repeats": 9}), "tiny").specs()
    assert few.key() == many.key()


def test_levels_that_a_scale_leaves_out_are_named():
    scales = {"tiny": {"dataset_copies": [1, 4]}}
    smaller = shrink(study(factors={"dataset_copies": [1, 4, 8]}, scales=scales), "tiny")
    assert {spec.dataset_copies for spec in smaller.specs()} == {1, 4}
    assert smaller.specs()[0].shrunk.changes == ("without 8x data",)


def test_what_the_user_asked_for_is_not_shrunk():
    smaller = shrink(study(), "tiny", fixed=["epochs"])
    (spec,) = smaller.specs()
    assert spec.epochs == 30
    assert spec.shrunk.changes == ("512 of 60,000 images",)


def test_the_full_scale_is_the_study_itself():
    assert shrink(study(), FULL) == study()


def test_a_scale_that_a_study_does_not_have_is_refused_with_those_it_has():
    with pytest.raises(SpecError) as caught:
        shrink(study(), "tinny")
    assert str(caught.value) == "study trial has no scale 'tinny'; did you mean 'tiny'?"


def test_a_scale_of_a_study_without_any_is_refused_with_how_to_add_one():
    with pytest.raises(SpecError) as caught:
        shrink(study(scales={}), "tiny")
    assert str(caught.value) == (
        "scale 'tiny' was asked for and study trial has none; add a table [scales.tiny] to its file "
        "(docs/studies.md), or leave --scale out"
    )


def test_a_scale_that_changes_what_runs_mean_is_refused():
    with pytest.raises(SpecError, match="scale tiny changes global_batch, and a scale may only make a study smaller"):
        shrink(study(scales={"tiny": {"global_batch": 32}}), "tiny")


def test_a_scale_with_more_images_is_refused():
    with pytest.raises(SpecError, match="its scale has 60,000 images and the study itself 5,000; a scale has fewer"):
        shrink(study(fixed={**FIXED, "dataset": "mnist-5k"}, scales={"tiny": {"dataset": "mnist"}}), "tiny")


@pytest.mark.parametrize("name", sorted(built_in_studies()))
def test_every_built_in_study_can_be_made_tiny_and_keeps_its_meaning(name):
    whole = Study.load(name)
    smaller = shrink(whole, "tiny")

    def meanings(of):
        return {spec.model_copy(update=dict.fromkeys(SIZES)).model_dump_json() for spec in of.specs()}

    assert meanings(smaller) <= meanings(whole)
    assert meanings(smaller) == meanings(whole) or {"global_batch", "seed"} & set(whole.scales["tiny"])
    assert all(spec.shrunk is not None and spec.dataset == "mnist-5k" for spec in smaller.specs())


def test_the_first_papers_grid_is_whole():
    levels = Study.load("scaling").factors
    assert levels["strategy"] == ["torch-dp", "torch-ddp", "tf-mirrored"]
    assert levels["workload"] == ["mnist-small", "mnist-large"]
    assert (levels["global_batch"], levels["dataset_copies"], levels["workers"]) == (
        [128, 256, 512],
        [1, 4, 8],
        [1, 2, 4],
    )
    assert Study.load("scaling").fixed["epochs"] == 2


def test_the_second_papers_runs_are_whole():
    found = Study.load("convergence")
    assert (found.fixed["local_batch"], found.fixed["epochs"], found.factors["workers"]) == (1024, 30, [1, 2])


def test_a_scale_may_have_fewer_batches_and_a_smaller_budget_and_says_so():
    study = Study.parse(
        {
            "name": "trial", "budget": {"samples": 9000, "steps": 5}, "fixed": {"strategy": "fake"},
            "factors": {"global_batch": [8, 16, 32]},
            "scales": {"tiny": {"global_batch": [8, 32], "budget": {"samples": 900, "steps": 5}}},
        },
        "trial",
    )  # fmt: skip
    smaller = shrink(study, "tiny")
    assert {spec.global_batch for spec in smaller.specs()} == {8, 32}
    assert smaller.specs()[0].shrunk.changes == ("900 of 9,000 samples a run", "2 of 3 batches")


def test_a_scale_with_a_batch_that_the_study_has_not_is_refused():
    study = Study.parse(
        {
            "fixed": {"strategy": "fake"},
            "factors": {"global_batch": [8, 16]},
            "scales": {"tiny": {"global_batch": [4]}},
        },
        "trial",
    )
    with pytest.raises(
        SpecError, match="has global_batch 4, which the study itself has not; a scale has fewer of 8, 16"
    ):
        shrink(study, "tiny")


def test_a_scale_has_fewer_levels_beside_the_study_too_and_leaves_out_what_is_not_in_it():
    study = Study.parse(
        {
            "name": "search", "fixed": {"workload": "mlp", "strategy": "fake", "epochs": 1, "global_batch": 8},
            "factors": {"seed": [0, 1, 2]},
            "beside": [{"local_batch": 4, "seed": [0, 1]}, {"local_batch": 2, "not_in": ["tiny"]}],
            "scales": {"tiny": {"seed": [0]}, "small": {"seed": [0, 1]}},
        },
        "test",
    )  # fmt: skip
    tiny, small = shrink(study, "tiny"), shrink(study, "small")
    assert [(run.samples_per_step, run.seed) for run in tiny.specs()] == [(8, 0), (4, 0)]
    assert [(run.samples_per_step, run.seed) for run in small.specs()] == [(8, 0), (8, 1), (4, 0), (4, 1), (2, 0)]
    assert tiny.specs()[0].shrunk.changes == ("1 of 3 seeds", "2 of 3 parts")
    assert small.specs()[0].shrunk.changes == ("2 of 3 seeds",)
