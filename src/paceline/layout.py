"""`Layout`: how a mesh of devices divides a model and its batch; the product of its dimensions is the worker count."""

from collections.abc import Iterator
from math import prod
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_serializer, model_validator

# In the order in which a layout is written, which is not that of the mesh.
DIMENSIONS = ("replicate", "shard", "tensor", "pipeline", "context", "expert")
# Dimensions of the mesh from the outermost to the one that changes fastest; experts are dealt
# among neighbours of the last three.
MESH = ("pipeline", "replicate", "shard", "context", "tensor")


class Layout(BaseModel):
    """Devices along each dimension of a mesh, written such as `shard=2,tensor=2,pipeline=2`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    # Copies of the model; gradients are summed between them.
    replicate: int = Field(default=1, ge=1)
    # Devices over which each copy's parameters, gradients and optimizer state are divided.
    shard: int = Field(default=1, ge=1)
    # Devices over which each layer is split.
    tensor: int = Field(default=1, ge=1)
    # Devices along which the layers are placed, one stretch after another.
    pipeline: int = Field(default=1, ge=1)
    # Devices over which each sequence is divided.
    context: int = Field(default=1, ge=1)
    # Of the devices of `shard`, `context` and `tensor`: so many in a row deal the experts of each layer among them.
    expert: int = Field(default=1, ge=1)

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        return _read(value) if isinstance(value, str) else value

    @model_serializer
    def _as_text(self) -> str:
        return self.text

    @classmethod
    def from_text(cls, text: str) -> Self:
        """`shard=2,tensor=2`; what is wrong is a `ValueError` in words."""
        return cls.model_validate(_read(text))

    @property
    def text(self) -> str:
        """The layout as it is written on the command line: only dimensions above one."""
        sizes = [f"{name}={getattr(self, name)}" for name in DIMENSIONS if getattr(self, name) > 1]
        return ",".join(sizes) or "shard=1"

    @property
    def workers(self) -> int:
        """Devices of the whole mesh."""
        return prod(getattr(self, name) for name in MESH)

    @property
    def data_ranks(self) -> int:
        """Parts that the global batch is divided into: a device of any copy and shard has its own."""
        return self.replicate * self.shard

    @property
    def holders(self) -> int:
        """Devices that each copy's parameters, gradients and optimizer state are divided over."""
        return self.shard * self.context

    @property
    def expert_holders(self) -> int:
        """Devices that the same experts are divided over: each has vectors of its own, also those of `tensor`."""
        return self.holders * self.tensor // self.expert

    def apart(self, dimension: str) -> int:
        """How far the numbers of neighbouring ranks of a dimension are from each other."""
        # Experts are dealt over ranks in a row.
        inner = MESH[MESH.index(dimension) + 1 :] if dimension in MESH else ()
        return prod(getattr(self, name) for name in inner)


def all_layouts(workers: int) -> tuple[Layout, ...]:
    """Every way to write the worker count as a product of the dimensions of the mesh."""
    layouts = [Layout(**dict(zip(MESH, sizes, strict=True))) for sizes in _factors(workers, len(MESH))]
    order = ("pipeline", "context", "tensor", "replicate")
    return tuple(sorted(layouts, key=lambda layout: [getattr(layout, name) for name in order]))


def _factors(number: int, count: int) -> Iterator[tuple[int, ...]]:
    """Every way to write a number as a product of so many, in order."""
    if count == 1:
        yield (number,)
        return
    for first in range(1, number + 1):
        if number % first == 0:
            yield from ((first, *others) for others in _factors(number // first, count - 1))


def _read(text: str) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for part in text.split(","):
        name, equals, size = (word.strip() for word in part.partition("="))
        if name and name not in DIMENSIONS:
            raise ValueError(f"layout {text!r}: there is no dimension {name!r}; choose from {', '.join(DIMENSIONS)}")
        if not equals or not name or not size.isdecimal() or int(size) < 1:
            raise ValueError(f"layout {text!r} is not understood; write such as shard=2,tensor=2,pipeline=2")
        if name in sizes:
            raise ValueError(f"layout {text!r} has {name} twice; write each dimension once")
        sizes[name] = int(size)
    return sizes
