"""A run as a configuration of other trainers, one file per kind, where they can express it."""

from functools import cache

from paceline.catalogue import discover
from paceline.errors import SpecError
from paceline.layout import Layout
from paceline.recommend.configs.base import Config, Division
from paceline.spec import RunSpec
from paceline.strategies import strategy

# Settings that a layout, its passes and its schedule say in full.
EXPRESSED = {"microbatches", "schedule", "stages_per_worker", "hsdp_replicas", "tensor", "reduce"}


@cache
def configs() -> dict[str, Config]:
    """Every kind of configuration by name."""
    return discover("paceline.recommend.configs", "CONFIG", Config)


def write_config(kind: str, spec: RunSpec, nodes: int, why: str) -> str:
    """The run on so many nodes as the text of a configuration; what cannot be expressed is refused in words."""
    chosen = strategy(spec.strategy)
    layout: Layout | None = chosen.traits.layout(spec) if chosen.framework == "torch" else None
    if layout is None or set(spec.knobs) - EXPRESSED:
        settings = "".join(f" with {name}={value}" for name, value in spec.knobs.items())
        raise SpecError(
            f"{kind} has nothing like {spec.strategy}{settings}; write --emit script, or choose another strategy"
        )
    division = Division.of(spec, layout, chosen.knob_values(spec), nodes, why)
    config = configs()[kind]
    reason = _why_not_optimizer(spec) or config.why_not(division)
    if reason is not None:
        raise SpecError(f"{kind} cannot express {spec.strategy} with layout {layout.text}: {reason}")
    return config.write(division)


def _why_not_optimizer(spec: RunSpec) -> str | None:
    """What of the optimizer no configuration here is written with, in words, or None."""
    left_out = [name for name in spec.optimizer.recipe if name != "weight_decay"]
    return f"optimizer.{left_out[0]} is not written into it; leave it out, or use --emit script" if left_out else None


__all__ = ["Config", "Division", "configs", "write_config"]
