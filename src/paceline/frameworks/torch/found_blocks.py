"""The blocks of a PyTorch model: like modules in a list that hold most of its parameters, as transformers have them.

They are what is gathered at a time, computed again at a time, and never cut through. Nothing of a model is asked but
that its blocks are in an `nn.ModuleList`, an `nn.ModuleDict` or an `nn.Sequential`.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

# Modules that only hold others; an `nn.Sequential` also runs them.
LISTS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)
FEWEST = 2


@dataclass(frozen=True)
class Blocks:
    """A model's blocks by name, in the order of their lists."""

    modules: dict[str, nn.Module]

    @property
    def text(self) -> str:
        """How many of which kind, and where: `12 Block in transformer.h`."""
        places = list(dict.fromkeys(name.rpartition(".")[0] or "the model" for name in self.modules))
        kind = type(next(iter(self.modules.values()))).__name__
        return f"{len(self.modules)} {kind} in {', '.join(places)}"

    @property
    def holders(self) -> set[str]:
        """Names of the modules that contain blocks, without the model itself."""
        holders = set[str]()
        for name in self.modules:
            while name := name.rpartition(".")[0]:
                holders.add(name)
        return holders


class HoldsBlocks(nn.Module):
    """A module that knows its blocks, such as a stage of a model that may be left with a single one of them."""

    block_names: tuple[str, ...] = ()
    # Parameters that another stage has too: both add up their gradients.
    tied: tuple[str, ...] = ()
    # Whether its own are copies, which do not count among the model's.
    has_copies = False


def find_blocks(module: nn.Module) -> Blocks | None:
    """The blocks, or None for a model that has no list of like modules."""
    known = [
        f"{name}.{block}" if name else block
        for name, child in module.named_modules()
        if isinstance(child, HoldsBlocks)
        for block in child.block_names
    ]
    if known:
        return Blocks({name: module.get_submodule(name) for name in known})
    by_kind: dict[type[nn.Module], dict[str, nn.Module]] = {}
    for name, child in _listed(module):
        by_kind.setdefault(type(child), {})[name] = child
    candidates = [blocks for blocks in map(_outermost, by_kind.values()) if len(blocks) >= FEWEST]
    # Of a list within a list, such as the experts of a block, the outer one holds no less.
    return Blocks(max(candidates, key=_parameters)) if candidates else None


def blocks(module: nn.Module) -> list[nn.Module]:
    """The blocks as modules; none where none are found."""
    block_list = find_blocks(module)
    return list(block_list.modules.values()) if block_list else []


def _listed(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Members of module lists that have parameters and consist of several modules."""
    for place, holder in module.named_modules():
        if isinstance(holder, LISTS):
            for name, child in holder.named_children():
                composed = next(child.children(), None) is not None
                only_holds = isinstance(child, nn.ModuleList | nn.ModuleDict)
                if composed and not only_holds and next(child.parameters(), None) is not None:
                    yield f"{place}.{name}" if place else name, child


def _outermost(members: dict[str, nn.Module]) -> dict[str, nn.Module]:
    """The members that are not inside another one."""
    within = {id(inner) for member in members.values() for inner in member.modules() if inner is not member}
    return {name: member for name, member in members.items() if id(member) not in within}


def _parameters(members: dict[str, nn.Module]) -> int:
    return sum(
        parameter.numel()
        for parameter in {parameter for member in members.values() for parameter in member.parameters()}
    )
