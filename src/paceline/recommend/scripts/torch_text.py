"""A run's model and optimizer as PyTorch source."""

from collections.abc import Mapping
from typing import Any

from paceline.recommend.scripts.base import Source, unknown_layer
from paceline.recommend.scripts.layout import call, listed, repeated_items
from paceline.spec import Optimizer, RunSpec
from paceline.workloads.base import Layers, named_layers, relu_places
from paceline.workloads.layers import NORM_EPSILON, Block, Conv, Dense, Embed, Flatten, Layer, MaxPool, Norm, Shape
from paceline.workloads.transformer_layers import Linear, LlamaBlock, RmsNorm, TiedHead, TokenEmbed

# As in NVIDIA's DGX and HGX machines, and in what clouds offer.
GPUS_OF_A_MACHINE = 8


def torch_values(source: Source) -> Mapping[str, Any]:
    """What the templates of PyTorch scripts are filled with, by name."""
    spec = source.spec
    layers = source.built_in[0] if spec.model is None else ()
    llama = next((layer for layer in layers if type(layer) is LlamaBlock), None)
    sequences = llama is not None or any(isinstance(layer, Block) for layer in layers)
    return {
        "model": model_text(*source.built_in) if layers else "",
        "is_llama": llama is not None,
        "theta": llama.theta if llama is not None else None,
        "is_tied": any(layer.tied for layer in layers),
        # Whether a worker may have a part of each sequence.
        "has_stretches": False,
        "has_pooling": any(isinstance(layer, MaxPool) for layer in layers),
        "has_blocks": sequences,
        "optimizer": optimizer_text(spec.optimizer, "parameters", fused=True),
        # Whether parameters come in groups of their own.
        "comes_in_groups": False,
        # Whether a worker may have nothing to update.
        "may_lack_parameters": False,
        "channels_last": source.has_images and spec.memory_format == "channels_last",
        "is_bf16": spec.precision == "bf16",
        "allows_tf32": spec.precision != "fp32",
        "is_compiled": spec.execution == "compiled",
        "called": "compiled" if spec.execution == "compiled" else "model",
        "channels_at_end": False,
        # Whether a user's file is loaded with the script, or later.
        "is_global": True,
        **({"loss": "functional.cross_entropy"} if layers and not sequences else {}),
    }


def model_text(layers: Layers, shape: Shape) -> str:
    """The statement that returns the model, or where more is to be done that makes it."""
    begins = "model =" if any(layer.tied for layer in layers) else "return"
    return listed(f"{begins} nn.Sequential(", repeated_items(module_lines(layers, shape)), ")", indent=4)


def module_lines(layers: Layers, shape: Shape) -> list[str]:
    """The items of an `nn.Sequential`; pooling comes before ReLU."""
    relus = relu_places(layers, shape)
    lines = []
    for name, layer, input_shape in named_layers(layers, shape):
        lines.append(module_line(layer, input_shape))
        if name in relus:
            lines.append("nn.ReLU()")
    return lines


def module_names(layers: Layers, shape: Shape) -> list[str]:
    """Under which name each neutral layer is in the `nn.Sequential`; the ReLUs between them have numbers too."""
    relus, numbers, next_number = relu_places(layers, shape), [], 0
    for name, _, _ in named_layers(layers, shape):
        numbers.append(str(next_number))
        next_number += 2 if name in relus else 1
    return numbers


def module_line(layer: Layer, shape: Shape) -> str:  # noqa: PLR0911 - one per kind of layer
    """The expression that makes a layer whose input has this shape."""
    match layer:
        case Conv(channels, kernel):
            return f'nn.Conv2d({shape[0]}, {channels}, {kernel}, padding="same")'
        case MaxPool(size):
            return f"nn.MaxPool2d({size})"
        case Flatten():
            return "nn.Flatten()"
        case Dense(units):
            return f"nn.Linear({shape[-1]}, {units})"
        case Embed(vocabulary, width):
            return f"Embedding({vocabulary}, {width}, length={shape[0]})"
        case Norm():
            return f"nn.LayerNorm({shape[-1]})"
        case Block(heads):
            return f"Block({shape[-1]}, heads={heads})"
        case TokenEmbed(vocabulary, width):
            return f"Embedding({vocabulary}, {width})"
        case RmsNorm():
            return f"nn.RMSNorm({shape[-1]}, {NORM_EPSILON!r})"
        case Linear(units):
            return f"nn.Linear({shape[-1]}, {units}, bias=False)"
        case TiedHead(vocabulary, bias=False):
            return f"nn.Linear({shape[-1]}, {vocabulary}, bias=False)"
        case LlamaBlock(heads, kv_heads, hidden) if type(layer) is LlamaBlock:
            return call("Block(", [str(shape[-1]), f"heads={heads}", f"kv_heads={kv_heads}", f"hidden={hidden}"])
    raise unknown_layer("PyTorch", layer)


def optimizer_text(settings: Optimizer, parameters: str, fused: bool) -> str:
    """The statement that returns the optimizer."""
    kind, options = optimizer_call(settings, fused)
    return call(f"return torch.optim.{kind}(", [parameters, *options], indent=4)


def optimizer_call(settings: Optimizer, fused: bool) -> tuple[str, list[str]]:
    """The class in `torch.optim` and its settings; `fused` where it has that form for the tensors at hand."""
    options = [f"lr={settings.lr!r}"]
    if settings.name == "sgd":
        options += [f"momentum={settings.momentum!r}"] if settings.momentum else []
    else:
        options += [f"betas={settings.betas!r}"] if settings.update_name == "adam" else []
        options += [f"eps={settings.eps!r}"]
    # AdamW's own default is to decay.
    decays = settings.weight_decay or settings.name == "adamw"
    options += [f"weight_decay={settings.weight_decay!r}"] if decays else []
    options += ["fused=True"] if settings.update_name == "adam" or (settings.name == "sgd" and fused) else []
    return {"adam": "Adam", "adamw": "AdamW", "sgd": "SGD", "adagrad": "Adagrad"}[settings.name], options


def torchrun(spec: RunSpec, file_name: str) -> str:
    """The command that starts all workers of one machine."""
    if machines(spec) == 1:
        return f"{threads(spec)}torchrun --standalone --nproc-per-node {spec.workers} {file_name}"
    sizes = f"--nnodes {machines(spec)} --nproc-per-node {GPUS_OF_A_MACHINE}"
    return f"torchrun {sizes} --rdzv-backend c10d --rdzv-endpoint HOST:29500 {file_name}"


def on_several_machines(spec: RunSpec) -> str:
    """What to do where not all workers are on one machine."""
    if machines(spec) > 1:
        return (
            f"Start it so on each of {machines(spec)} machines with {GPUS_OF_A_MACHINE} GPUs, or change the numbers; "
            f"HOST is one of them."
        )
    return (
        "On several machines, start it on each with --nnodes, --nproc-per-node for that machine, --rdzv-backend c10d "
        "and --rdzv-endpoint HOST:29500 in place of --standalone, where HOST is one of them."
    )


def machines(spec: RunSpec) -> int:
    """Machines that the workers fill; one where they do not fill whole machines."""
    whole, left = divmod(spec.workers, GPUS_OF_A_MACHINE)
    return whole if spec.device != "cpu" and not left else 1


def alone(spec: RunSpec, file_name: str) -> str:
    """The command that starts one process."""
    return f"{threads(spec)}python {file_name}"


def threads(spec: RunSpec) -> str:
    """Each worker computes with as many threads as it had cores."""
    return f"OMP_NUM_THREADS={spec.cores_per_worker} " if spec.device == "cpu" else ""
