"""A LightningModule with its DataModule as the model of a user: `--model file.py:Class`.

The model's inputs are whole batches, as the module's data loader puts them together, and its output is the loss of
`training_step`. The optimizer is that of `configure_optimizers`. Which samples are in a batch, and where they are
trained on, is for the run to say, not for Lightning's Trainer.
"""

import ast
import inspect
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from paceline.errors import ModelError

# The same classes under two names.
_PACKAGES = ("lightning.pytorch", "pytorch_lightning")
_MODULE, _DATA_MODULE = "LightningModule", "LightningDataModule"
# What Lightning says to a module that asks for its Trainer without one.
_NO_TRAINER = "not attached to a `Trainer`"
# The only input of the model.
BATCH = "batch"


def is_lightning_module(kind: Any) -> bool:
    """Whether it is a class of LightningModules; if it is, the user's file has imported Lightning."""
    return isinstance(kind, type) and issubclass(kind, _bases(_MODULE))


def declares_lightning_data(tree: ast.Module, name: str) -> bool:
    """Whether the class of that name in a file is a LightningModule that comes with data, by the words of the file."""
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    if name not in classes:
        return False
    line = _ancestors(classes, name)
    if any(_DATA_MODULE in _ancestors(classes, other) for other in classes):
        # A base that is imported may be anything.
        return any(base == _MODULE or base not in classes for base in line) and _DATA_MODULE not in line
    parts = [part for kind in (name, *line) if kind in classes for part in classes[kind].body]
    return _MODULE in line and any(getattr(part, "name", "") == "train_dataloader" for part in parts)


def _ancestors(classes: dict[str, ast.ClassDef], name: str) -> set[str]:
    """Names of the classes that a class of the file derives from, as far as the file tells."""
    ancestors, to_follow = set[str](), [name]
    while to_follow:
        node = classes.get(to_follow.pop())
        bases = [] if node is None else [ast.unparse(parent).rpartition(".")[2] for parent in node.bases]
        to_follow += [base for base in bases if base not in ancestors]
        ancestors.update(bases)
    return ancestors


def _bases(name: str) -> tuple[type, ...]:
    return tuple(getattr(sys.modules[package], name) for package in _PACKAGES if package in sys.modules)


@dataclass(frozen=True)
class PacedScheduler:
    """A scheduler, and after how many updates or epochs it is stepped."""

    scheduler: Any
    every: int = 1
    of_epochs: bool = False


