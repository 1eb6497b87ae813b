"""Training a Keras model whose stages are on different devices, in one process and one traced function.

A tape's own operations ignore the forward pass's device, so each stage has a tape, used within its device's scope.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from paceline.contract.context import Context
from paceline.frameworks.keras.optimizer import optimizer_for
from paceline.frameworks.tensorflow.devices import prepare
from paceline.frameworks.tensorflow.optimizer import KINDS
from paceline.frameworks.tensorflow.passes import clip_factor
from paceline.frameworks.tensorflow.training import TfJob
from paceline.strategies.tensorflow.layers.cut import cut_model

# A tensor, or None where a variable has no part in the loss.
Gradient = Any


@dataclass(frozen=True)
class Stage:
    """A stretch of the model, where it is, and what updates it; nothing does if it has no parameters."""

    layers: keras.Model
    device: str
    optimizer: keras.optimizers.Optimizer | None

    @classmethod
    def place(cls, context: Context, layers: keras.Model, device: str) -> "Stage":
        """Moves the layers' variables to the device and makes the optimizer's beside them."""
        with tf.device(device):
            for variable in layers.variables:
                # Keras' own way to give a variable its value for the first time, done again elsewhere.
                variable._initialize(variable.value.numpy())
            optimizer = optimizer_for(context, layers, KINDS) if layers.trainable_variables else None
        return cls(layers, device, optimizer)


@dataclass(frozen=True)
class Pass:
    """A stage's part in the forward pass of a micro-batch."""

    tape: tf.GradientTape
    inputs: tf.Tensor
    # Its output, then the penalties that its layers put on their weights; of the last stage only the loss with them.
    results: list[tf.Tensor]


class Optimizers:
    """The optimizers of all stages, seen as one."""

    def __init__(self, stages: Sequence[Stage]) -> None:
        self.variables = [variable for stage in stages if stage.optimizer for variable in stage.optimizer.variables]


