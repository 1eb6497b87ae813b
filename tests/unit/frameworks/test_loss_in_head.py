"""The head and the loss as one function: the same scores, the same loss, and scores as ever without targets."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from paceline.frameworks.torch.evaluation import cross_entropy  # noqa: E402
from paceline.frameworks.torch.loss_in_head import TILE_COLUMNS, LossInHead, head_of, padded_scores  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("rows", [3, TILE_COLUMNS, 2 * TILE_COLUMNS + 1])
@pytest.mark.parametrize("with_bias", [False, True])
def test_a_padded_product_gives_the_scores_and_gradients_of_a_plain_one(rows: int, with_bias: bool) -> None:
    vectors, weight = torch.randn(2, 5, 8, dtype=torch.float64), torch.randn(rows, 8, dtype=torch.float64)
    bias = torch.randn(rows, dtype=torch.float64) if with_bias else None
    found = []
    for product in (functional.linear, padded_scores):
        given = [part.clone().requires_grad_() for part in (vectors, weight, bias) if part is not None]
        scores = product(given[0], given[1], given[2] if with_bias else None)
        functional.cross_entropy(scores.flatten(0, -2), torch.arange(10) % rows).backward()
        found.append([scores.detach(), *(part.grad for part in given)])
    for plain, padded in zip(*found, strict=True):
        torch.testing.assert_close(padded, plain)


def test_a_head_gives_the_loss_while_there_are_targets_and_scores_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda function: function)
    module = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 5))
    inputs, targets = torch.randn(2, 3, 4), torch.randint(5, (2, 3))
    scores = module(inputs)
    head = head_of(module)
    assert head is module[1]
    loss = LossInHead(module, head, cross_entropy)(inputs, targets)
    torch.testing.assert_close(loss, cross_entropy(scores, targets))
    torch.testing.assert_close(module(inputs), scores)


def test_a_model_that_does_not_end_in_a_linear_layer_has_no_head() -> None:
    assert head_of(nn.Sequential(nn.Linear(4, 8), nn.ReLU())) is None
    assert head_of(nn.ReLU()) is None
