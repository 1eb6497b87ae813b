"""The pieces of a JAX run that strategies put together: parameters, resident data, loss, and the compiled step.

Every strategy is the same step; from where arrays lie (`Layout`) XLA derives what each device computes and sends.
"""

import os
from collections import Counter
from dataclasses import replace
from functools import partial
from time import perf_counter_ns
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import NamedSharding

from paceline.contract.context import Context
from paceline.contract.job import Evaluation, InputTimes
from paceline.data.tree import length, map_tree
from paceline.frameworks.jax import group as jax_group
from paceline.frameworks.jax.checkpoint import JaxCheckpoint
from paceline.frameworks.jax.layout import Layout, path_name, put, state_shardings
from paceline.frameworks.jax.loaded_data import LoadedBatches
from paceline.frameworks.jax.network import Batch, Network, arrays_of, network_of, samples_at
from paceline.frameworks.jax.optimizer import Transformation, Tree, make_optimizer
from paceline.frameworks.jax.passes import clipped, in_passes, mean_of_passes, mean_over_devices
from paceline.frameworks.xla_spans import INPUT, UPDATE
from paceline.spec import Precision
from paceline.workloads.base import Weights, weight_shapes
from paceline.workloads.outputs import logits_of, loss_in

# What XLA makes of a product of two single-precision matrices on a GPU, where its own default is TF32.
MATMUL_PRECISION: dict[Precision, str] = {"fp32": "float32", "tf32": "tensorfloat32", "bf16": "bfloat16"}
# What an evaluation sums up beside the metrics of a file, under names that none of those has.
LOSS, PREDICTIONS, RIGHT = " loss", " predictions", " right"


def optimizer_for(context: Context, params: Tree) -> Transformation:
    """The user's optimizer, or the run's settings."""
    user_model = context.model.user_model
    if user_model is not None and user_model.optimizer is not None:
        optimizer: Transformation = user_model.optimizer(params)
        return optimizer
    settings = context.spec.optimizer
    steps = context.total_steps if settings.scheduled else 0
    return make_optimizer(settings, steps, None if user_model is not None else partial(_dimensions, context))


def _dimensions(context: Context, params: Tree) -> Tree:
    """How many dimensions each parameter has in the model, whichever way it is stored."""
    shapes = weight_shapes(context.model.layers, context.data.input_shape)
    return {name: len(shapes[name]) for name in params}


