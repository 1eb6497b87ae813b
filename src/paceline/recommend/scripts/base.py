"""What a script is made from: `Script` says what one strategy's can do, `Source` what there is to train.

A template `templates/torch-ddp.py.j2` holds the text; its entry in `table.py` what is to be known about it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from paceline.contract.context import spec_layers
from paceline.errors import ModelError, SpecError
from paceline.spec import Execution, Precision, RunSpec, Scalar
from paceline.strategies import strategy
from paceline.workloads.base import Layers
from paceline.workloads.layers import Layer, Shape
from paceline.workloads.user_model import ANY_NAME, USER_DATA, declared_functions

# Data whose samples a user's model takes in the shape that they have; images of other sets may be turned.
_AS_GIVEN = (USER_DATA, "synthetic")


@dataclass(frozen=True)
class Source:
    """A complete run, and what its model and data are."""

    spec: RunSpec

    @cached_property
    def user_functions(self) -> frozenset[str]:
        """Functions that the user's file has, its own or imported ones; none for a built-in model."""
        file = self.spec.model
        if file is None:
            return frozenset()
        names = declared_functions(file)
        if ANY_NAME in names:
            raise ModelError(
                f"{file.path} imports everything from another file (*); name what it imports, so that a script can "
                f"use it"
            )
        return frozenset(names)

    @cached_property
    def built_in(self) -> tuple[Layers, Shape]:
        """Layers of a built-in model and the shape of a sample."""
        return spec_layers(self.spec)

    @property
    def knobs(self) -> dict[str, Scalar]:
        """Every knob of the strategy, with the run's values in place."""
        return strategy(self.spec.strategy).knob_values(self.spec)

    @property
    def has_images(self) -> bool:
        """Whether samples are known to be images."""
        if self.spec.model is None:
            return len(self.built_in[1]) == 3
        return self.spec.dataset in ("mnist", "mnist-5k") or len(self.spec.input_shape or ()) == 3

    @property
    def turns_images(self) -> bool:
        """Whether a framework that wants channels last must turn the images."""
        return self.has_images and not (self.spec.model is not None and self.spec.dataset in _AS_GIVEN)


def unknown_layer(library: str, layer: Layer) -> SpecError:
    """The error for a kind of layer that no template has source for."""
    return SpecError(
        f"a script cannot be written: there is no {library} source for a {type(layer).__name__} layer; "
        f"use another workload, or train it with paceline run"
    )


@dataclass(frozen=True)
class Script:
    """A strategy's script: how it is started and what of a run it can carry out."""

    name: str
    # What the script is, to follow "It is "; {workers} stands for their number.
    about: str
    # The command, given the run and the name of the file.
    start: Callable[[RunSpec, str], str] = lambda _spec, file_name: f"python {file_name}"
    # Knobs and fields of the run that it heeds; one that is set and not among them is refused.
    knobs: tuple[str, ...] = ()
    # CUDA graphs are Paceline's own doing, and so is a loss that is scaled for fp16.
    executions: tuple[Execution, ...] = ("eager", "compiled")
    precisions: tuple[Precision, ...] = ("fp32", "tf32", "bf16")
    # What else there is to know before it is started, in sentences.
    notes: Callable[[RunSpec], str] = lambda _spec: ""
    # Whether it looks at the test set in the end.
    tests: bool = True
    # What its template is given beside what all are.
    values: Callable[[Source], Mapping[str, Any]] = lambda _source: {}
