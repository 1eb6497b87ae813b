"""Models that people train, in small: the same in every framework, and under every strategy as on one worker."""

from typing import Any

import pytest

from contract.test_torch_mesh import MOVE_TOLERANCE, TRAINING, assert_equal_training
from paceline.contract.context import spec_layers
from paceline.plan import complete, refusal
from paceline.runs.probe import probe
from paceline.spec import RunSpec
from paceline.strategies import strategies, strategy
from paceline.systems import local_system
from paceline.workloads.base import initial_weights, model_facts

BLOCKS = {"depth": 2, "width": 32, "heads": 4, "vocabulary": 40, "sequence": 16}
SMALL: dict[str, dict[str, Any]] = {
    "gpt": {"options": BLOCKS},
    "llama": {"options": {**BLOCKS, "kv_heads": 2, "hidden": 48}},
    "mixtral": {"options": {**BLOCKS, "kv_heads": 2, "hidden": 24, "experts": 4}},
    "bert": {"options": BLOCKS},
    "vit": {"options": {"depth": 2, "width": 32, "heads": 4, "patch": 7}, "dataset": "mnist-5k"},
    # With larger steps the roundings of different frameworks grow apart within four of them.
    "resnet": {
        "options": {"depth": 18, "width": 16}, "input_shape": [3, 64, 64], "classes": 10,
        "optimizer": {"name": "sgd", "lr": 0.0003, "momentum": 0.9},
    },
}  # fmt: skip
SYNCHRONOUS = [
    one.name
    for one in strategies().values()
    if one.synchronous and one.framework is not None and one.name != "torch-single"
]
# One of each kind: gradients averaged, parameters divided, another framework's compiler and graph.
USUAL = {
    ("torch-ddp", "gpt"), ("torch-fsdp", "llama"), ("torch-ddp", "mixtral"), ("torch-fsdp", "bert"),
    ("torch-ddp", "resnet"), ("jax-data", "llama"), ("tf-mirrored", "vit"),
}  # fmt: skip


# L-BFGS divides by differences of gradients, which make much of a rounding.
MOVE_TOLERANCES = {("torch-sandblaster", "resnet"): 2e-2}


def small(model: str, **fields: Any) -> RunSpec:
    samples = {"global_batch": 16, "train_samples": 64}
    return complete(RunSpec.parse({"workload": model, **samples, **TRAINING, **SMALL[model], **fields}, "model"))


def exactly(spec: RunSpec) -> RunSpec:
    """On a CPU, PyTorch's norms over groups lose a digit where channels lie fastest, which ReLUs make much of."""
    loses = spec.workload == "resnet" and strategy(spec.strategy).framework == "torch"
    return spec.model_copy(update={"memory_format": "contiguous"}) if loses else spec


def case(name: str, model: str) -> Any:
    marks = [getattr(pytest.mark, str(strategy(name).framework))]
    return pytest.param(name, model, marks=marks if (name, model) in USUAL else [*marks, pytest.mark.soak])


@pytest.mark.parametrize(("name", "model"), [case(name, model) for name in SYNCHRONOUS for model in SMALL])
def test_a_real_model_trains_as_on_one_worker(name: str, model: str, trained: Any) -> None:
    chosen = strategy(name)
    spec = exactly(small(model, strategy=name, workers=chosen.needs.fixed_workers or 2, **chosen.testing.fields))
    if (reason := refusal(spec, local_system(), probe)) is not None:
        assert (name, model) not in USUAL, reason
        pytest.skip(reason)
    spread = trained.again(spec)
    tolerance = MOVE_TOLERANCES.get((name, model), MOVE_TOLERANCE)
    assert_equal_training(spread, trained.again(exactly(chosen.testing.reference(spec))), tolerance)


@pytest.mark.torch
@pytest.mark.parametrize("model", SMALL)
def test_each_layer_keeps_what_it_says(model: str) -> None:
    torch = pytest.importorskip("torch")
    from paceline.frameworks.torch.model import build_module, torch_state

    layers, shape = spec_layers(small(model))
    facts = model_facts(layers, shape)
    module = build_module(layers, shape, channels_last=True)
    module.load_state_dict(torch_state(layers, shape, initial_weights(layers, shape, 0), channels_last=True))
    tokens = len(shape) == 1
    given = torch.randint(40, (2, *shape)) if tokens else torch.randn(2, *shape)
    for layer, part in zip(facts.layers, (part for part in module if not isinstance(part, torch.nn.ReLU)), strict=True):
        inputs = given if not given.is_floating_point() else given.detach().clone().requires_grad_()
        given, kept = part(inputs), saved_elements(torch, part, inputs)
        # On CPU an RMS norm keeps its quotient too, which it does not on a GPU; blocks share rotations.
        beside = {"LlamaModule": 2 * 32 + 16, "MoeModule": 2 * 32 + 16, "RMSNorm": 32}.get(type(part).__name__, 0)
        length = shape[0] if tokens else 1
        assert kept - beside * length == pytest.approx(layer.kept, rel=0.02), layer.name


def saved_elements(torch: Any, part: Any, inputs: Any) -> int:
    """Numbers of four bytes that autograd keeps of one of the two samples, and the output."""
    apart = {parameter.untyped_storage()._cdata for parameter in part.parameters()} | {inputs.untyped_storage()._cdata}
    kept: dict[int, Any] = {}

    def keep(tensor: Any) -> Any:
        kept.setdefault(tensor.untyped_storage()._cdata, tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        output = part(inputs)
    if output.untyped_storage()._cdata not in apart:
        kept.setdefault(output.untyped_storage()._cdata, output)
    counted = [tensor.untyped_storage().nbytes() for number, tensor in kept.items() if number not in apart]
    return sum(counted) // 4 // 2 + (inputs.numel() // 2 if not inputs.is_floating_point() else 0)
