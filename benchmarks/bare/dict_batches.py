"""A small network and a DataLoader of dicts, as a file for `paceline run --model` and as a part of bare loops."""

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

SAMPLES, TEST_SAMPLES = 768, 128


class Images(Dataset[dict[str, Tensor]]):
    """Random images with a class each, one by one."""

    def __init__(self, count: int) -> None:
        generator = torch.Generator().manual_seed(count)
        self._images = torch.rand(count, 1, 28, 28, generator=generator)
        self._labels = torch.randint(0, 10, (count,), generator=generator)

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, number: int) -> dict[str, Tensor]:
        return {"images": self._images[number], "labels": self._labels[number]}


class Network(nn.Module):
    """The small network of the first study; it computes its loss from the labels."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(),
            nn.Linear(32 * 14 * 14, 64), nn.ReLU(), nn.Linear(64, 10),
        )  # fmt: skip

    def forward(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Loss and logits, as models of Hugging Face return them."""
        logits = self.layers(images)
        return {"loss": functional.cross_entropy(logits, labels), "logits": logits}


def build() -> nn.Module:
    """The model."""
    return Network()


def train(batch: int, epoch: int) -> DataLoader[dict[str, Tensor]]:
    """Training batches of an epoch, shuffled."""
    return DataLoader(_TRAIN, batch, shuffle=True, generator=torch.Generator().manual_seed(epoch))


def test(batch: int) -> DataLoader[dict[str, Tensor]]:
    """Test batches."""
    return DataLoader(_TEST, batch)


def data() -> tuple[object, object]:
    """The two functions that make a loader in each worker."""
    return train, test


_TRAIN, _TEST = Images(SAMPLES), Images(TEST_SAMPLES)