class LayersJob(TfJob):
    """The whole batch, or its micro-batches one after another, through all stages and back."""

    def __init__(self, context: Context, microbatches: int, stride: int) -> None:
        devices = prepare(context, context.spec.workers)
        super().__init__(context, tf.distribute.get_strategy(), devices[:1], stride=stride, replicas=1)
        # Equal parts of the batch in all: micro-batches of each pass.
        self._microbatches, self._parts = microbatches, microbatches * context.spec.accumulation
        cut = cut_model(context, self._model, context.spec.workers)
        self._stages = [Stage.place(context, layers, device) for layers, device in zip(cut, devices, strict=True)]
        self._optimizer = Optimizers(self._stages)

    def _replica_step(self, inputs: tf.Tensor, targets: tf.Tensor, order: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
        """Forward and backward of every micro-batch, then each stage is updated where it is."""
        index, times = order[number], self._context.spec.accumulation
        parts = [tf.split(tf.gather(whole, index), times) for whole in (inputs, targets)]
        losses: list[tf.Tensor] = []
        sums: list[list[Gradient]] = [[None] * len(stage.layers.trainable_variables) for stage in self._stages]
        for samples, aims in zip(*parts, strict=True):
            # The next pass waits for the one before, so that there are activations of one at a time.
            with tf.control_dependencies([gradient for stage in sums for gradient in stage if gradient is not None]):
                loss, gradients = self._passes(tf.identity(samples), tf.identity(aims))
            losses.append(loss)
            sums = [self._added(place, [sums[place], gradients[place]]) for place in range(len(self._stages))]
        self._apply(sums)
        return tf.add_n(losses)

    def _passes(self, inputs: tf.Tensor, targets: tf.Tensor) -> tuple[tf.Tensor, list[list[Gradient]]]:
        """Micro-batches through all stages and back: their share of the loss, and the gradients of each stage."""
        parts = [tf.split(whole, self._microbatches) for whole in (inputs, targets)]
        passed = [self._forward(*part) for part in zip(*parts, strict=True)]
        by_microbatch = [self._backward(passes) for passes in passed]
        gradients = [self._added(place, [each[place] for each in by_microbatch]) for place in range(len(self._stages))]
        penalties = [penalty for passes in passed for stage_pass in passes[:-1] for penalty in stage_pass.results[1:]]
        # Each is its share of the mean over micro-batches.
        return tf.add_n([passes[-1].results[0] for passes in passed]) + sum(penalties) / self._parts, gradients

    def _added(self, place: int, several: Sequence[Sequence[Gradient]]) -> list[Gradient]:
        with tf.device(self._stages[place].device):
            return [_sum(parts) for parts in zip(*several, strict=True)]

    def _apply(self, gradients: Sequence[Sequence[Gradient]]) -> None:
        """Each stage is updated where it is; the norm for clipping is that of all stages."""
        factor = None
        if self._context.spec.clip is not None:
            there = [gradient for stage in gradients for gradient in stage if gradient is not None]
            factor = clip_factor(tf.linalg.global_norm(there), self._context.spec.clip)
        for stage, here in zip(self._stages, gradients, strict=True):
            if stage.optimizer is not None:
                with tf.device(stage.device):
                    scaled = (
                        here
                        if factor is None
                        else [None if gradient is None else gradient * factor for gradient in here]
                    )
                    stage.optimizer.apply(scaled, stage.layers.trainable_variables)

    def _forward(self, activation: tf.Tensor, targets: tf.Tensor) -> list[Pass]:
        passed: list[Pass] = []
        for number, stage in enumerate(self._stages):
            with tf.device(stage.device), tf.GradientTape() as tape:
                activation = tf.identity(activation)
                tape.watch(activation)
                outputs = stage.layers(activation, training=True)
                results = [outputs, *stage.layers.losses]
                if number == len(self._stages) - 1:
                    results = [tf.add_n([self._loss(outputs, targets), *results[1:]]) / self._parts]
            passed.append(Pass(tape, activation, results))
            activation = outputs
        return passed

    def _backward(self, passed: Sequence[Pass]) -> list[list[Gradient]]:
        """Gradients of each stage's variables."""
        by_stage: list[list[Gradient]] = []
        coming: Gradient = None
        for number in reversed(range(len(self._stages))):
            stage, stage_pass = self._stages[number], passed[number]
            sources = stage.layers.trainable_variables + ([stage_pass.inputs] if number else [])
            with tf.device(stage.device):
                scale = [tf.ones_like(penalty) / self._parts for penalty in stage_pass.results[1:]]
                weights = None if coming is None else [coming, *scale]
                gradients = stage_pass.tape.gradient(stage_pass.results, sources, output_gradients=weights)
                dense = [None if gradient is None else tf.convert_to_tensor(gradient) for gradient in gradients]
            coming = dense.pop() if number else None
            by_stage.insert(0, dense)
        return by_stage

    def _outputs(self, inputs: tf.Tensor) -> tf.Tensor:
        """Outputs of the model, through all stages."""
        for stage in self._stages:
            with tf.device(stage.device):
                inputs = stage.layers(inputs, training=False)
        return inputs

    def details(self) -> dict[str, Any]:
        """With the layers of each stage and the bytes that it holds."""
        stages = [
            {
                "device": stage.device,
                "layers": [layer.name for layer in getattr(stage.layers, "layers", [stage.layers])],
                "variable_devices": sorted({variable.value.device for variable in stage.layers.variables}),
                "parameters": self._held_bytes(stage.layers.trainable_variables),
                "optimizer": self._held_bytes(stage.optimizer.variables) if stage.optimizer else 0,
            }
            for stage in self._stages
        ]
        return {**super().details(), "stages": stages, "microbatches": self._microbatches}


def _sum(parts: Sequence[Gradient]) -> Gradient:
    there = [part for part in parts if part is not None]
    return tf.add_n(there) if there else None
