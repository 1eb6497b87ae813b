"""The model of a user: a Python file with a function that returns it.

build()                      returns the model: a `torch.nn.Module`, a Keras model, or, for JAX, two functions
                             init(key) -> parameters and apply(parameters, inputs) -> outputs
data()                       optional: train inputs, train targets, test inputs, test targets, as trees of arrays;
                             or a pair of sources that are read while training goes on (`user_sources.py`)
collate(samples)             optional: a batch of samples of such a source
loss(outputs, targets)       optional: a scalar; if absent, the loss in the model's outputs, or cross-entropy
metric(outputs, targets)     optional: a number, or numbers by name in a dict, each the mean over the samples given
optimizer(parameters)        optional: the optimizer, or in PyTorch (optimizer, scheduler); the run's settings if absent
stages(model, count)         optional: the model cut into that many modules, for strategies that place layers
plan(model)                  optional: {"layer name": "columns" or "rows"}, for strategies that split layers
A class of LightningModules in place of `build` brings all of that itself (`lightning_module.py`).
"""

import ast
import importlib.util
import re
import sys
import sysconfig
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from paceline.data.base import DataSet
from paceline.data.sources import LoadedData
from paceline.data.tree import Tree, leaves, length
from paceline.errors import ModelError, nearest
from paceline.source_files import refusing_unreadable
from paceline.spec import ModelFile
from paceline.user_input.paths import read_content
from paceline.workloads.lightning_module import LightningModel, declares_lightning_data, is_lightning_module
from paceline.workloads.user_data import data_set
from paceline.workloads.user_sources import loaded_data

# Stored runs name the data of a user's file by this word.
USER_DATA = "own"
_OPTIONAL = ("data", "loss", "optimizer", "stages", "plan", "metric", "collate")
# Among the names of a file that imports all names of another.
ANY_NAME = "*"
# Keras puts what went wrong in bold, between where and a list of all arguments.
_BOLD = re.compile(r"\x1b\[1m(.*?)\x1b\[0m", re.DOTALL)
# In the text of an exception that PyTorch raises for one in a process of a DataLoader.
_OTHER_TRACEBACK = "Original Traceback (most recent call last)"


@dataclass(frozen=True)
class UserModel:
    """The functions of a user's file."""

    label: str
    build: Callable[[], Any]
    data: Callable[[], Any] | None
    loss: Callable[[Any, Any], Any] | None
    optimizer: Callable[[Any], Any] | None
    # How to cut the model, for strategies that need it cut: `stages(model, count)` and `plan(model)`.
    stages: Callable[[Any, int], Any] | None = None
    plan: Callable[[Any], Any] | None = None
    metric: Callable[[Any, Any], Any] | None = None
    collate: Callable[[list[Any]], Any] | None = None

    def named_metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        """The metrics of one batch as the file's `metric` returned them, by name."""
        values = {} if self.metric is None else self.metric(outputs, targets)
        return {
            str(name): value for name, value in (values if isinstance(values, Mapping) else {"metric": values}).items()
        }

    def metric_values(self, outputs: Any, targets: Any) -> dict[str, float]:
        """The metrics of one batch by name, as the file's `metric` computes them; none where it has no such function.

        A single number is called `metric`.
        """
        if self.metric is None:
            return {}
        named = self.named_metrics(outputs, targets)
        try:
            return {name: float(value) for name, value in named.items()}
        except (TypeError, ValueError) as error:
            raise ModelError(
                f"metric() of {self.label} must return a number or a dict of numbers by name: {error}; "
                f"return means over the samples that it is given"
            ) from error

    def load_data(self, train_samples: int | None) -> DataSet | LoadedData:
        """What the file's `data` returns, checked; of data that are read while training goes on, a few samples are."""
        if self.data is None:
            raise ModelError(
                f"{self.label} has no function data; add one, or give --dataset, or --input-shape and --classes"
            )
        returned = call_user_code(f"data() of {self.label}", self.data)
        data = loaded_data(returned, self.collate, self.label) or data_set(returned, self.label)
        if isinstance(data, LoadedData):
            call_user_code(f"data() of {self.label}", lambda: data.trial)
        return data.first(train_samples)


def declared_functions(file: ModelFile) -> set[str]:
    """Names defined or imported by the file, without running it; a missing `build` or bad syntax is refused."""
    try:
        with refusing_unreadable(f"model file {file.path}", ModelError):
            tree = ast.parse(read_content(file.path))
            names = _names(tree)
    except (SyntaxError, ValueError) as error:
        raise ModelError(f"model file {file.path} is not valid Python: {error}; mend it and run again") from None
    if file.function not in names and ANY_NAME not in names:
        raise ModelError(f"model file {file.path} has no function {file.function!r}; {nearest(file.function, names)}")
    return names | ({"data"} if declares_lightning_data(tree, file.function) else set())


