"""Own models with weights of any shape and numbers are put where they train, and updated."""

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from paceline.frameworks.torch.model import placed  # noqa: E402
from paceline.frameworks.torch.optimizer import make_optimizer  # noqa: E402
from paceline.recipe import Optimizer  # noqa: E402


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_only_images_of_two_dimensions_have_channels_last(device: str) -> None:
    module = placed(nn.Sequential(nn.Conv3d(2, 4, 3), nn.Conv2d(2, 4, 3)), torch.device(device), channels_last=True)
    video, image = module[0].weight, module[1].weight
    assert video.is_contiguous() and not image.is_contiguous()
    assert image.is_contiguous(memory_format=torch.channels_last)
    assert video.device.type == image.device.type == device


@pytest.mark.parametrize("name", ["adam", "adamw", "sgd"])
def test_complex_weights_are_updated(name: str) -> None:
    weights = nn.Parameter(torch.ones(2, dtype=torch.cfloat))
    optimizer = make_optimizer(Optimizer(name=name, lr=0.1), [weights], eager=True)
    (weights * weights.conj()).real.sum().backward()
    optimizer.step()
    assert (weights.detach().abs() < 1).all()
