"""The run's model and data without their numbers: shapes and types on the meta device, in no time and no memory."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from paceline.contract.context import Context, data_request, spec_layers
from paceline.data import DataSet, data_source
from paceline.errors import ModelError
from paceline.frameworks.torch.model import build_module, placed
from paceline.frameworks.torch.outline import build_or_outline
from paceline.frameworks.torch.resident_data import ResidentData
from paceline.workloads.base import Layers
from paceline.workloads.layers import Shape
from paceline.workloads.user_model import USER_DATA, build_user_model

META = torch.device("meta")


def build_on_meta(context: Context, layers: Layers, shape: Shape) -> nn.Module:
    """The model as the run would put it on its device: of these layers, or the user's own."""
    channels_last = context.spec.memory_format == "channels_last"
    if context.user_model is None:
        with META:
            module: nn.Module = build_module(layers, shape, channels_last)
    else:
        module = without_numbers(_build_user_module(context))
    return placed(module, META, channels_last)


def _build_user_module(context: Context) -> nn.Module:
    """The user's model on the meta device; on the CPU first where its code reads values."""
    assert context.user_model is not None
    try:
        with META:
            module = build_user_model(context.user_model)
    except ModelError:
        module = build_or_outline(context.user_model)
    if not isinstance(module, nn.Module):
        raise ModelError(
            f"{context.user_model.label} returned {type(module).__name__}; only a torch.nn.Module can be traced"
        )
    return module


def without_numbers(module: nn.Module) -> nn.Module:
    """Moves all tensors of a module to the meta device; shared weights stay shared."""
    moved: dict[int, Any] = {}

    def meta(tensor: Tensor) -> Any:
        if id(tensor) not in moved:
            bare = torch.empty_like(tensor, device=META, requires_grad=False)
            is_parameter = isinstance(tensor, nn.Parameter)
            # The tensor itself is kept, so that none other gets its number.
            moved[id(tensor)] = nn.Parameter(bare, tensor.requires_grad) if is_parameter else bare, tensor
        return moved[id(tensor)][0]

    for child in module.modules():
        for held in (child._parameters, child._buffers, vars(child)):
            for name, value in list(held.items()):
                if isinstance(value, Tensor) and value.device != META:
                    held[name] = meta(value)
    return module


def resident_on_meta(context: Context, shape: Shape) -> ResidentData:
    """The data set as it would be on the device."""
    spec = context.spec
    if spec.dataset == USER_DATA:
        data = context.data
    else:
        source, request, sample = data_source(str(spec.dataset)), data_request(spec), _one_sample(context, shape)
        train, test = source.count(request), source.test_count(request)
        data = DataSet(
            _repeated(sample.train_inputs, train), _repeated(sample.train_targets, train),
            _repeated(sample.test_inputs, test), _repeated(sample.test_targets, test), sample.classes,
        )  # fmt: skip

    def put(array: np.ndarray, _device: torch.device) -> Tensor:
        return torch.empty(array.shape, dtype=torch.from_numpy(np.array(array[:1])).dtype, device=META)

    return ResidentData.load(data, META, spec.memory_format == "channels_last", put)


def _repeated(array: np.ndarray, count: int) -> np.ndarray:
    """The first sample that often, in the memory of one."""
    return np.broadcast_to(array[:1], (count, *array.shape[1:]))


def _one_sample(context: Context, shape: Shape) -> DataSet:
    """A data set of one sample; images of a known shape are not loaded for that."""
    spec, source = context.spec, data_source(str(context.spec.dataset))
    if source.shape is None:
        return source.load(data_request(spec.model_copy(update={"train_samples": 1})))
    image, label = np.zeros((1, *shape), np.float32), np.zeros(1, np.int64)
    return DataSet(image, label, image, label, spec.classes or source.classes)


def layers_of(context: Context) -> tuple[Layers, Shape]:
    """A built-in model's layers and the shape of a sample; no layers of a user's own."""
    if context.user_model is None:
        return spec_layers(context.spec)
    if context.spec.dataset == USER_DATA:
        return (), context.data.input_shape
    source = data_source(str(context.spec.dataset))
    shape = context.spec.input_shape or source.shape
    return (), shape or _one_sample(context, ()).input_shape