class LightningModel:
    """The functions that a user's file would have, made of a LightningModule."""

    def __init__(self, kind: Any, file: ModuleType, label: str) -> None:
        self._kind, self._file, self._label = kind, file, label
        self._module: Any = None
        self._collate: Callable[[list[Any]], Any] | None = None

    def build(self) -> Any:
        """The model: what it makes of a batch is the loss of `training_step`."""
        module = self._kind()
        if not module.automatic_optimization:
            raise ModelError(
                f"{self._label} makes its updates itself (automatic_optimization is False), and a strategy has to; run "
                f"it as a script: paceline run {self._file.__file__}"
            )
        # What is logged has nowhere to go without Lightning's Trainer.
        module.log = module.log_dict = lambda *_arguments, **_named: None
        self._module = module
        return _training_step(module, self._label)

    def data(self) -> tuple[Any, Any]:
        """The data sets that the loaders of training and validation read."""
        source = self._data_module() or self._module or self._kind()
        if hasattr(source, "prepare_data"):
            source.prepare_data()
        source.setup("fit")
        train = self._loader(source, "train_dataloader")
        test = self._loader(source, "val_dataloader")
        self._collate = train.collate_fn
        return train.dataset, test.dataset

    def collate(self, samples: list[Any]) -> dict[str, Any]:
        """A batch as the module's loader puts it together."""
        if self._collate is None:
            self.data()
        assert self._collate is not None
        return {BATCH: self._collate(samples)}

    def optimizer(self, parameters: Iterable[Any]) -> Any:
        """That of `configure_optimizers`, with its scheduler where it has one."""
        optimizer, scheduler = self._configured()
        if not set(map(id, parameters)) <= set(map(id, self._module.parameters())):
            raise ModelError(
                f"configure_optimizers of {self._label} takes the module's own parameters, and this strategy trains "
                f"others in their place; use torch-ddp, torch-zero or torch-fsdp"
            )
        return optimizer if scheduler is None else (optimizer, scheduler)

    def _data_module(self) -> Any:
        kinds = [
            kind
            for kind in vars(self._file).values()
            if isinstance(kind, type)
            and issubclass(kind, _bases(_DATA_MODULE))
            and kind.__module__ == self._file.__name__
        ]
        if len(kinds) > 1:
            names = " and ".join(kind.__name__ for kind in kinds)
            raise ModelError(f"{self._label} comes with several data modules, {names}; leave one in its file")
        return kinds[0]() if kinds else None

    def _loader(self, source: Any, name: str) -> Any:
        """The loader of that name, if it reads samples that have numbers."""
        missing = f"{type(source).__name__} of {self._label} has no {name}; add one that returns a DataLoader"
        base = next(
            (getattr(kind, name) for kind in _bases(_DATA_MODULE) + _bases(_MODULE) if hasattr(kind, name)), None
        )
        if getattr(type(source), name, None) in (None, base):
            raise ModelError(missing)
        loader = getattr(source, name)()
        if not hasattr(loader, "collate_fn"):
            raise ModelError(f"{name} of {self._label} returns {type(loader).__name__}; return one DataLoader")
        if not hasattr(loader.dataset, "__getitem__") or not hasattr(loader.dataset, "__len__"):
            raise ModelError(
                f"{name} of {self._label} reads {type(loader.dataset).__name__}, whose samples have no numbers, so "
                f"that strategies cannot share them out; use a map-style data set, or run the script itself"
            )
        return loader

    def _configured(self) -> tuple[Any, Any]:
        """One optimizer and the scheduler that is stepped with it, whichever way they were returned."""
        returned = self._module.configure_optimizers()
        schedulers: Any = None
        if isinstance(returned, tuple) and len(returned) == 2 and all(isinstance(part, list) for part in returned):
            returned, schedulers = returned
        if isinstance(returned, list | tuple) and len(returned) == 1:
            returned = returned[0]
        if isinstance(schedulers, list):
            schedulers = schedulers[0] if schedulers else None
        if isinstance(returned, dict):
            returned, schedulers = returned["optimizer"], returned.get("lr_scheduler")
        if returned is None or isinstance(returned, list | tuple):
            count = len(returned) if returned is not None else "no"
            raise ModelError(
                f"configure_optimizers of {self._label} returns {count} optimizers, and a strategy has one; return one"
            )
        if schedulers is None:
            return returned, None
        settings = schedulers if isinstance(schedulers, dict) else {"scheduler": schedulers}
        frequency, of_epochs = int(settings.get("frequency", 1)), settings.get("interval", "epoch") == "epoch"
        return returned, PacedScheduler(settings["scheduler"], frequency, of_epochs)


def _training_step(module: Any, label: str) -> Any:
    """A module of PyTorch that passes batches to `training_step`."""
    from torch import nn

    takes_number = len(inspect.signature(module.training_step).parameters) > 1

    class TrainingStep(nn.Module):
        """Counts batches, as Lightning does."""

        def __init__(self) -> None:
            super().__init__()
            self.module = module
            self._batches = 0

        def forward(self, batch: Any) -> dict[str, Any]:
            number = [self._batches] if takes_number else []
            self._batches += 1
            try:
                result = self.module.training_step(batch, *number)
            except RuntimeError as error:
                if _NO_TRAINER not in str(error):
                    raise
                raise ModelError(
                    f"training_step of {label} asks for Lightning's Trainer, and a strategy trains without it; leave "
                    f"self.trainer out, or run the file as a script"
                ) from error
            loss = result.get("loss") if isinstance(result, dict) else result
            if loss is None:
                raise ModelError(f"training_step of {label} returns no loss; return one, or a dict with loss")
            return {"loss": loss}

    return TrainingStep()
