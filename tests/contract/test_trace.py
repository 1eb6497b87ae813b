"""A traced step is the step that a GPU makes: casts, kernels, shared weights, recomputation, and who asks for what.

Traces are made in processes of their own, as the command line makes them.
"""

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from paceline.contract.context import spec_facts  # noqa: E402
from paceline.contract.trace import Trace  # noqa: E402
from paceline.errors import ModelError  # noqa: E402
from paceline.frameworks.torch.trace import cuda_on_meta  # noqa: E402
from paceline.frameworks.torch.trace.scratch import Scratch  # noqa: E402
from paceline.frameworks.torch.trace.step import shortened  # noqa: E402
from paceline.plan import complete  # noqa: E402
from paceline.runs.trace import one_step, traced, traced_all  # noqa: E402
from paceline.spec import ModelFile, RunSpec  # noqa: E402
from paceline.systems.gpu_memory import GpuMemory  # noqa: E402

# In autocast's list, but beside the four policies: what it forbids, a different signature, cuDNN's own convolutions,
# and kernels of attention that a choice is made among.
ELSEWHERE = {
    "binary_cross_entropy", "norm.Scalar", "norm.ScalarOpt_dim", "cudnn_convolution", "cudnn_convolution_transpose",
    "_scaled_dot_product_flash_attention", "scaled_dot_product_attention",
}  # fmt: skip
TEXT: dict[str, Any] = {
    "workload": "gpt", "options": {"width": 64, "depth": 4, "heads": 4}, "dataset": "tokens", "input_shape": (32,),
    "classes": 128, "train_samples": 16, "global_batch": 8, "steps": 1, "device": "cuda", "precision": "bf16",
}  # fmt: skip
MODELS = """
import torch
from torch import nn

class Looks(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(16, 10)
        if self.inner.weight.sum().item() > 1e9:
            raise ValueError
    def forward(self, x):
        return self.inner(x.flatten(1))

def looks_when_built():
    model = Looks()
    model.inner.weight.data[0, 0] = float(model.inner.weight.detach().numpy()[0, 0])
    return model

class Chooses(Looks):
    def forward(self, x):
        return super().forward(x[x.sum((1, 2, 3)) > 0])

def chooses():
    return Chooses()

class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.drop = nn.Embedding(100, 32), nn.Dropout(0.5)
        self.head = nn.Linear(32, 100, bias=False)
        self.head.weight = self.table.weight
    def forward(self, x):
        return self.head(self.drop(self.table(x)))

def tied():
    return Tied()

class Turned(nn.Module):
    def __init__(self):
        super().__init__()
        self.turn = nn.Parameter(torch.ones(16, dtype=torch.complex64))
        self.head = nn.Linear(16, 10)
    def forward(self, x):
        return self.head((x.flatten(1) * self.turn).real)

def turned():
    return Turned()

def grows():
    return nn.Sequential(nn.ConvTranspose2d(4, 6, 3, stride=2), nn.Flatten(), nn.Linear(6 * 17 * 17, 10))
"""


def spec_of(**fields: Any) -> RunSpec:
    return complete(RunSpec.parse({**TEXT, **fields}, "contract"))


def trace(**fields: Any) -> Trace:
    return traced(spec_of(**fields))


def own(folder: Path, function: str, **fields: Any) -> RunSpec:
    file = folder / "models.py"
    file.write_text(MODELS)
    images = {"dataset": "synthetic", "input_shape": (1, 4, 4), "classes": 10, "options": {}, "workload": "own"}
    return spec_of(**{**images, "model": ModelFile.from_text(f"{file}:{function}"), **fields})


def test_this_version_of_pytorch_casts_what_the_trace_casts() -> None:
    known = {
        name.removeprefix("aten::") for name in torch._C._dispatch_get_registrations_for_dispatch_key("AutocastCUDA")
    }
    lists = (
        cuda_on_meta._IN_HALF, cuda_on_meta._IN_SINGLE, cuda_on_meta._IN_SINGLE_UNLESS_ASKED,
        cuda_on_meta._IN_THE_WIDEST,
    )  # fmt: skip
    ours = {name for names in lists for name in names.split()}
    # Later versions know more, which earlier ones do not have.
    assert known - ELSEWHERE - set(cuda_on_meta._FUSED) <= ours


