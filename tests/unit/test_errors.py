"""The exception tree and the hints for misspelt names."""

import pytest

from paceline.errors import DataError, ModelError, SpecError, StoreError, UserError, nearest


@pytest.mark.parametrize("kind", [SpecError, DataError, ModelError, StoreError])
def test_every_kind_of_wrong_input_is_a_user_error(kind):
    assert issubclass(kind, UserError)


def test_a_near_miss_gets_the_name_that_was_meant():
    assert nearest("wrokers", ["workers", "epochs", "seed"]) == "did you mean 'workers'?"


def test_names_that_are_nearly_as_close_are_offered_too():
    names = ["torch-single", "torch-ddp", "torch-dp", "fake"]
    assert nearest("torch-dpp", names) == "did you mean 'torch-dp' or 'torch-ddp'?"
    assert nearest("torch-singel", names) == "did you mean 'torch-single'?"


def test_the_beginning_of_a_name_stands_for_the_names_that_begin_so():
    assert nearest("h100", ["h100-nvlink", "h100-pcie", "h200"]) == "did you mean 'h100-pcie' or 'h100-nvlink'?"
    assert nearest("so", ["some-name", "so-on"]).startswith("did you mean 'so-on'")


def test_of_many_names_that_begin_so_some_are_offered():
    assert nearest("torch", [f"torch-{letter}" for letter in "abcdef"]).count("torch-") == 4


def test_a_name_like_nothing_known_gets_all_choices_in_order():
    assert nearest("zzz", ["workers", "epochs"]) == "choose from epochs, workers"


def test_no_choices_at_all_is_said():
    assert nearest("anything", []) == "there are none"


def test_choices_may_be_any_iterable_of_names():
    assert nearest("epoch", {"epochs": 1}) == nearest("epoch", iter(["epochs"])) == "did you mean 'epochs'?"
