"""Numbers of two bytes: autocast over parameters of four, parameters that are cast, and a loss that is scaled for fp16.

Micikevicius et al., "Mixed Precision Training", ICLR 2018.
"""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from paceline.spec import RunSpec

HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16, "bf16-pure": torch.bfloat16}
# Those of `torch.amp.GradScaler`.
FIRST_SCALE, GROWTH, BACKOFF, STEPS_TO_GROW = 2.0**16, 2.0, 0.5, 2000


def half_of(spec: RunSpec) -> torch.dtype | None:
    """The two-byte type that passes compute in; None for single precision."""
    return HALVES.get(spec.precision)


def set_precision(spec: RunSpec, autocasts: bool = True) -> Callable[[], AbstractContextManager[Any]]:
    """Applies the run's precision and gives the context that a forward pass needs."""
    allow_tf32 = spec.precision != "fp32"
    torch.backends.cuda.matmul.allow_tf32 = allow_tf32
    torch.backends.cudnn.allow_tf32 = allow_tf32
    if not autocasts or spec.precision not in ("bf16", "fp16"):
        return nullcontext
    return lambda: torch.autocast(_device_type(spec), dtype=half_of(spec))


def shared_casts(spec: RunSpec) -> AbstractContextManager[Any]:
    """A context around several passes in which autocast casts each parameter only once."""
    # It forgets its casts when the outermost context is left, also of one that casts nothing.
    return torch.autocast(_device_type(spec), enabled=False) if spec.precision in ("bf16", "fp16") else nullcontext()


def parameter_type(spec: RunSpec) -> torch.dtype:
    """The type of parameters, gradients and optimizer state as they are held."""
    return torch.bfloat16 if spec.precision == "bf16-pure" else torch.float32


def reduction_type(spec: RunSpec) -> torch.dtype | None:
    """The type in which gradients are reduced between workers, where it differs from their own."""
    return {None: None, "fp32": torch.float32, "bf16": torch.bfloat16}[spec.reduction]


def _device_type(spec: RunSpec) -> str:
    return "cpu" if spec.device == "cpu" else "cuda"


def hold_in_half(spec: RunSpec, module: nn.Module) -> None:
    """With precision bf16-pure, casts parameters to two bytes; gradients and optimizer state follow."""
    if spec.precision == "bf16-pure":
        module.to(torch.bfloat16)


def compute_in_half(spec: RunSpec, module: nn.Module) -> None:
    """Holds a whole model in half precision, as `hold_in_half` does; it still takes and returns single precision."""
    hold_in_half(spec, module)
    if spec.precision == "bf16-pure":
        module.register_forward_pre_hook(_cast_all_inputs, with_kwargs=True)
        module.register_forward_hook(lambda _module, _inputs, output: all_in_type(output, torch.float32))


def _cast_all_inputs(_module: nn.Module, inputs: Any, named: Any) -> Any:
    return all_in_type(inputs, torch.bfloat16), all_in_type(named, torch.bfloat16)


def all_in_type(values: Any, kind: torch.dtype) -> Any:
    """The same for each tensor of several: in tuples, dicts and what PyTorch knows as such."""
    from torch.utils._pytree import tree_map_only

    return tree_map_only(Tensor, lambda tensor: in_type(tensor, kind), values)


def cast_inputs(kind: torch.dtype) -> Callable[[nn.Module, tuple[Any, ...]], tuple[Any, ...]]:
    """A hook before a module's forward pass that casts what it is given."""
    return lambda _module, inputs: tuple(in_type(value, kind) for value in inputs)


def in_type(value: Any, kind: torch.dtype) -> Any:
    """A tensor of that type; whole numbers and what is no tensor stay as they are."""
    return value.to(kind) if isinstance(value, Tensor) and value.is_floating_point() else value


class LossScale:
    """A factor of the loss that keeps small gradients from vanishing in fp16, by the rules of `GradScaler`.

    A step with gradients that are not finite is skipped and the factor lowered. Where each rank has a part of the
    gradients, all of them must skip it: `agree` says whether they have to ask each other, all or those of a group.
    """

    def __init__(self, device: torch.device, agree: bool, group: dist.ProcessGroup | None = None) -> None:
        self.factor, self.skipped_steps = FIRST_SCALE, 0
        self._device, self._agree, self._group, self.good_steps = device, agree, group, 0

    def unscale(self, parameters: Iterable[nn.Parameter]) -> bool:
        """Divides all gradients by the factor, and says whether the step may be made."""
        inverse, overflow = (torch.full((), value, device=self._device) for value in (1 / self.factor, 0.0))
        found_gradients = (each.grad for each in parameters if each.grad is not None)
        gradients = [grad.to_local() if hasattr(grad, "to_local") else grad for grad in found_gradients]
        for place in {gradient.device for gradient in gradients}:
            here = [gradient for gradient in gradients if gradient.device == place and gradient.numel()]
            overflow_here, factor = overflow.to(place), inverse.to(place)
            if here:
                torch._amp_foreach_non_finite_check_and_unscale_(here, overflow_here, factor)
            overflow = torch.maximum(overflow, overflow_here.to(self._device))
        if self._agree:
            dist.all_reduce(overflow, dist.ReduceOp.MAX, group=self._group)
        finite = not bool(overflow)
        self._update(finite)
        return finite

    def _update(self, finite: bool) -> None:
        self.good_steps = self.good_steps + 1 if finite else 0
        if not finite:
            self.factor *= BACKOFF
            self.skipped_steps += 1
        elif self.good_steps == STEPS_TO_GROW:
            self.factor *= GROWTH
            self.good_steps = 0


def loss_scale(
    spec: RunSpec, device: torch.device, agree: bool, group: dist.ProcessGroup | None = None
) -> LossScale | None:
    """The loss scaling that fp16 needs; none for other precisions."""
    return LossScale(device, agree, group) if spec.precision == "fp16" else None
