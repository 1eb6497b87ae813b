"""Two steps of dense layers within a module, split by columns and then by rows, and what the module must know of it."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from paceline.frameworks.torch.tensor.dense import output_dimension, side_by_side, split_dense
from paceline.frameworks.torch.tensor.split import Arrangement, reorder


@dataclass(frozen=True)
class SplitPair:
    """Dense layers of a module split by columns, and the following one split by rows."""

    owner: str
    columns: tuple[str, ...]
    rows: str
    attention: bool
    # Layers that are several in one, side by side: queries, keys and values.
    parts: int = 1
    # Attributes of the owner that are divided by the number of workers.
    divided: tuple[str, ...] = ()
    # Whether the owner takes its number of features from its input, and so must see as few as it has.
    narrowed: bool = False

    @property
    def styles(self) -> dict[str, str]:
        """How each of its layers is split, by name."""
        prefix = f"{self.owner}." if self.owner else ""
        return {f"{prefix}{name}": "columns" for name in self.columns} | {f"{prefix}{self.rows}": "rows"}


def split_pairs(module: nn.Module, pairs: tuple[SplitPair, ...], mesh: DeviceMesh) -> Arrangement:
    """Splits them in place; says which arrays were put in another order."""
    arrangement = Arrangement()
    for pair in pairs:
        owner = module.get_submodule(pair.owner)
        for name in pair.columns if pair.parts > 1 else ():
            layer = owner.get_submodule(name)
            for kind, parameter in layer.named_parameters(recurse=False):
                dimension = output_dimension(layer, parameter)
                order = side_by_side(parameter.shape[dimension], pair.parts, mesh.size())
                reorder(arrangement, module, f"{pair.owner}.{name}.{kind}", dimension, order)
        tell_owner(owner, pair, mesh.size())
    split_dense(module, mesh, {name: style for pair in pairs for name, style in pair.styles.items()})
    return arrangement


def tell_owner(owner: nn.Module, pair: SplitPair, ways: int) -> None:
    """Sets the attributes with which a module counts its heads and features to a worker's share."""
    for name in pair.divided:
        setattr(owner, name, getattr(owner, name) // ways)
    if pair.narrowed:
        _narrow(owner, [owner.get_submodule(name) for name in pair.columns], ways)


def _narrow(owner: nn.Module, columns: list[nn.Module], ways: int) -> None:
    """Gives the module a narrower view of its input, while its column-split layers get all features."""
    shown: list[Tensor] = []

    def show_part(_owner: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        whole = args[0] if args else next(iter(kwargs.values()))
        part = whole[..., : whole.shape[-1] // ways]
        shown[:] = [whole, part]
        return ((part, *args[1:]), kwargs) if args else (args, {**kwargs, next(iter(kwargs)): part})

    def show_whole(_layer: nn.Module, args: tuple[Any, ...]) -> Any:
        # A hook before this one may have cast it.
        return (shown[0].to(args[0].dtype), *args[1:]) if shown and args[0].shape == shown[1].shape else None

    owner.register_forward_pre_hook(show_part, with_kwargs=True)
    owner.register_forward_hook(lambda *_: shown.clear())
    for layer in columns:
        layer.register_forward_pre_hook(show_whole)
