"""How XLA divides arrays over devices and what a JAX worker holds: pure numbers, JAX is not imported."""

import math
from dataclasses import replace

from paceline.costs.footprint import FLOAT_BYTES, Footprint, ModelFacts, trainer
from paceline.costs.layers import ArraySplit
from paceline.costs.messages import Message, all_reduce
from paceline.costs.recompute import activation_bytes, step_flops
from paceline.spec import Optimizer, RunSpec


def optimizer_bytes(settings: Optimizer, parameters: float) -> float:
    """State beside the parameters on one device: Adam and a schedule also count steps, in one number for all arrays."""
    counter = FLOAT_BYTES if settings.scheduled else 0
    match settings.name:
        case "adam" | "adamw":
            return 2 * parameters * FLOAT_BYTES + FLOAT_BYTES + counter
        case "adagrad":
            return parameters * FLOAT_BYTES + counter
        case _:
            return (parameters * FLOAT_BYTES if settings.momentum else 0) + counter


def divided_dimension(shape: tuple[int, ...], ways: int, other_than: int | None = None) -> int | None:
    """The largest dimension that divides over the devices; None if none does or there is nothing to divide.

    A dimension over which a layer is split already is left alone.
    """
    sizes = [
        size if size % ways == 0 and size >= ways and dimension != other_than else 0
        for dimension, size in enumerate(shape)
    ]
    return sizes.index(max(sizes)) if ways > 1 and any(sizes) else None


def split_dimension(how: ArraySplit, dimensions: int) -> int | None:
    """The dimension of an array in the neutral layout along which its layer is split."""
    return {"whole": None, "rows": 0}.get(how, dimensions - 1)


def worker_footprint(
    spec: RunSpec,
    model: ModelFacts,
    messages: tuple[Message, ...],
    held: float,
    gathered_bytes: float = 0,
    samples: int | None = None,
) -> Footprint:
    """Equal workers that train `model` on `samples`, usually their share of the batch, and hold `held` parameters."""
    samples = spec.samples_per_step // spec.workers if samples is None else samples
    # Gathered parameters come and go within a step as activations do.
    kept = activation_bytes(model, spec.recompute, samples / spec.accumulation) + gathered_bytes
    worker = trainer(
        spec,
        model,
        messages,
        samples=samples,
        flops=step_flops(model, spec.recompute, samples) + _attention_again(spec, model) * samples,
        parameter_bytes=held * FLOAT_BYTES,
        # The sum of all passes, and what the pass under way adds to it.
        gradient_bytes=model.parameter_bytes * (2 if spec.accumulation > 1 else 1),
        optimizer_bytes=optimizer_bytes(spec.optimizer, held),
        activation_bytes=kept,
    )
    return Footprint((worker,))


def _attention_again(spec: RunSpec, model: ModelFacts) -> float:
    """Operations of one sample's attention that selective recomputation repeats: everything but weight products."""
    if spec.recompute != "selective":
        return 0
    again = 0
    for layer in model.layers:
        shapes = dict(layer.arrays)
        if layer.heads is not None and "norm1_scale" in shapes:
            positions = layer.output_elements // shapes["norm1_scale"][0]
            weights = sum(math.prod(shape) for shape in shapes.values() if len(shape) > 1)
            again += max(0, layer.forward_flops - 2 * positions * weights)
    return again


def norm_messages(spec: RunSpec, arrays: int, ranks: int, apart: int = 1) -> tuple[Message, ...]:
    """What devices with parts of arrays exchange to compute the gradient norm for clipping: one sum per array."""
    if spec.clip is None or not arrays:
        return ()
    return all_reduce("norm of gradients", arrays * FLOAT_BYTES, ranks, apart=apart)


def with_one_counter(footprint: Footprint, spec: RunSpec) -> Footprint:
    """A footprint with the optimizer state as it is in JAX."""
    held = ((group, group.parameter_bytes / FLOAT_BYTES) for group in footprint.groups)
    return Footprint(tuple(replace(group, optimizer_bytes=optimizer_bytes(spec.optimizer, n)) for group, n in held))
