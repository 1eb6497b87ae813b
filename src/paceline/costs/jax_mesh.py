"""What a device of a JAX mesh computes, sends and holds: layers split over one side, arrays and batches over others.

XLA derives the collectives from where arrays lie; those that are counted here are those of the programs that it made
(`tests/contract/test_jax_mesh.py`).
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from paceline.costs.cuts import FactsOf
from paceline.costs.footprint import FLOAT_BYTES, Footprint, ModelFacts
from paceline.costs.jax import divided_dimension, norm_messages, split_dimension, worker_footprint
from paceline.costs.messages import Message, all_gather, all_reduce, during, scattered_reduction
from paceline.costs.splits import Split, split_layers, tensor_messages, worker_model
from paceline.layout import Layout
from paceline.spec import RunSpec


def layout_of(spec: RunSpec) -> Layout:
    """The run's layout; without one, everything is divided over all workers."""
    return spec.layout or Layout(shard=spec.workers)


def why_not_on_mesh(spec: RunSpec, layout: Layout, facts_of: FactsOf) -> str | None:
    """Why the layers of a built-in model cannot be split so, in words, or None."""
    ways = layout.tensor
    if spec.model is not None or ways == 1:
        return None
    model = facts_of(spec)
    for layer in model.layers:
        for what, heads in ((f"{layer.heads} heads", layer.heads), (f"{layer.kv_heads} shared heads", layer.kv_heads)):
            if heads is not None and heads % ways:
                return f"{what} cannot be split over tensor={ways}; use a number that divides them"
    splits = split_layers(model, ways, split_convolutions=True)
    for split in splits:
        for array, shape in split.layer.arrays:
            dimension = split_dimension(split.array_split(array), len(shape))
            if dimension is not None and shape[dimension] % ways:
                return (
                    f"{array} of {split.layer.name} has a side of {shape[dimension]}, which cannot be split over "
                    f"tensor={ways}; use a number that divides it"
                )
    if all(split.part == "whole" for split in splits):
        return f"nothing in {spec.workload} divides over tensor={ways}; use a number that divides its layers' sizes"
    return None


def mesh_footprint(spec: RunSpec, layout: Layout, model: ModelFacts, split_convolutions: bool = True) -> Footprint:
    """Equal devices: each has a part of every layer that is split, and a share of what is left of its arrays."""
    splits = split_layers(model, layout.tensor, split_convolutions)
    part, samples = worker_model(splits, layout.tensor), spec.samples_per_step // layout.data_ranks
    arrays = [array for split in splits for array in _arrays(split, layout)]
    # Of a layer of which only the count is known, nothing is divided.
    divided = sum(array.part for array in arrays if array.divided)
    messages = (
        *_between_parts(spec, layout, splits, samples),
        *_between_data_ranks(spec, layout, divided, part.parameters - divided),
        *_norm(spec, layout, arrays),
    )
    return worker_footprint(
        spec,
        part,
        messages,
        held=part.parameters - divided + divided / layout.shard,
        gathered_bytes=divided * FLOAT_BYTES,
        samples=samples,
    )


@dataclass(frozen=True)
class _Array:
    """How many numbers of an array a device has after the split, and whether those are sharded further."""

    part: int
    split: bool
    divided: bool


def _arrays(split: Split, layout: Layout) -> Iterable[_Array]:
    for array, shape in split.layer.arrays:
        dimension = split_dimension(split.array_split(array), len(shape))
        yield _Array(
            math.prod(split.array_shape(array, shape, layout.tensor)),
            dimension is not None,
            divided_dimension(shape, layout.shard, other_than=dimension) is not None,
        )


def _between_parts(spec: RunSpec, layout: Layout, splits: Sequence[Split], samples: int) -> Iterable[Message]:
    """Activations summed or gathered between split layers in each pass, and again where a block is recomputed."""
    passes = spec.accumulation
    messages = list(tensor_messages(spec, splits, layout.tensor, samples / passes))
    for split in splits if spec.recompute == "full" else ():
        # Nothing of the backward pass depends on a block's last sum.
        if split.part == "heads" and split.sums > 1:
            payload = split.layer.output_elements * samples / passes * FLOAT_BYTES
            again = all_reduce(f"forward of {split.layer.name} again", payload, layout.tensor)
            messages += during(again, "backward", count=split.sums - 1)
    return [replace(message, count=message.count * passes) for message in messages]


def _between_data_ranks(spec: RunSpec, layout: Layout, divided: float, whole: float) -> Iterable[Message]:
    """Parameters gathered over shards, and gradients averaged over all ranks that have other samples."""
    apart, everywhere = layout.apart("shard"), layout.data_ranks
    gathered = all_gather("parameters", divided * FLOAT_BYTES, layout.shard if divided else 1)
    if layout.replicate > 1:
        # One sum over copies and shards together, of which each shard keeps its part.
        summed = all_reduce("gradients", (divided + whole) * FLOAT_BYTES, everywhere)
        return [replace(message, apart=apart) for message in (*gathered, *summed)]
    scattered = scattered_reduction(spec, "gradients", divided * FLOAT_BYTES, everywhere if divided else 1)
    name = "gradients of arrays that do not divide" if divided else "gradients"
    summed = all_reduce(name, whole * FLOAT_BYTES, everywhere if whole else 1)
    return [replace(message, apart=apart) for message in (*gathered, *scattered, *summed)]


def _norm(spec: RunSpec, layout: Layout, arrays: Sequence[_Array]) -> Iterable[Message]:
    """Sums of squares exchanged for the norm of gradients."""
    yield from norm_messages(spec, sum(array.split for array in arrays), layout.tensor)
    yield from norm_messages(spec, sum(array.divided for array in arrays), layout.shard, layout.apart("shard"))