def test_layers_are_those_of_the_facts_and_the_loss_is_last() -> None:
    found = trace()
    names = [layer.name for layer in spec_facts(spec_of()).layers]
    assert [layer.layer for layer in found.operations.layers] == [*names, "loss"]
    assert [layer.layer for layer in found.memory.layers] == [*names, "loss"]
    block = found.operations.layers[2]
    products = [operation for operation in block.forward if operation.kind == "product"]
    assert [operation.shape for operation in products] == [
        (1, 256, 192, 64), (1, 256, 64, 64), (1, 256, 256, 64), (1, 256, 64, 256),
    ]  # fmt: skip
    assert all(operation.numbers == "bf16" and not operation.backward for operation in products)
    (attention,) = (operation for operation in block.forward if operation.kind == "attention")
    assert attention.shape == (8, 4, 4, 32, 32, 16, 1)
    assert sum(operation.kind == "product" for operation in block.backward) == 2 * len(products)
    (update,) = (operation for operation in found.operations.update if operation.name == "_fused_adam_")
    assert update.shape[0] == pytest.approx(spec_facts(spec_of()).parameters, rel=1e-3)


def test_precisions_decide_what_is_kept_and_held() -> None:
    whole, mixed, pure = (trace(precision=name).memory for name in ("tf32", "bf16", "bf16-pure"))
    assert whole.parameter_bytes == mixed.parameter_bytes == pytest.approx(2 * pure.parameter_bytes, rel=0.1)
    assert pure.layers[2].kept_bytes < mixed.layers[2].kept_bytes < whole.layers[2].kept_bytes
    attention = [
        operation.name
        for numbers in ("tf32", "bf16")
        for operation in trace(precision=numbers).operations.layers[2].forward
        if operation.kind == "attention"
    ]
    assert [name.removeprefix("_scaled_dot_product_") for name in attention] == [
        "efficient_attention", "cudnn_attention",
    ]  # fmt: skip


def test_recomputed_blocks_keep_less_and_compute_again_in_the_backward_pass() -> None:
    none, selective, full = (trace(recompute=name) for name in ("none", "selective", "full"))
    kept = [found.memory.layers[2].kept_bytes for found in (none, selective, full)]
    assert kept[0] > kept[1] > kept[2]
    again = [operation for operation in full.operations.layers[2].backward if not operation.backward]
    # Nothing of the backward pass needs what the last product makes, so that PyTorch stops before it.
    assert sum(operation.kind == "product" for operation in again) == 3
    assert full.memory.peak_bytes() < none.memory.peak_bytes()


def test_few_of_many_like_layers_stand_for_all() -> None:
    assert shortened(("a", "b", "b", "b", "b", "b", "c")) == (("a", "b", "b", "b", "c"), [0, 1, 2, 2, 2, 3, 4])  # type: ignore[arg-type, comparison-overlap]
    few, many = (trace(options={**TEXT["options"], "depth": depth}).memory for depth in (3, 9))
    block = few.layers[2]
    assert many.kept_bytes - few.kept_bytes == 6 * block.kept_bytes
    assert many.parameter_bytes - few.parameter_bytes == 6 * block.parameter_bytes
    assert many.state_bytes > few.state_bytes


def test_weights_that_are_shared_are_there_once_and_dropout_keeps_a_byte(tmp_path: Path) -> None:
    spec = own(tmp_path, "tied", dataset="tokens", input_shape=(16,), classes=100, precision="tf32")
    found = traced(spec)
    assert found.memory.parameter_bytes == 100 * 32 * 4
    dropped = next(layer for layer in found.memory.layers if layer.layer == "drop")
    numbers = 8 * 16 * 32
    # What goes on to the head, and a mask.
    assert dropped.kept_bytes == numbers * 4 + numbers


def test_a_model_that_looks_at_its_numbers_is_built_with_them(tmp_path: Path) -> None:
    assert traced(own(tmp_path, "looks_when_built")).memory.parameter_bytes > 0


def test_a_step_that_needs_its_numbers_is_not_traced_and_says_why(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="its step needs real numbers"):
        traced(own(tmp_path, "chooses"))


def test_optimizers_that_read_their_own_count_of_steps_are_traced(tmp_path: Path) -> None:
    # No fused form of Adam knows complex numbers; the others count on the CPU.
    memory = traced(own(tmp_path, "turned", input_shape=(1, 4, 4))).memory
    assert memory.state_bytes >= 2 * (16 * 8 + 16 * 10 * 4)


