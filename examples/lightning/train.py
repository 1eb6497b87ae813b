"""A LightningModule with its DataModule, trained by Lightning's Trainer with Paceline's callback.

torchrun --nproc-per-node 2 train.py
paceline run train.py --workers 1,2
paceline run --model train.py:Classifier --strategy torch-ddp,torch-fsdp --workers 2 --global-batch 128
"""

import argparse
import os
import time

import torch
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import paceline

FEATURES, CLASSES = 256, 10


class Images(LightningDataModule):
    """Made-up images that say in one of their features which class they are of."""

    def __init__(self, samples: int = 4096, batch: int = 64) -> None:
        super().__init__()
        self.samples, self.batch = samples, batch

    def setup(self, stage: str | None = None) -> None:
        """The same images in every process."""
        generator = torch.Generator().manual_seed(0)
        targets = torch.randint(0, CLASSES, (self.samples,), generator=generator)
        inputs = torch.randn(self.samples, FEATURES, generator=generator)
        inputs[torch.arange(self.samples), targets] += 4
        cut = self.samples * 7 // 8
        self.train = TensorDataset(inputs[:cut], targets[:cut])
        self.test = TensorDataset(inputs[cut:], targets[cut:])

    def train_dataloader(self) -> DataLoader:
        """Batches of this process."""
        return DataLoader(self.train, self.batch, shuffle=True, drop_last=True)

    def val_dataloader(self) -> DataLoader:
        """What is left out of training."""
        return DataLoader(self.test, self.batch)


class Classifier(LightningModule):
    """A small network that says itself how it is trained."""

    def __init__(self, width: int = 512, lr: float = 0.01) -> None:
        super().__init__()
        self.lr = lr
        self.layers = nn.Sequential(
            nn.Linear(FEATURES, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, CLASSES)
        )
        self._began = 0.0

    def forward(self, inputs: Tensor) -> Tensor:
        """Scores of the classes."""
        return self.layers(inputs)

    def training_step(self, batch: tuple[Tensor, Tensor], _number: int) -> Tensor:
        """The loss of a batch."""
        inputs, targets = batch
        return nn.functional.cross_entropy(self(inputs), targets)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Plain stochastic gradient descent."""
        return torch.optim.SGD(self.parameters(), lr=self.lr)

    def on_train_epoch_start(self) -> None:
        """Starts the script's own clock."""
        self._began = time.perf_counter()

    def on_train_epoch_end(self) -> None:
        """Prints the samples/s of the epoch, over all processes."""
        seconds = time.perf_counter() - self._began
        loader = self.trainer.train_dataloader
        samples = len(loader) * loader.batch_size * self.trainer.world_size
        if self.trainer.is_global_zero:
            print(f"samples/s {samples / seconds:.1f}", flush=True)


def main() -> None:
    """Trains the network in as many processes as torchrun or Paceline started."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=32768)
    parser.add_argument("--batch", type=int, default=64, help="samples of each worker in a step")
    parser.add_argument("--epochs", type=int, default=2)
    options = parser.parse_args()
    world = int(os.environ.get("WORLD_SIZE", "1"))
    trainer = Trainer(
        devices=world,
        strategy="ddp" if world > 1 else "auto",
        max_epochs=options.epochs,
        limit_val_batches=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[paceline.callbacks.lightning_callback()],
    )
    trainer.fit(Classifier(), datamodule=Images(options.samples, options.batch))


if __name__ == "__main__":
    main()