class JaxJob:
    """Training as every JAX strategy does it: one compiled step over a mesh, driven alike by every process."""

    clock = staticmethod(perf_counter_ns)

    def __init__(
        self, context: Context, layout: Layout, stride: int = 1,
        *, network: Network | None = None, optimizer: Transformation | None = None,
    ) -> None:  # fmt: skip
        spec = context.spec
        jax.config.update("jax_default_matmul_precision", MATMUL_PRECISION[spec.precision])
        self._context, self._layout, self.stride = context, layout, stride
        self._passes = spec.accumulation
        network = network or network_of(context, layout)
        self._optimizer = optimizer or optimizer_for(context, network.params)
        self._whole = layout.on()
        shardings = layout.of_params(network.params)
        params = jax.tree.map(put, network.params, shardings)
        buffers = jax.tree.map(lambda array: put(array, self._whole), network.buffers)
        state = jax.eval_shape(self._optimizer.init, network.params)
        placed = state_shardings(network.params, shardings, state, self._whole)
        self._state = (params, buffers, jax.jit(self._optimizer.init, out_shardings=placed)(params))
        # The devices have its parameters now.
        self._network = replace(network, params={}, buffers={})
        self._loaded = LoadedBatches(context.loaded, layout) if context.loaded is not None else None
        self._data: Any = self._on_devices(train=True) if self._loaded is None else ()
        self._step = jax.jit(
            self._one_step if stride == 1 else self._several_steps,
            out_shardings=((shardings, self._whole, placed), self._whole),
            donate_argnums=(0,) if spec.device != "cpu" else (),
        )
        self._measure = jax.jit(self._measured, out_shardings=self._whole)
        self._test: Batch | None = None
        self._order: Array | None = None
        self._losses: list[tuple[Array, int]] = []

    def _on_devices(self, train: bool) -> Batch:
        inputs, targets = arrays_of(self._context, train)
        moved: dict[int, Array] = {}

        def on_devices(array: np.ndarray) -> Array:
            # Targets that are inputs too, such as labels, are there once.
            moved[id(array)] = moved[id(array)] if id(array) in moved else put(array, self._whole)
            return moved[id(array)]

        return map_tree(on_devices, inputs), map_tree(on_devices, targets)

    def _gathered(self, params: Tree) -> Tree:
        """Parameters as they are used."""
        if not self._layout.gathers:
            return params
        return lax.with_sharding_constraint(params, self._layout.of_gathered(params))

    def _outputs(self, params: Tree, buffers: Tree, inputs: Any, trains: bool) -> tuple[Any, Tree]:
        return self._network.forward(self._gathered(params), buffers, inputs, trains)

    def _value(self, params: Tree, buffers: Tree, inputs: Any, targets: Any) -> tuple[Array, Tree]:
        outputs, buffers = self._network.forward(params, buffers, inputs, True)
        return self._network.loss(outputs, targets), buffers

    def _gradients(self, params: Tree, buffers: Tree, data: Batch, rows: Array) -> tuple[Array, Tree, Tree]:
        """Loss, buffers and gradients of the mean over a batch, in as many passes as the run says."""

        def of_rows(data: Batch, params: Tree, buffers: Tree, rows: Array) -> tuple[Array, Tree, Tree]:
            with jax.named_scope(INPUT):
                inputs, targets = samples_at(data, rows)
            (loss, buffers), gradients = jax.value_and_grad(self._value, has_aux=True)(params, buffers, inputs, targets)
            return loss, buffers, gradients

        def of_passes(data: Batch, params: Tree, buffers: Tree, rows: Array) -> tuple[Array, Tree, Tree]:
            return mean_of_passes(partial(of_rows, data), params, buffers, rows)

        gathered, back = jax.vjp(self._gathered, params)
        if self._passes == 1:
            loss, buffers, gradients = of_rows(data, gathered, buffers, rows)
        elif self._layout.batch_ways == 1 or not self._layout.shares_apart:
            loss, buffers, gradients = of_passes(data, gathered, buffers, rows)
        else:
            mesh, side = self._layout.mesh, self._layout.batch_side
            loss, buffers, gradients = mean_over_devices(mesh, side, of_passes, data, gathered, buffers, shared=rows)
        return loss, buffers, back(gradients)[0]

    def _updated(self, params: Tree, state: Tree, gradients: Tree) -> tuple[Tree, Tree]:
        """Parameters and optimizer state after an update."""
        if self._context.spec.clip is not None:
            # Each device squares its own part.
            gradients = lax.with_sharding_constraint(gradients, self._layout.of_params(gradients))
            gradients = clipped(gradients, self._context.spec.clip)
        change, state = self._optimizer.update(gradients, state, params)
        return jax.tree.map(jnp.add, params, change), state

    def _one_step(self, state: Tree, data: Batch, order: Array, number: Any) -> tuple[Tree, Array]:
        """A batch that was read comes without an order, as it is."""
        params, buffers, optimizer_state = state
        with jax.named_scope(INPUT):
            rows = None if order is None else lax.dynamic_index_in_dim(order, number, keepdims=False)
        loss, buffers, gradients = self._gradients(params, buffers, data, rows)
        with jax.named_scope(UPDATE):
            params, optimizer_state = self._updated(params, optimizer_state, gradients)
        return (params, buffers, optimizer_state), loss

    def _several_steps(self, state: Tree, data: Batch, order: Array, first: Any, count: Any) -> tuple[Tree, Array]:
        def body(number: Any, carried: tuple[Tree, Array]) -> tuple[Tree, Array]:
            state, loss = self._one_step(carried[0], data, order, first + number)
            return state, carried[1].at[number].set(loss)

        result: tuple[Tree, Array] = lax.fori_loop(0, count, body, (state, jnp.zeros(self.stride)))
        return result

    def align(self) -> None:
        """All processes of the run."""
        jax_group.align(self._context)

    def start_epoch(self, epoch: int) -> None:
        """The epoch's indices go to the devices once, each to the device that takes the sample."""
        self._losses = []
        if self._loaded is not None:
            self._loaded.start_epoch(self._context.order.epoch(epoch))
            return
        order, side = self._context.order.epoch(epoch).astype(np.int32), self._layout.batch_side
        if self._passes > 1:
            order = in_passes(order, self._passes, self._layout.batch_ways)
        self._order = put(order, self._layout.on(*[None] * (order.ndim - 1), side))

    def step(self, first: int, count: int) -> None:
        """One call of the compiled function."""
        if self._loaded is not None:
            self._state, loss = self._step(self._state, self._read_batch(first), None, None)
            self._losses.append((loss, count))
            return
        numbers = (np.int32(first),) if self.stride == 1 else (np.int32(first), np.int32(count))
        self._state, loss = self._step(self._state, self._data, self._order, *numbers)
        self._losses.append((loss, count))

    def _read_batch(self, number: int) -> tuple[Tree, Tree]:
        assert self._loaded is not None
        return self._loaded.batch(number)

    @property
    def input_times(self) -> InputTimes | None:
        """What reading batches costs; None where the data lie on the devices."""
        return None if self._loaded is None else self._loaded.times

    def wait(self) -> None:
        """Waits for all devices of this process."""
        jax.block_until_ready(self._state)

    def losses(self) -> list[float]:
        """Losses of whole batches, the same on every process."""
        return [float(loss) for losses, count in self._losses for loss in np.atleast_1d(_local(losses))[:count]]

    def latest_loss(self) -> float | None:
        """The loss of the newest call whose losses are there already; several calls may be under way."""
        ready = next((pair for pair in reversed(self._losses) if pair[0].is_ready()), None)
        return None if ready is None else float(np.atleast_1d(_local(ready[0]))[ready[1] - 1])

    def evaluate(self) -> Evaluation | None:
        """The test set, divided as batches are; every process takes part and the first one tells."""
        if self._test is None and self._loaded is None:
            self._test = self._on_devices(train=False)
        total, ways, most = self._test_size()
        rounds = -(-total // most)
        size = total // rounds // ways * ways
        batches = [(slice(number * size, (number + 1) * size), self._layout.on(self._layout.batch_side))
                   for number in range(rounds if size else 0)]  # fmt: skip
        if rounds * size < total:
            batches.append((slice(rounds * size, total), self._whole))
        sums = Counter[str]()
        for stretch, sharding in batches:
            for name, part in self._sums(stretch, sharding).items():
                sums[name] += float(_local(part))  # type: ignore[assignment]
        if self._context.process.index:
            return None
        loss, predictions, right = (float(sums.pop(name)) for name in (LOSS, PREDICTIONS, RIGHT))
        metrics = {name: float(value) for name, value in sums.items()}
        return Evaluation(total, loss, int(predictions) or None, int(right) if predictions else None, metrics)

    def _test_size(self) -> tuple[int, int, int]:
        """Test samples, over how many devices they are divided, and how many are looked at together at most."""
        ways, loaded = self._layout.batch_ways, self._context.loaded
        if loaded is None:
            assert self._test is not None
            return length(self._test[1]), ways, self._context.data.evaluation_batch
        return loaded.test_samples or 0, ways, min(loaded.evaluation_batch, self._context.spec.samples_per_step)

    def _sums(self, stretch: slice, sharding: NamedSharding) -> dict[str, Array]:
        test, rows = self._test, np.arange(stretch.start, stretch.stop, dtype=np.int32)
        if self._loaded is not None:
            read = self._loaded.test_batch(stretch.start, stretch.stop)
            test, rows = map_tree(lambda array: put(array, self._whole), read), rows - stretch.start
        sums: dict[str, Array] = self._measure(*self._state[:2], test, put(rows, sharding))
        return sums

    def _measured(self, params: Tree, buffers: Tree, data: Batch, rows: Array) -> dict[str, Any]:
        """Sum of losses, predictions, how many of them are right, and sums of the file's metrics."""
        inputs, targets = samples_at(data, rows)
        outputs, _ = self._outputs(params, buffers, inputs, trains=False)
        user_model, count = self._context.model.user_model, rows.shape[0]
        metrics = {} if user_model is None else user_model.named_metrics(outputs, targets)
        sums = {name: jnp.asarray(value) * count for name, value in metrics.items()}
        sums[LOSS], logits = self._network.loss(outputs, targets) * count, logits_of(outputs)
        counts = user_model is None or (user_model.loss is None and loss_in(outputs) is None)
        if not counts or not isinstance(targets, Array) or not isinstance(logits, Array):
            return {**sums, PREDICTIONS: 0, RIGHT: 0}
        if jnp.issubdtype(targets.dtype, jnp.floating) or logits.ndim != targets.ndim + 1:
            return {**sums, PREDICTIONS: 0, RIGHT: 0}
        return {**sums, PREDICTIONS: targets.size, RIGHT: (logits.argmax(-1) == targets).sum()}

    def weights(self) -> Weights:
        """All weights in the neutral layout, or under the user's names; parts are gathered from all devices."""
        whole = jax.jit(lambda trees: trees, out_shardings=self._whole)(self._state[:2])
        leaves = [leaf for tree in whole for leaf in jax.tree_util.tree_leaves_with_path(tree)]
        named = {path_name(path): _local(leaf) for path, leaf in leaves if jnp.issubdtype(leaf.dtype, jnp.floating)}
        if self._context.user_model is not None:
            return named
        shapes = weight_shapes(self._context.model.layers, self._context.data.input_shape)
        return {name: array.reshape(shapes[name]) for name, array in named.items()}

    def checkpoint(self) -> JaxCheckpoint:
        """Parameters, buffers and optimizer state, as far as they lie on devices of this process."""

        def put_back(state: Tree) -> None:
            self._state = state

        return JaxCheckpoint(f"rank-{self._context.process.rank}", lambda: self._state, put_back)

    def details(self) -> dict[str, Any]:
        """Devices, and the bytes that arrays hold on those of this process."""
        params, _, optimizer_state = self._state
        held = {"parameters": held_bytes(params), "optimizer": held_bytes(optimizer_state)}
        devices, threads = len(self._layout.mesh.local_devices), len(os.sched_getaffinity(0))
        facts = {"jax": jax.__version__, "devices": devices, "intra_threads": threads, "held_bytes": held}
        # The CPU has no such account.
        stats = [stat for device in self._layout.mesh.local_devices if (stat := device.memory_stats())]
        return facts | ({"device_peak_bytes": sum(stat["peak_bytes_in_use"] for stat in stats)} if stats else {})

    def parts(self) -> dict[str, list[tuple[int, ...]]]:
        """The shapes of each parameter's parts on the devices of this process, in their order."""
        leaves = jax.tree_util.tree_leaves_with_path(self._state[0])
        return {path_name(path): [shard.data.shape for shard in leaf.addressable_shards] for path, leaf in leaves}

    def program(self) -> str:
        """The step as XLA compiled it for one device, with its collectives."""
        return str(self._compiled().as_text())

    def temporary_bytes(self) -> int:
        """What the compiled step needs on a device beside what it is given and gives: activations, gradients."""
        return int(self._compiled().memory_analysis().temp_size_in_bytes)

    def _compiled(self) -> Any:
        if self._loaded is not None:
            return self._step.lower(self._state, self._loaded.batch(0), None, None).compile()
        numbers = (np.int32(0),) * (1 if self.stride == 1 else 2)
        return self._step.lower(self._state, self._data, self._order, *numbers).compile()

    def close(self) -> None:
        """Arrays go before the processes part."""
        del self._state, self._data, self._test, self._order, self._losses
        jax_group.leave(self._context)


def held_bytes(tree: Tree) -> int:
    """Bytes of all parts of some arrays on the devices of this process."""
    return sum(int(shard.data.nbytes) for leaf in jax.tree.leaves(tree) for shard in leaf.addressable_shards)


def _local(array: Array) -> np.ndarray:
    """An array that is whole on every device."""
    return np.asarray(array.addressable_data(0))