def test_a_transposed_convolution_multiplies_once_for_each_number_that_it_is_given(tmp_path: Path) -> None:
    layers = traced(own(tmp_path, "grows", input_shape=(4, 8, 8), global_batch=2)).operations.layers
    forward = [each for layer in layers for each in layer.forward if each.kind == "convolution"]
    backward = [each for layer in layers for each in layer.backward if each.kind == "convolution"]
    given, area, results = 2 * 4 * 8 * 8, 3 * 3, 6
    assert [each.flops for each in forward] == [2 * given * area * results]
    # As a convolution it goes from the larger image, of 17 pixels, to the smaller one.
    assert [each.shape for each in forward] == [(2, 6, 17, 17, 4, 3, 3, 2, 1)]
    assert [each.flops for each in backward] == [2 * given * area * results]


def test_experts_are_chosen_evenly() -> None:
    found = trace(workload="mixtral", options={"width": 64, "depth": 2, "heads": 4, "experts": 4})
    assert found.memory.peak_bytes() > 0


def test_every_optimizer_and_a_clipped_norm_can_be_traced() -> None:
    sgd = trace(optimizer={"name": "sgd", "momentum": 0.9}, clip=1.0).memory
    adagrad, adam = trace(optimizer={"name": "adagrad"}).memory, trace().memory
    assert sgd.state_bytes == pytest.approx(sgd.parameter_bytes, rel=0.01)
    assert sgd.state_bytes < adagrad.state_bytes < adam.state_bytes


def test_sums_over_many_rows_take_scratch_memory_of_all_multiprocessors() -> None:
    scratch = Scratch(GpuMemory())
    assert scratch.sum_of_rows(32768, 768) == 132 * 2**20
    assert scratch.sum_of_rows(64, 768) == 0
    assert Scratch(GpuMemory().cut_into(4)).sum_of_rows(32768, 768) == 33 * 2**20


def test_steps_are_asked_for_once() -> None:
    step = one_step(spec_of(strategy="torch-ddp", workers=2, accumulation=2))
    assert (step.strategy, step.samples_per_step, step.accumulation) == ("torch-single", 2, 1)
    assert traced_all([step, step], GpuMemory())[0] is traced_all([step], GpuMemory())[0]


@pytest.mark.parametrize(("workload", "causal", "gelu"), [("gpt", 1, "gelu_tanh"), ("bert", 0, "gelu")])
def test_attention_and_gelu_are_traced_as_the_model_calls_them(workload: str, causal: int, gelu: str) -> None:
    spec = RunSpec(**{**TEXT, "workload": workload, "options": {"width": 64, "depth": 1, "heads": 4}})
    operations = [
        operation
        for layer in traced(complete(spec)).operations.layers
        for operation in (*layer.forward, *layer.backward)
    ]
    attentions = {operation.shape[-1] for operation in operations if operation.kind == "attention"}
    assert attentions == {causal}
    assert {operation.name for operation in operations if "gelu" in operation.name} == {gelu, f"{gelu}_backward"}


def test_images_that_are_put_in_another_order_and_biases_are_counted_though_nobody_calls_for_them() -> None:
    images = {"dataset": "synthetic", "input_shape": (3, 64, 64), "classes": 10, "train_samples": 16, "global_batch": 4}
    spec = complete(RunSpec(workload="resnet", steps=1, device="cuda", precision="bf16", **images))

    def passes(workload_spec: RunSpec, name: str) -> tuple[int, int]:
        layers = traced(workload_spec).operations.layers
        return (
            sum(operation.plain_name == name for layer in layers for operation in layer.forward),
            sum(operation.plain_name == name for layer in layers for operation in layer.backward),
        )

    # Norms over groups want channels apart and convolutions side by side: each of 53 norms has one copy of both kinds.
    forward, backward = passes(spec, "contiguous")
    assert 100 <= forward <= 110 and backward >= 100
    plain = complete(RunSpec(workload="mnist-large", steps=1, device="cuda", precision="tf32", global_batch=4))
    assert passes(plain, "contiguous") == (0, 0)
    assert passes(plain, "add")[0] >= 3 and passes(plain, "sum")[1] >= 3
