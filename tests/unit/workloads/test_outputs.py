"""Where the loss and the logits of a model's output are, and what its file's metric returns."""

from collections import OrderedDict, namedtuple
from types import SimpleNamespace

import pytest

from paceline.errors import ModelError
from paceline.workloads.outputs import logits_of, loss_in
from paceline.workloads.user_model import UserModel

Pair = namedtuple("Pair", ["loss", "logits"])


@pytest.mark.parametrize(
    "outputs",
    [{"loss": 1, "logits": 2}, OrderedDict(loss=1, logits=2), SimpleNamespace(loss=1, logits=2), Pair(1, 2)],
    ids=["dict", "ordered", "object", "named tuple"],
)
def test_an_output_may_carry_its_loss_and_its_logits(outputs):
    assert (loss_in(outputs), logits_of(outputs)) == (1, 2)


@pytest.mark.parametrize(
    ("outputs", "logits"), [(5, 5), ((5, 6), 5), ({"logits": 5}, 5), ({"loss": None}, {"loss": None})]
)
def test_without_a_loss_there_are_logits_alone(outputs, logits):
    assert loss_in(outputs) is None
    assert logits_of(outputs) == logits


def metrics(returned):
    return UserModel("net.py:build", dict, None, None, None, metric=lambda _outputs, _targets: returned)


def test_metrics_have_names_and_a_single_one_is_called_metric():
    assert metrics(2).metric_values(None, None) == {"metric": 2.0}
    assert metrics({"f1": 1, "bleu": 0.5}).metric_values(None, None) == {"f1": 1.0, "bleu": 0.5}
    assert UserModel("net.py:build", dict, None, None, None).metric_values(None, None) == {}


@pytest.mark.parametrize("returned", [None, "much", {"f1": [1, 2]}])
def test_a_metric_that_is_no_number_is_refused(returned):
    with pytest.raises(
        ModelError, match=r"metric\(\) of net.py:build must return a number or a dict of numbers by name"
    ):
        metrics(returned).metric_values(None, None)
