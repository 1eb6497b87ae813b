"""Calls of a traced step can be repeated on a device: the same operations on tensors of the same shapes and strides."""

import ast
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from paceline.contract.trace import Trace
from paceline.costs.operations import Operation
from paceline.frameworks.torch.trace.calls import call_from_text, text_of_call
from paceline.plan import complete
from paceline.runs.trace import one_step, traced_all
from paceline.spec import RunSpec
from paceline.systems.gpu_memory import GpuMemory

pytestmark = pytest.mark.torch
CPU = torch.device("cpu")
IMAGES = {"input_shape": (3, 32, 32), "classes": 10, "dataset": "synthetic"}
TEXT = {"depth": 1, "width": 64, "heads": 4, "sequence": 16, "vocabulary": 101}
MODELS: dict[str, dict[str, Any]] = {
    "gpt": {"options": TEXT}, "llama": {"options": {**TEXT, "kv_heads": 2}}, "mnist-large": {},
    "resnet": {"options": {"depth": 18}, **IMAGES}, "vit": {"options": {"size": "tiny"}, **IMAGES},
}  # fmt: skip
# Norms that no core has a kernel for.
ON_GPUS_ALONE = ("aten::_fused_rms_norm",)


def traced(model: str, precision: str = "bf16", keeps_calls: bool = True) -> Trace:
    fields = {"strategy": "torch-single", "device": "cuda", "precision": precision, "global_batch": 4, "steps": 1}
    spec = complete(RunSpec.parse({**fields, "workload": model, "train_samples": 8, **MODELS[model]}, "a test"))
    (trace,) = traced_all([one_step(spec)], GpuMemory(), keeps_calls)
    assert isinstance(trace, Trace), trace
    return trace


def operations(trace: Trace) -> Iterator[Operation]:
    for layer in trace.operations.layers:
        yield from (*layer.forward, *layer.backward)


@pytest.mark.parametrize("model", MODELS)
def test_every_call_of_a_step_can_be_repeated(model: str) -> None:
    calls = {operation.call for operation in operations(traced(model)) if operation.call}
    assert len(calls) > 20
    for call in calls:
        if not ast.literal_eval(call)[0].startswith(ON_GPUS_ALONE):
            call_from_text(call, CPU)()


def test_all_but_attention_and_what_kernels_do_unseen_has_a_call_of_its_own() -> None:
    for operation in operations(traced("resnet")):
        assert operation.call, operation
    assert {operation.kind for operation in operations(traced("gpt")) if not operation.call} == {"attention"}
    assert any(operation.inside_call for operation in operations(traced("resnet")))


def test_calls_are_left_out_where_nobody_asked_for_them() -> None:
    assert not any(operation.call for operation in operations(traced("gpt", keeps_calls=False)))


def test_a_call_keeps_strides_types_and_which_tensors_are_the_same() -> None:
    rows = torch.randn(4, 6).t()
    text = text_of_call(torch.ops.aten.mul.Tensor, (rows, rows), {}, "fp32")
    assert text == "('aten::mul.Tensor', 'fp32', [{'tensor': ('float32', (6, 4), (1, 6))}, {'same': 0}], {})"
    product = call_from_text(text, CPU)()
    assert product.shape == (6, 4) and bool((product >= 0).all())
    kinds = {"dtype": torch.bfloat16, "memory_format": torch.channels_last, "device": torch.device("meta")}
    image = torch.empty(2, 3, 4, 4, device="meta")
    cast = call_from_text(text_of_call(torch.ops.aten._to_copy.default, (image,), kinds, "bf16"), CPU)()
    assert cast.dtype == torch.bfloat16 and cast.is_contiguous(memory_format=torch.channels_last)
    filled = text_of_call(torch.ops.aten.masked_fill.Scalar, (image, image > 0, float("-inf")), {}, "fp32")
    assert bool(torch.isinf(call_from_text(filled, CPU)()).any())


def test_products_of_another_precision_are_other_calls() -> None:
    calls = [
        {
            operation.call
            for operation in operations(traced("mnist-large", precision))
            if operation.kind == "convolution"
        }
        for precision in ("tf32", "fp32")
    ]
    assert calls[0] and not calls[0] & calls[1]