def _names(node: ast.AST) -> set[str]:
    """Functions, classes, variables and imports of the module itself, also inside its `if` and `try`."""
    names = set[str]()
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.ClassDef):
            names.add(child.name)
        elif isinstance(child, ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in child.names}
        elif isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
            names.add(child.id)
        else:
            names |= _names(child)
    return names


def load_user_model(file: ModelFile) -> UserModel:
    """Runs the file, as `python file.py` would find its neighbours, and takes its functions."""
    sys.path.insert(0, str(file.path.parent))
    name = f"paceline_user_{file.path.stem}"
    loader = importlib.util.spec_from_file_location(name, file.path)
    assert loader is not None and loader.loader is not None
    module = importlib.util.module_from_spec(loader)
    sys.modules[name] = module
    call_user_code(f"model file {file.path}", loader.loader.exec_module, module)
    build = getattr(module, file.function, None)
    if not callable(build):
        raise ModelError(
            f"model file {file.path} has no function {file.function!r}; {nearest(file.function, vars(module))}"
        )
    if is_lightning_module(build):
        parts = LightningModel(build, module, file.label)
        return UserModel(
            file.label, parts.build, parts.data, loss=None, optimizer=parts.optimizer, collate=parts.collate
        )
    optional = {part: getattr(module, part, None) for part in _OPTIONAL}
    return UserModel(
        file.label, build, **{part: value if callable(value) else None for part, value in optional.items()}
    )


def build_user_model(user_model: UserModel) -> Any:
    """The model that the file's function returns."""
    return call_user_code(user_model.label, user_model.build)


def telling_samples(targets: Tree) -> np.ndarray:
    """A sample of the lowest class and one of the highest: what a model with too few outputs cannot take."""
    rows = leaves(targets)[0].reshape(length(targets), -1)
    return np.array([rows.min(axis=1).argmin(), rows.max(axis=1).argmax()])


def loss_advice(has_own_data: bool, targets: Tree) -> str:
    """What to do where the targets fit no cross-entropy of the model's outputs."""
    function = "a function loss(outputs, targets) in the file"
    if not has_own_data:
        return f"give its class count with --classes, or {function}"
    if "float" in str(leaves(targets)[0].dtype):
        return f"give {function}: cross-entropy, which is the usual one, takes classes as whole numbers"
    return f"return an output for each class, with classes from 0 on, or give {function}"


def call_user_code(what: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function of the user's file returns; if it fails, a `ModelError` says what, how and in which line."""
    try:
        return function(*arguments)
    except ModelError:
        raise
    except (Exception, SystemExit) as error:
        place = line_in_user_code(error)
        raise ModelError(f"{what} fails with {words_of(error)}{place}; mend it and run again") from error


def words_of(error: BaseException) -> str:
    """Its kind and what it says, without what PyTorch, Keras and JAX put around that: tracebacks, arguments, advice."""
    text = str(error).strip()
    if _OTHER_TRACEBACK in text:
        return f"{text.rpartition(chr(10))[2]}, in a process of a DataLoader"
    bold = _BOLD.search(text)
    sentence = bold.group(1) if bold else text.partition("\n\n")[0]
    words = f"{type(error).__name__}: {' '.join(sentence.split()).rstrip('.')}"
    # A library that imports its parts late says only that one of them could not be imported.
    cause = error.__cause__ if isinstance(error, ImportError) else None
    return words if cause is None else f"{words} (because of {words_of(cause)})"


def line_in_user_code(error: BaseException) -> str:
    """The innermost line that is neither of a library nor of Paceline."""
    trace = error.__traceback__
    place = ""
    while trace is not None:
        file = Path(trace.tb_frame.f_code.co_filename)
        if file.suffix == ".py" and not any(file.is_relative_to(folder) for folder in _folders_of_others()):
            place = f" ({file.name}, line {trace.tb_lineno})"
        trace = trace.tb_next
    return place


@cache
def _folders_of_others() -> tuple[str, ...]:
    """Where Python's own modules, installed libraries and Paceline are."""
    kinds = ("stdlib", "platstdlib", "purelib", "platlib")
    return (*(sysconfig.get_path(kind) for kind in kinds), str(Path(__file__).parents[1]))
