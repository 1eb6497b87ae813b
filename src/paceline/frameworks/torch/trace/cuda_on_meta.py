"""Makes PyTorch treat tensors without numbers as a GPU would treat real ones; everything private of PyTorch is here.

Autocast for CUDA leaves tensors of the meta device alone. Kernels in Python, under a dispatch key that no such machine
uses, apply its lists of casts and its cache of cast weights; the same key carries the choice of attention kernel and
the fused form of dropout. All of it holds for the whole process, which must have no other purpose.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from inspect import signature
from typing import Any

import torch
from torch import Tensor

from paceline.costs.operations import GRU_GATES, LSTM_GATES
from paceline.frameworks.torch.trace.fused_norm import fused_rms_norm
from paceline.frameworks.torch.trace.fused_recurrent import can_fuse, fused_layers
from paceline.frameworks.torch.trace.stand_ins import let_counts_be_listed
from paceline.systems.gpu_memory import Attention

Policy = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]

_KEY = "AutocastXPU"
# As in ATen/autocast_mode.h of PyTorch 2.11 to 2.13: what autocast computes in half precision, in single precision, in
# single precision unless a type is asked for, and in the widest of the types that it is given.
_IN_HALF = (
    "_convolution.deprecated _convolution conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d.input "
    "conv_transpose3d.input convolution prelu addmm addmv addr matmul einsum mm mv linalg_vecdot linear addbmm baddbmm "
    "bmm chain_matmul linalg_multi_dot _thnn_fused_lstm_cell _thnn_fused_gru_cell lstm_cell gru_cell rnn_tanh_cell "
    "rnn_relu_cell"
)
_IN_SINGLE = (
    "acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow.Tensor_Scalar "
    "pow.Tensor_Tensor pow.Scalar softplus layer_norm native_layer_norm group_norm frobenius_norm.dim "
    "nuclear_norm nuclear_norm.dim cosine_similarity poisson_nll_loss cosine_embedding_loss nll_loss nll_loss2d "
    "hinge_embedding_loss kl_div l1_loss smooth_l1_loss huber_loss mse_loss margin_ranking_loss "
    "multilabel_margin_loss soft_margin_loss triplet_margin_loss multi_margin_loss binary_cross_entropy_with_logits "
    "dist pdist cdist renorm logsumexp upsample_nearest1d _upsample_nearest_exact1d upsample_nearest2d "
    "_upsample_nearest_exact2d upsample_nearest3d _upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d "
    "_upsample_bilinear2d_aa upsample_trilinear3d upsample_bicubic2d _upsample_bicubic2d_aa"
)
_IN_SINGLE_UNLESS_ASKED = (
    "prod prod.dim_int softmax.int log_softmax.int cumprod cumsum linalg_vector_norm linalg_matrix_norm "
    "linalg_matrix_norm.str_ord sum sum.dim_IntList"
)
_IN_THE_WIDEST = "addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add"
# What a GPU has single kernels for, cast or not.
_FUSED = ("dropout", "rms_norm", "lstm.input", "gru.input", "rnn_tanh.input", "rnn_relu.input")
# The widest head that each attention kernel takes.
_WIDEST_HEAD: dict[str, int] = {"cudnn": 128, "flash": 256}
_HALVES = (torch.bfloat16, torch.float16)
# Cast weights by the number of the tensor they were cast from, which is kept so that none other gets its number.
_cast_weights: dict[int, tuple[Tensor, Tensor]] = {}
_kept_alive: list[Any] = []


@contextmanager
def cuda_on_meta(half: Attention, single: Attention, fuses_recurrent: bool = True) -> Iterator[None]:
    """Everything within runs as on a GPU whose attention kernels for numbers of two and four bytes are these.

    Without `fuses_recurrent` GRUs and plain recurrent layers are taken apart, as cores do.
    """
    _register(half, single, fuses_recurrent)
    torch.set_autocast_enabled("xpu", True)
    with torch._C._IncludeDispatchKeyGuard(getattr(torch._C.DispatchKey, _KEY)):
        yield
    torch.set_autocast_enabled("xpu", False)


@cache
def _register(half: Attention, single: Attention, fuses_recurrent: bool) -> None:
    _let_autocast_be_asked_for()
    _let_optimizers_take_meta()
    _let_checkpoints_cast()
    let_counts_be_listed()
    library = torch.library.Library("aten", "IMPL")
    _kept_alive.append(library)
    warnings.filterwarnings("ignore", message="Warning only once for all operators")
    # What this version's autocast does not know, it does not cast.
    known = set(torch._C._dispatch_get_registrations_for_dispatch_key("AutocastCUDA"))
    policies = {
        _in_half: _IN_HALF, _in_single: _IN_SINGLE, _in_single_unless_asked: _IN_SINGLE_UNLESS_ASKED,
        _in_the_widest: _IN_THE_WIDEST, _fused_dropout: "dropout", _fused_norm("aten::rms_norm" in known): "rms_norm",
        _fused_recurrent(LSTM_GATES): "lstm.input", _attention_by(half, single): "scaled_dot_product_attention",
    }  # fmt: skip
    if fuses_recurrent:
        policies |= {_fused_recurrent(GRU_GATES): "gru.input", _fused_recurrent(1): "rnn_tanh.input rnn_relu.input"}
    for policy, names in policies.items():
        for name in names.split():
            if f"aten::{name}" in known or name in _FUSED:
                _replace(library, name, policy)


def _replace(library: torch.library.Library, name: str, policy: Policy) -> None:
    base, _, overload = name.partition(".")
    operation = getattr(getattr(torch.ops.aten, base), overload or "default")
    keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, _KEY))

    def kernel(*arguments: Any, **named: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(keys):
            return policy(operation, arguments, named)

    # Versions that do not know the word override without it.
    override = {"allow_override": True} if "allow_override" in signature(library.impl).parameters else {}
    library.impl(name, kernel, _KEY, **override)


def _casts_to() -> torch.dtype | None:
    return torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else None


def _in_half(operation: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    half = _casts_to()
    if half is None:
        return operation(*arguments, **named)
    return operation(*_cast(arguments, half), **{name: _cast(value, half) for name, value in named.items()})


def _in_single(operation: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    if _casts_to() is None:
        return operation(*arguments, **named)
    single = torch.float32
    return operation(*_cast(arguments, single), **{name: _cast(value, single) for name, value in named.items()})


def _in_single_unless_asked(operation: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    names = [argument.name for argument in operation._schema.arguments]
    values = {**dict(zip(names, arguments, strict=False)), **named}
    if _casts_to() is not None and _is_cast(arguments[0]) and values.get("dtype") is None:
        values["dtype"] = torch.float32
    positional = [argument.name for argument in operation._schema.arguments if not argument.kwarg_only]
    first = [values.pop(name) for name in positional if name in values]
    return operation(*first, **values)


def _in_the_widest(operation: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    half = _casts_to()
    if half is None:
        return operation(*arguments, **named)
    kinds = {value.dtype for value in arguments if _is_cast(value)}
    widest = torch.float32 if torch.float32 in kinds else half
    return operation(*_cast(arguments, widest), **named)


def _is_cast(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and value.dtype != torch.float64


def _cast(value: Any, kind: torch.dtype) -> Any:
    if isinstance(value, tuple | list):
        return type(value)(_cast(item, kind) for item in value)
    if not _is_cast(value) or value.dtype == kind:
        return value
    is_weight = value.dtype == torch.float32 and value.requires_grad and value.is_leaf and not value._is_view()
    if kind not in _HALVES or not is_weight:
        return value.to(kind)
    if id(value) not in _cast_weights:
        _cast_weights[id(value)] = value, value.to(kind)
    return _cast_weights[id(value)][1]


def _fused_dropout(operation: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """On a GPU dropout keeps a mask of one byte for each number."""
    values = {**dict(zip(("input", "p", "train"), arguments, strict=False)), **named}
    if not values["train"] or not 0 < values["p"] < 1:
        return operation(*arguments, **named)
    return torch.ops.aten.native_dropout(values["input"], values["p"], True)[0]


def _fused_norm(casts: bool) -> Policy:
    """One kernel where all numbers are of one type; this version's autocast may cast them to single precision."""

    def policy(operation: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        values = {**dict(zip(("input", "normalized_shape", "weight", "eps"), arguments, strict=False)), **named}
        if casts and _casts_to() is not None:
            values = {name: _cast(value, torch.float32) for name, value in values.items()}
        weight = values.get("weight")
        if weight is not None and weight.dtype != values["input"].dtype:
            return operation(**values)
        return fused_rms_norm(values["input"], values["normalized_shape"], weight)

    return policy


def _fused_recurrent(gates: int) -> Policy:
    """One call for each layer whose cells have so many gates, in half precision under autocast."""

    def policy(operation: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        names = [argument.name for argument in operation._schema.arguments]
        by_name = {**dict(zip(names, arguments, strict=False)), **named}
        values, weights, layers = by_name["input"], list(by_name["params"]), by_name["num_layers"]
        if not can_fuse(values, weights, by_name["has_biases"], layers, by_name["bidirectional"]):
            return operation(*arguments, **named)
        if (half := _casts_to()) is not None:
            values, weights = _cast(values, half), _cast(weights, half)
        dropout = by_name["dropout"] if by_name["train"] else 0.0
        return fused_layers(gates, values, weights, layers, dropout, by_name["batch_first"])

    return policy


def _attention_by(half: Attention, single: Attention) -> Policy:
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    usual = {"attn_mask": None, "dropout_p": 0.0, "is_causal": False, "scale": None, "enable_gqa": False}

    def policy(operation: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        if (kind := _casts_to()) is not None:
            arguments, named = _cast(arguments, kind), {name: _cast(value, kind) for name, value in named.items()}
        values = {**usual, **dict(zip(names, arguments, strict=False)), **named}
        chosen = half if values["query"].dtype in _HALVES else single
        return _attend(_possible(chosen, values), operation, values, arguments, named)

    return policy


def _possible(chosen: Attention, values: dict[str, Any]) -> Attention:
    """The kernel, or the next one that takes such arguments: as the choice is made in ATen/native/transformers/cuda."""
    query, key, value = values["query"], values["key"], values["value"]
    four = query.ndim == key.ndim == value.ndim == 4
    if not four or query.device.type != "meta":
        return "math"
    if chosen in _WIDEST_HEAD:
        if values["attn_mask"] is not None or query.dtype not in _HALVES:
            chosen = "efficient"
        elif query.shape[-1] > _WIDEST_HEAD[chosen]:
            chosen = "flash" if query.shape[-1] <= _WIDEST_HEAD["flash"] else "efficient"
    if chosen == "efficient" and (values["enable_gqa"] or query.shape[1] != key.shape[1]):
        return "math"
    return chosen


def _attend(
    chosen: Attention, operation: Any, values: dict[str, Any], arguments: tuple[Any, ...], named: dict[str, Any]
) -> Any:
    aten, first = torch.ops.aten, (values["query"], values["key"], values["value"])
    dropout, causal, scale = values["dropout_p"], values["is_causal"], values["scale"]
    backwards = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in first)
    if chosen == "cudnn":
        return aten._scaled_dot_product_cudnn_attention(*first, None, backwards, dropout, causal, False, scale=scale)[0]
    if chosen == "flash":
        return aten._scaled_dot_product_flash_attention(*first, dropout, causal, False, scale=scale)[0]
    if chosen == "efficient":
        mask = values["attn_mask"]
        if mask is not None:
            if mask.dtype == torch.bool:
                mask = torch.zeros_like(mask, dtype=first[0].dtype)
            mask = mask.expand(*first[0].shape[:3], first[1].shape[2])
        return aten._scaled_dot_product_efficient_attention(*first, mask, backwards, dropout, causal, scale=scale)[0]
    return operation(*arguments, **named)


def _let_autocast_be_asked_for() -> None:
    """`torch.autocast("cuda")` switches itself off where there is no GPU."""
    torch.cuda.amp.common.amp_definitely_not_available = lambda: False
    torch.cuda.is_bf16_supported = lambda *_, **__: True
    forget = torch.clear_autocast_cache

    def clear() -> None:
        forget()
        _cast_weights.clear()

    torch.clear_autocast_cache = clear


def _let_optimizers_take_meta() -> None:
    from torch.optim import optimizer
    from torch.utils import _foreach_utils

    def with_meta(devices: Callable[[], list[str]]) -> Callable[[], list[str]]:
        return lambda: [*devices(), "meta"]

    for name in ("_get_fused_kernels_supported_devices", "_get_foreach_kernels_supported_devices"):
        for module in (optimizer, _foreach_utils):
            if hasattr(module, name):
                setattr(module, name, with_meta(getattr(module, name)))


def _let_checkpoints_cast() -> None:
    """Activations that are computed again are computed under the autocast of the first time, for the device cuda."""
    from torch.utils import checkpoint

    checkpoint._infer_device_type = lambda *_: "cuda"


def in_channels_last(outputs: Any, inputs: Iterable[Any]) -> Any:
    """A convolution's output in the memory format of its inputs, which the meta kernel forgets."""
    if not any(has_channels_fastest(value) for value in inputs):
        return outputs
    if isinstance(outputs, tuple):
        return tuple(_reordered(tensor) for tensor in outputs)
    return _reordered(outputs)


def has_channels_fastest(value: Any) -> bool:
    """Whether a tensor is an image, or weights for them, with channels side by side, as its strides say.

    Weights of one pixel are in both orders at once, and their strides tell which one was meant.
    """
    if not _is_image(value):
        return False
    shape, strides, least = value.shape, value.stride(), 0
    for dimension in (1, 3, 2, 0):
        step = strides[dimension]
        # One channel of one pixel says nothing: then it is the usual order.
        if step < least or (dimension == 1 and step == 0) or (dimension == 0 and least == strides[1]):
            return False
        least = step * shape[dimension] if shape[dimension] > 1 else step
    return True


def in_rows(outputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """What CUDA's norms over groups make: images channel by channel, in whatever order they were given."""
    return tuple(
        torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device) if _is_image(tensor) else tensor
        for tensor in outputs
    )


def _is_image(value: Any) -> bool:
    return isinstance(value, Tensor) and value.ndim == 4


def _reordered(tensor: Any) -> Any:
    if not _is_image(tensor):
        return tensor
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device, memory_format=torch.channels_last)


def running_node() -> Any:
    """The autograd node whose backward pass is running, or None."""
    return torch._C._current_autograd_node()


def next_node_number() -> int:
    """The sequence number of the next autograd node."""
    return int(torch.autograd._get_sequence_nr())


def node_number(node: Any) -> int:
    """The sequence number of a node, by which its layer is found; the highest for a node without one."""
    numbered = getattr(node, "_sequence_nr", None)
    return 2**64 - 1 if numbered is None else int(numbered())
