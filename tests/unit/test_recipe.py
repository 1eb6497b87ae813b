"""The optimizer's fields: which go together, the decay of parameters, the learning rate of each step, and old keys."""

import math

import pytest

from paceline.errors import SpecError
from paceline.recipe import Optimizer
from paceline.spec import RunSpec

BATCH_AND_LENGTH = {"global_batch": 256, "epochs": 2}


def refusal(**fields):
    """The words in which an optimizer with these fields is refused."""
    with pytest.raises(SpecError) as caught:
        RunSpec.parse({**BATCH_AND_LENGTH, "optimizer": fields}, "study trial")
    return str(caught.value)


def test_a_run_without_a_recipe_keeps_the_key_that_it_had_before_there_were_any():
    assert RunSpec(**BATCH_AND_LENGTH).key() == "69d3d56758982765"
    assert RunSpec(**BATCH_AND_LENGTH, optimizer={"name": "sgd", "lr": 0.1, "weight_decay": 0.01}).key() == (
        "96cfbb076043e67a"
    )


def test_every_field_of_the_recipe_is_part_of_the_key():
    recipes = [
        {}, {"weight_decay_on": "matrices"}, {"warmup_steps": 5}, {"schedule": "cosine"},
        {"schedule": "cosine", "final_lr": 0.1}, {"schedule": "step", "step_every": 10},
        {"schedule": "step", "step_every": 10, "step_factor": 0.5}, {"name": "adamw"},
    ]  # fmt: skip
    keys = {
        RunSpec(**BATCH_AND_LENGTH, optimizer={"weight_decay": 0.1, **fields}).key() for fields in recipes
    }  # fmt: skip
    assert len(keys) == len(recipes)


def test_adamw_decays_as_pytorchs_does_unless_it_is_told_otherwise():
    assert Optimizer(name="adamw").weight_decay == 0.01
    assert Optimizer(name="adamw", weight_decay=0.0).weight_decay == 0.0
    assert Optimizer(name="adam").weight_decay == 0.0


def test_an_optimizer_comes_back_from_text_as_it_was():
    for optimizer in (Optimizer(name="adamw"), Optimizer(name="adamw", weight_decay=0.0), Optimizer(warmup_steps=3)):
        assert Optimizer.model_validate_json(optimizer.model_dump_json()) == optimizer


@pytest.mark.parametrize(("fields", "words"), [
    ({"schedule": "step"}, "schedule step needs to know when; give step_every"),
    ({"step_every": 10}, "step_every 10 goes with schedule step, and schedule is constant; leave step_every out"),
    ({"schedule": "step", "step_every": 5, "final_lr": 0.1}, "final_lr 0.1 goes with schedule cosine"),
    ({"weight_decay_on": "matrices"}, "chooses what weight_decay is for, and that is 0; give weight_decay too"),
    ({"schedule": "linear"}, "optimizer.schedule cannot be 'linear'; choose from 'constant', 'cosine' or 'step'"),
    ({"warmup_steps": -1}, "optimizer.warmup_steps -1 is out of range; it must be at least 0"),
    ({"name": "lion"}, "optimizer.name cannot be 'lion'"),
])  # fmt: skip
def test_what_does_not_go_together_is_refused_with_what_to_do(fields, words):
    assert words in refusal(**fields)


def test_weight_decay_on_matrices_leaves_out_what_has_one_dimension():
    everything, matrices = (Optimizer(weight_decay=0.1, weight_decay_on=on) for on in ("all", "matrices"))
    assert [everything.decays(dimensions) for dimensions in (0, 1, 2, 4)] == [True] * 4
    assert [matrices.decays(dimensions) for dimensions in (0, 1, 2, 4)] == [False, False, True, True]
    assert not Optimizer().decays(2)


def test_a_constant_rate_is_the_same_in_every_step():
    assert Optimizer().lr_factors(5) == [1.0] * 5
    assert not Optimizer().scheduled


def test_a_warm_up_rises_in_equal_parts_to_the_full_rate():
    optimizer = Optimizer(warmup_steps=4)
    assert optimizer.scheduled
    assert optimizer.lr_factors(6) == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_a_cosine_begins_after_the_warm_up_and_ends_at_the_final_rate():
    factors = Optimizer(schedule="cosine", warmup_steps=2, final_lr=0.1).lr_factors(12)
    assert factors[:2] == [0.5, 1.0]
    assert factors[2] == 1.0
    assert factors[7] == pytest.approx(0.1 + 0.9 * (1 + math.cos(math.pi * 5 / 10)) / 2)
    assert factors == [*factors[:2], *sorted(factors[2:], reverse=True)]
    assert Optimizer(schedule="cosine", final_lr=0.1).lr_factor(12, 12) == pytest.approx(0.1)
    assert Optimizer(schedule="cosine", final_lr=0.1).lr_factor(99, 12) == pytest.approx(0.1)


def test_steps_fall_by_their_factor_every_so_many_steps_after_the_warm_up():
    factors = Optimizer(schedule="step", step_every=2, step_factor=0.5, warmup_steps=1).lr_factors(6)
    assert factors == [1.0, 1.0, 1.0, 0.5, 0.5, 0.25]


def test_the_recipe_names_what_is_not_as_usual():
    assert Optimizer().recipe == {}
    assert Optimizer(name="adamw", warmup_steps=3).recipe == {"weight_decay": 0.01, "warmup_steps": 3}
