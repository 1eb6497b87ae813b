"""The layers of an `nn.Sequential` as segments that a cut may fall between, and what each costs."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from time import perf_counter

import torch
import torch.distributed as dist
from torch import Tensor, nn

from paceline.contract.context import Context
from paceline.workloads.base import model_facts

TRIAL_SAMPLES = 2
# Enough for the cheapest layers to take a measurable time; the least of a few timings is the undisturbed one.
TIMED_SAMPLES, TIMED_REPEATS = 32, 3


@dataclass(frozen=True)
class Segment:
    """Children of a sequence that stay together, by name."""

    children: tuple[tuple[str, nn.Module], ...]
    flops: float | None = None
    # Whether it is a block of a transformer; None for a child of a user's model, which may be.
    is_block: bool | None = None

    @property
    def module(self) -> nn.Sequential:
        """The children as one module."""
        # A child of a nested sequence has a dotted name, which no module can have.
        return nn.Sequential(OrderedDict((name.replace(".", "-"), child) for name, child in self.children))

    @property
    def trainable(self) -> bool:
        """Whether it has parameters."""
        return any(parameter.requires_grad for parameter in self.module.parameters())


def segments_of(context: Context, module: nn.Sequential) -> list[Segment]:
    """A built-in model's neutral layers with the activations that belong to them; else each child by itself."""
    facts = {layer.name: layer for layer in model_facts(context.model.layers, context.data.input_shape).layers}
    segments: list[Segment] = []
    for name, child in flattened_sequence(module):
        # What works in place on its input must have that input made beside it, not received.
        joins = name not in facts if facts else getattr(child, "inplace", False)
        if joins and segments:
            segments[-1] = replace(segments[-1], children=(*segments[-1].children, (name, child)))
        elif facts:
            is_block = facts[name].heads is not None
            segments.append(Segment(((name, child),), facts[name].forward_flops, is_block))
        else:
            segments.append(Segment(((name, child),)))
    return segments


def flattened_sequence(module: nn.Module, prefix: str = "") -> list[tuple[str, nn.Module]]:
    """Children in order, those of plain sequences within too."""
    children: list[tuple[str, nn.Module]] = []
    # Not `named_children`, which leaves out a child that comes a second time.
    for name, child in module._modules.items():
        plain = type(child).forward is nn.Sequential.forward
        children += flattened_sequence(child, f"{prefix}{name}.") if plain else [(f"{prefix}{name}", child)]
    return children


def costs_of(segments: Sequence[Segment], inputs: Tensor, balance: str, device: torch.device) -> list[float]:
    """Costs of segments: counted, or measured by the first process for all; a built-in model's blocks cost one each."""
    if balance == "blocks" and any(segment.is_block for segment in segments):
        return [float(bool(segment.is_block)) for segment in segments]
    if balance != "measured":
        return _counted(segments, inputs[:TRIAL_SAMPLES])
    measured = [_timed(segments, inputs, device) if dist.get_rank() == 0 else []]
    dist.broadcast_object_list(measured, src=0, device=device)
    return measured[0]


def _counted(segments: Sequence[Segment], inputs: Tensor) -> list[float]:
    if all(segment.flops is not None for segment in segments):
        return [float(segment.flops or 0) for segment in segments]
    from torch.utils.flop_counter import FlopCounterMode

    costs, activation = [], inputs
    for segment in segments:
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            activation = segment.module(activation)
        # The counter knows products and convolutions; anything else is about one operation per element.
        costs.append(float(counter.get_total_flops() + activation.numel()))
    return costs


def _timed(segments: Sequence[Segment], inputs: Tensor, device: torch.device) -> list[float]:
    """Seconds of the forward and backward pass of each segment; gradients are dropped."""
    costs, activation = [], inputs.to(device)
    for segment in segments:
        module = segment.module.to(device)
        costs.append(min(_pass_seconds(module, activation) for _ in range(TIMED_REPEATS)))
        with torch.no_grad():
            activation = module(activation)
        module.zero_grad(set_to_none=True)
        module.to("cpu")
    return costs


def _pass_seconds(module: nn.Module, activation: Tensor) -> float:
    activation = activation.detach().requires_grad_(activation.is_floating_point())
    started = perf_counter()
    output = module(activation.clone() if activation.requires_grad else activation)
    if output.requires_grad:
        output.sum().backward()
    if activation.device.type == "cuda":
        torch.cuda.synchronize(activation.device)
    return perf_counter() - started
