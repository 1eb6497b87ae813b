"""The JAX training step taken apart for instrumented runs: batch, passes, sum of gradients and update in turn.

Each is a compiled function whose results are waited for, so nothing overlaps here. Where batches are divided, every
device takes the gradients of its share by itself (`shard_map`); what XLA would send within the step is then a function
of its own. Layers that are divided send in the middle of their passes: see `profile.py`.
"""

from typing import Any

import jax
import numpy as np
from jax import Array, lax
from jax.sharding import PartitionSpec

from paceline.contract.context import Context
from paceline.frameworks.call_spans import InstrumentedTransfers, forward_share, instrumented_passes
from paceline.frameworks.jax.declared import steps_per_call
from paceline.frameworks.jax.layout import Layout
from paceline.frameworks.jax.network import Batch, Network, samples_at
from paceline.frameworks.jax.optimizer import Transformation, Tree
from paceline.frameworks.jax.passes import mean_of_passes
from paceline.frameworks.jax.training import JaxJob, held_bytes


def jax_job(
    context: Context, layout: Layout,
    *, network: Network | None = None, optimizer: Transformation | None = None, divided: bool = False,
) -> JaxJob:  # fmt: skip
    """The usual job; in an instrumented run one in separate calls, or watched whole where layers are `divided`."""
    if context.recorder is None:
        return JaxJob(context, layout, steps_per_call(context.spec), network=network, optimizer=optimizer)
    if divided:
        from paceline.frameworks.jax.profile import WholeStepJob

        return WholeStepJob(context, layout, network=network, optimizer=optimizer)
    return SeparateCallsJob(context, layout, network=network, optimizer=optimizer)


class SeparateCallsJob(JaxJob):
    """The same training, slower, with everything on the recorder."""

    def __init__(self, context: Context, layout: Layout, **fields: Any) -> None:
        super().__init__(context, layout, **fields)
        assert context.recorder is not None
        self._recorder, self._transfers = context.recorder, InstrumentedTransfers(context.recorder)
        self._spread = layout.batch_ways > 1
        params, _, optimizer_state = self._state
        placed, state_placed = (jax.tree.map(lambda leaf: leaf.sharding, tree) for tree in (params, optimizer_state))
        # Of a batch in several passes, these are the first dimension.
        self._sides = (*[None] * (self._passes > 1), layout.batch_side)
        self._take = jax.jit(self._batch, out_shardings=layout.on(*self._sides))
        self._forward, self._both = map(self._on_each_device, (self._losses_of, self._gradients_of))
        self._gather = jax.jit(lambda params: params, out_shardings=layout.of_gathered(params))
        self._mean = jax.jit(_means, out_shardings=(self._whole, placed))
        self._update = jax.jit(self._updated, out_shardings=(placed, state_placed))
        self._divided_bytes = held_bytes([leaf for leaf in jax.tree.leaves(params) if not leaf.is_fully_replicated])
        self.start_epoch(0)
        arguments = (self._gather(params), self._state[1], *self._read_or_take(0))
        self._share = forward_share(
            lambda: jax.block_until_ready(self._forward(*arguments)),
            lambda: jax.block_until_ready(self._both(*arguments)),
        )

    def step(self, first: int, count: int) -> None:
        """Each call starts when the one before has ended."""
        for number in range(first, first + count):
            params, buffers, optimizer_state = self._state
            with self._recorder.span("input"):
                batch = jax.block_until_ready(self._read_or_take(number))
            whole = params
            if self._spread and self._layout.gathers:
                with self._transfers("parameters put together", self._divided_bytes):
                    whole = jax.block_until_ready(self._gather(params))
            with instrumented_passes(self._recorder, self._share):
                loss, buffers, gradients = jax.block_until_ready(self._both(whole, buffers, *batch))
            if self._spread:
                with self._transfers("mean of gradients", held_bytes(gradients)):
                    loss, gradients = jax.block_until_ready(self._mean(loss, gradients))
            with self._recorder.span("optimizer"):
                params, optimizer_state = jax.block_until_ready(self._update(params, optimizer_state, gradients))
            self._state = params, buffers, optimizer_state
            self._losses.append((loss, 1))

    def _read_or_take(self, number: int) -> Any:
        """The batch of a step: read, or taken from the data on the devices."""
        if self._loaded is not None:
            return self._loaded.batch(number)
        return self._take(self._data, self._order, np.int32(number))

    def _batch(self, data: Batch, order: Array, number: Any) -> Batch:
        return samples_at(data, lax.dynamic_index_in_dim(order, number, keepdims=False))

    def _on_each_device(self, function: Any) -> Any:
        """Compiled; where batches are divided, for each device by itself, with results in a row."""
        if not self._spread:
            return jax.jit(function)
        whole, samples = PartitionSpec(), PartitionSpec(*self._sides)
        return jax.jit(
            jax.shard_map(
                lambda *arguments: jax.tree.map(lambda leaf: leaf[None], function(*arguments)),
                mesh=self._layout.mesh,
                in_specs=(whole, whole, samples, samples),
                out_specs=PartitionSpec(self._layout.batch_side),
                # Or else the gradients of parameters that all devices have would be summed at once.
                check_vma=False,
            )
        )

    def _losses_of(self, params: Tree, buffers: Tree, inputs: Array, targets: Array) -> Array:
        if self._passes == 1:
            return self._value(params, buffers, inputs, targets)[0]
        losses: Array = lax.map(lambda batch: self._value(params, buffers, *batch)[0], (inputs, targets))
        return losses.mean()

    def _gradients_of(self, params: Tree, buffers: Tree, inputs: Array, targets: Array) -> tuple[Array, Tree, Tree]:
        def of_batch(params: Tree, buffers: Tree, batch: tuple[Array, Array]) -> tuple[Array, Tree, Tree]:
            (loss, buffers), gradients = jax.value_and_grad(self._value, has_aux=True)(params, buffers, *batch)
            return loss, buffers, gradients

        if self._passes == 1:
            return of_batch(params, buffers, (inputs, targets))
        return mean_of_passes(of_batch, params, buffers, (inputs, targets))


def _means(loss: Array, gradients: Tree) -> tuple[Array, Tree]:
    """The mean of the losses and gradients of all devices."""
    return loss.mean(0), jax.tree.map(lambda row: row.mean(0), gradients)
