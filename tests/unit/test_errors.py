"""The exception tree and the hints for misspelt names."""

import pytest

from paceline.errors import DataError, ModelError, SpecError, StoreError, UserError, nearest


@pytest.mark.parametrize("kind", [SpecError, DataError, ModelError, StoreError])
def test_every_kind_of_wrong_input_is_a_user_error(kind):
    assert issubclass(kind, UserError)


def test_a_near_miss_gets_the_name_that_was_meant():
    assert nearest("wrokers", ["workers", "epochs", "seed"]) == "did you mean 'workers'?"


def test_only_the_closest_of_several_names_is_offered():
    assert nearest("torch-dpp", ["torch-single", "torch-ddp", "fake"]) == "did you mean 'torch-ddp'?"


def test_a_name_like_nothing_known_gets_all_choices_in_order():
    assert nearest("zzz", ["workers", "epochs"]) == "choose from epochs, workers"


def test_no_choices_at_all_is_said():
    assert nearest("anything", []) == "there are none"


def test_choices_may_be_any_iterable_of_names():
    assert nearest("epoch", {"epochs": 1}) == nearest("epoch", iter(["epochs"])) == "did you mean 'epochs'?"
