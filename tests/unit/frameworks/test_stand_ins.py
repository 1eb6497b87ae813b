"""Code that reads numbers of tensors without any gets others for them, and real ones of real tensors."""

import pytest

torch = pytest.importorskip("torch")

from paceline.frameworks.torch.trace.stand_ins import StandIns  # noqa: E402


def test_counts_are_equal_and_scalars_are_zero() -> None:
    bare = torch.empty(10, dtype=torch.int64, device="meta")
    with StandIns():
        assert bare.bincount(minlength=4).tolist() == [3, 3, 2, 2]
        assert bare.sum().item() == 0 and not (bare > 0).any().item()


def test_tensors_with_numbers_keep_them() -> None:
    with StandIns():
        assert torch.tensor([1, 1, 3]).bincount().tolist() == [0, 2, 0, 1]
        assert torch.tensor(2.5).item() == 2.5
