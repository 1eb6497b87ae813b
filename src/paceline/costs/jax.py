"""How XLA divides arrays over devices and what a JAX worker holds: pure numbers, JAX is not imported."""

from dataclasses import replace

from paceline.costs.footprint import FLOAT_BYTES, Footprint, ModelFacts, trainer
from paceline.costs.messages import Message
from paceline.spec import Optimizer, RunSpec


def optimizer_bytes(settings: Optimizer, parameters: float) -> float:
    """State beside the parameters on one device: Adam also counts steps, in one number for all arrays."""
    match settings.name:
        case "adam":
            return 2 * parameters * FLOAT_BYTES + FLOAT_BYTES
        case "adagrad":
            return parameters * FLOAT_BYTES
        case _:
            return parameters * FLOAT_BYTES if settings.momentum else 0


def divided_dimension(shape: tuple[int, ...], ways: int) -> int | None:
    """The largest dimension that divides over the devices; None if none does or there is nothing to divide."""
    sizes = [size if size % ways == 0 and size >= ways else 0 for size in shape]
    return sizes.index(max(sizes)) if ways > 1 and any(sizes) else None


def worker_footprint(
    spec: RunSpec, model: ModelFacts, messages: tuple[Message, ...], held: float, gathered_bytes: float = 0
) -> Footprint:
    """Equal workers that each train on their share of the batch and hold `held` of the parameters."""
    usual = trainer(
        spec,
        model,
        messages,
        parameter_bytes=held * FLOAT_BYTES,
        optimizer_bytes=optimizer_bytes(spec.optimizer, held),
    )
    # Gathered parameters come and go within a step as activations do.
    return Footprint((replace(usual, activation_bytes=usual.activation_bytes + gathered_bytes),))


def with_one_counter(footprint: Footprint, spec: RunSpec) -> Footprint:
    """A footprint with the optimizer state as it is in JAX."""
    held = ((group, group.parameter_bytes / FLOAT_BYTES) for group in footprint.groups)
    return Footprint(tuple(replace(group, optimizer_bytes=optimizer_bytes(spec.optimizer, n)) for group, n in held))
