"""A LightningModule as a model of the user's, with stand-ins for Lightning's classes; `make soak` has the real ones."""

import ast
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from paceline.errors import ModelError
from paceline.plan import complete
from paceline.spec import ModelFile, RunSpec
from paceline.workloads.lightning_module import BATCH, declares_lightning_data
from paceline.workloads.user_model import UserModel, load_user_model

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from paceline.frameworks.torch.optimizer import user_optimizer  # noqa: E402 - imports PyTorch

FILE = """
import torch
from lightning.pytorch import LightningDataModule, LightningModule
from torch.utils.data import DataLoader, TensorDataset

class Data(LightningDataModule):
    def setup(self, stage=None):
        self.parts = TensorDataset(torch.ones(6, 3), torch.arange(6) % 2)
    def train_dataloader(self):
        return DataLoader(self.parts, 2)
    def val_dataloader(self):
        return DataLoader(self.parts, 2)

class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 2)
    def training_step(self, batch, number):
        self.log("number", number)
        inputs, targets = batch
        return torch.nn.functional.cross_entropy(self.layer(inputs), targets)
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.5)
"""


class LightningModule(torch.nn.Module):
    """As much of Lightning's as a module needs outside of its Trainer."""

    automatic_optimization = True

    def train_dataloader(self) -> Any:
        raise NotImplementedError

    def log(self, *_: Any) -> None:
        raise RuntimeError("there is no trainer")


class LightningDataModule:
    """Lightning's has loaders that raise."""

    def prepare_data(self) -> None:
        """Downloads nothing."""

    def val_dataloader(self) -> Any:
        raise NotImplementedError


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    module = ModuleType("lightning.pytorch")
    module.LightningModule, module.LightningDataModule = LightningModule, LightningDataModule  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "lightning", ModuleType("lightning"))
    monkeypatch.setitem(sys.modules, "lightning.pytorch", module)

    def load(text: str = FILE) -> UserModel:
        (tmp_path / "net.py").write_text(text)
        return load_user_model(ModelFile.from_text(f"{tmp_path / 'net.py'}:Net"))

    return load


def test_its_outputs_are_the_loss_of_its_training_step(load: Any) -> None:
    model = load()
    module = model.build()
    data = model.load_data(None)
    assert data.kind == "dataset" and data.train_samples == 6
    inputs, _ = data.train.read(torch.arange(4).numpy(), model.collate)
    assert list(inputs) == [BATCH] and len(inputs[BATCH][0]) == 4
    assert module(**inputs)["loss"].requires_grad


def test_its_optimizer_is_the_configured_one(load: Any) -> None:
    model = load()
    module = model.build()
    optimizer = model.optimizer(module.parameters())
    assert optimizer.defaults["lr"] == 0.5
    with pytest.raises(ModelError, match="this strategy trains others in their place"):
        model.optimizer([torch.nn.Parameter(torch.ones(1))])


def test_a_scheduler_that_is_stepped_with_each_update_comes_with_it(load: Any) -> None:
    lines = "torch.optim.lr_scheduler.ConstantLR(optimizer)"
    text = FILE.replace(
        "return torch.optim.SGD(self.parameters(), lr=0.5)",
        "optimizer = torch.optim.SGD(self.parameters(), lr=0.5)\n"
        f'        return {{"optimizer": optimizer, "lr_scheduler": {{"scheduler": {lines}, "interval": "step"}}}}',
    )
    model = load(text)
    optimizer, paced = model.optimizer(model.build().parameters())
    assert isinstance(optimizer, torch.optim.SGD) and hasattr(paced.scheduler, "step")
    assert (paced.every, paced.of_epochs) == (1, False)


def test_a_scheduler_is_stepped_once_an_epoch_where_nothing_else_is_said(load: Any) -> None:
    text = FILE.replace(
        "return torch.optim.SGD(self.parameters(), lr=0.5)",
        "optimizer = torch.optim.SGD(self.parameters(), lr=0.5)\n"
        "        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.1)]",
    )
    model = load(text)
    optimizer = user_optimizer(model.label, model.optimizer(model.build().parameters()), lambda: 3)
    rates = []
    for _ in range(7):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
    assert rates == pytest.approx([0.5] * 3 + [0.05] * 3 + [0.005])


@pytest.mark.parametrize(
    ("before", "after", "complaint"),
    [
        ("super().__init__()\n", "super().__init__()\n        self.automatic_optimization = False\n", "updates itself"),
        ("return torch.optim.SGD(self.parameters(), lr=0.5)", "return []", "returns 0 optimizers"),
        ("return torch.nn.functional.cross_entropy(self.layer(inputs), targets)", "return {}", "returns no loss"),
        (
            'self.log("number", number)',
            'raise RuntimeError("Net is not attached to a `Trainer`.")',
            "training_step of net.py:Net asks for Lightning's Trainer, and a strategy trains without it",
        ),
        ("def val_dataloader", "def other", "has no val_dataloader"),
        ("class Net(", "class Other(Data):\n    pass\n\nclass Net(", "several data modules, Data and Other"),
        (
            "return DataLoader(self.parts, 2)\n    def val",
            "return [1]\n    def val",
            "returns list; return one DataLoader",
        ),
    ],
)
def test_what_a_run_cannot_do_is_said(load: Any, before: str, after: str, complaint: str) -> None:
    assert before in FILE
    with pytest.raises(ModelError, match=complaint):
        model = load(FILE.replace(before, after))
        module = model.build()
        model.optimizer(module.parameters())
        inputs, _ = model.load_data(None).train.read(torch.arange(4).numpy(), model.collate)
        module(**inputs)


def test_a_file_says_by_its_words_that_a_module_brings_its_data(tmp_path: Path) -> None:
    tree = ast.parse(FILE)
    assert declares_lightning_data(tree, "Net") and not declares_lightning_data(tree, "Data")
    assert not declares_lightning_data(ast.parse("class Net(torch.nn.Module): pass"), "Net")
    later = ast.parse(
        FILE + "\nclass Later(Net):\n    pass\nclass Shared(Imported):\n    pass\nclass More(Data):\n    pass\n"
    )
    assert declares_lightning_data(later, "Later") and declares_lightning_data(later, "Shared")
    assert not declares_lightning_data(later, "More") and not declares_lightning_data(later, "build")
    (tmp_path / "net.py").write_text(FILE)
    spec = RunSpec(model=ModelFile.from_text(f"{tmp_path / 'net.py'}:Net"), global_batch=2, steps=1)
    assert complete(spec).dataset == "own"


def test_data_that_are_no_data_module_may_be_the_modules_own() -> None:
    text = "class Net(L.LightningModule):\n    def train_dataloader(self):\n        pass\n"
    assert declares_lightning_data(ast.parse(text), "Net")
