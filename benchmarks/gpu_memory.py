"""How far traced peaks of GPU memory are from measured ones, on models of all kinds; needs a CUDA device.

python benchmarks/gpu_memory.py [--seconds 140] [--only NAME,...] [--trace-only] > peaks.jsonl

Each configuration is run for three steps and an evaluation by Paceline's own job, in a process of its own, and traced
in another one that does not see the GPU. One JSON line for each, and one with the errors of all. The models at the end
of this file are written for this benchmark: nothing in the trace was made with an eye on them.
"""

import argparse
import json
import os
import socket
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch import Tensor, nn

STEPS = 3
TRACERS = 6
IMAGES = {"dataset": "synthetic", "input_shape": (3, 224, 224), "classes": 1000, "train_samples": 256}
SMALL_IMAGES = {"dataset": "synthetic", "input_shape": (3, 96, 96), "classes": 100, "train_samples": 512}
TEXT = {"dataset": "tokens", "input_shape": (512,), "classes": 8000, "train_samples": 128}
SGD = {"name": "sgd", "momentum": 0.9, "lr": 0.01}
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "gpt bf16": {
        "workload": "gpt", "dataset": "tokens", "input_shape": (1024,), "classes": 50257, "train_samples": 128,
        "precision": "bf16", "global_batch": 12,
    },
    "gpt bf16 full": {
        "workload": "gpt", "options": {"width": 512, "depth": 8, "heads": 8}, "dataset": "tokens",
        "input_shape": (1024,), "classes": 4096, "train_samples": 128, "precision": "bf16", "global_batch": 32,
        "recompute": "full",
    },
    "gpt bf16 selective": {
        "workload": "gpt", "options": {"width": 512, "depth": 8, "heads": 8}, "dataset": "tokens",
        "input_shape": (1024,), "classes": 4096, "train_samples": 128, "precision": "bf16", "global_batch": 32,
        "recompute": "selective",
    },
    "gpt bf16 ddp": {
        "workload": "gpt", "options": {"width": 768, "depth": 6, "heads": 12}, "dataset": "tokens",
        "input_shape": (512,), "classes": 16384, "train_samples": 128, "precision": "bf16", "global_batch": 16,
        "strategy": "torch-ddp",
    },
    "llama bf16": {
        "workload": "llama", "options": {"width": 768, "depth": 6, "heads": 12, "kv_heads": 4}, **TEXT,
        "precision": "bf16", "global_batch": 24,
    },
    "llama bf16-pure": {
        "workload": "llama", "options": {"width": 768, "depth": 6, "heads": 12, "kv_heads": 4}, **TEXT,
        "precision": "bf16-pure", "global_batch": 24,
    },
    "bert tf32": {
        "workload": "bert", "options": {"depth": 4}, "train_samples": 64, "precision": "tf32", "global_batch": 16,
    },
    "vit bf16": {"workload": "vit", "options": {"depth": 6}, **IMAGES, "precision": "bf16", "global_batch": 64},
    "resnet bf16 sgd": {"workload": "resnet", **IMAGES, "precision": "bf16", "global_batch": 96, "optimizer": SGD},
    "resnet tf32": {"workload": "resnet", "options": {"depth": 18}, **IMAGES, "precision": "tf32", "global_batch": 64},
    "mlp fp32": {"workload": "mlp", "options": {"width": 4096, "depth": 6}, "precision": "fp32", "global_batch": 4096},
    "mnist-large tf32": {"workload": "mnist-large", "precision": "tf32", "global_batch": 512},
    "mnist-large fp32": {"workload": "mnist-large", "precision": "fp32", "global_batch": 512},
    "own convnet bf16": {"model": "convnet", **SMALL_IMAGES, "precision": "bf16", "global_batch": 256},
    "own convnet tf32 sgd": {
        "model": "convnet", **SMALL_IMAGES, "precision": "tf32", "global_batch": 256, "optimizer": SGD,
    },
    "own encoder bf16": {"model": "encoder", **TEXT, "precision": "bf16", "global_batch": 32},
    "own encoder fp32": {"model": "encoder", **TEXT, "precision": "fp32", "global_batch": 16},
    "own mixer bf16": {"model": "mixer", **SMALL_IMAGES, "precision": "bf16", "global_batch": 256},
    "own decoder bf16": {"model": "decoder", **TEXT, "precision": "bf16", "global_batch": 24},
    "own decoder fp16 clip": {"model": "decoder", **TEXT, "precision": "fp16", "global_batch": 24, "clip": 1.0},
}  # fmt: skip


def spec_of(fields: dict[str, Any]) -> Any:
    """The run of a configuration."""
    from paceline.plan import complete
    from paceline.spec import ModelFile, RunSpec

    if "model" in fields:
        fields = {**fields, "model": ModelFile.from_text(f"{Path(__file__).resolve()}:{fields['model']}")}
    return complete(RunSpec.parse({"device": "cuda", "steps": STEPS, **fields}, "configuration"))


def in_child(function: Callable[[], Any]) -> Any:
    """What a function gives in a fork of this process; an exception becomes its text."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        try:
            answer: Any = function()
        except BaseException as error:
            answer = f"{type(error).__name__}: {error}"[:400]
        os.write(writer, json.dumps(answer).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else "the process died"


def measured_peak(fields: dict[str, Any]) -> float:
    """Bytes that PyTorch's allocator had given out at most, of a real run."""
    from paceline.contract.context import Context, Process, Rendezvous
    from paceline.runs.measure import train
    from paceline.strategies import strategy

    spec = spec_of(fields)
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    context = Context(spec, Process(0, 1, "worker", 0, (0,)), Rendezvous("127.0.0.1", port))
    job = strategy(spec.strategy).open_job(context)
    train(job, context.order.schedule(None, STEPS), spec.samples_per_step, lambda _event: None)  # type: ignore[arg-type]
    return float(torch.cuda.max_memory_allocated())


def traced_peak(fields: dict[str, Any]) -> dict[str, float]:
    """Bytes of the same run as its strategy puts them together from a traced step, and seconds that tracing took."""
    from paceline.contract.context import spec_facts
    from paceline.costs.footprint import ModelFacts
    from paceline.costs.layers import LayerFacts
    from paceline.frameworks.torch.trace.step import trace_step
    from paceline.runs.trace import one_step
    from paceline.strategies import strategy
    from paceline.systems.gpu_memory import GpuMemory

    began, spec = time.process_time(), spec_of(fields)
    memory = trace_step(one_step(spec), GpuMemory()).memory
    peak = memory.peak_bytes()
    if spec.strategy != "torch-single":
        chosen = strategy(spec.strategy)
        facts = spec_facts(spec) if spec.model is None else ModelFacts((LayerFacts("model", 1, 1, 1),))
        peak = max(chosen.traits.peaks.of(spec, facts, chosen.footprint(spec, facts), memory))
    return {"bytes": peak, "seconds": time.process_time() - began}


def main() -> None:
    """Traces all configurations beside each other while one after another runs on the GPU."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=140.0)
    parser.add_argument("--only", default="")
    parser.add_argument("--trace-only", action="store_true")
    options = parser.parse_args()
    chosen = {
        name: fields
        for name, fields in CONFIGURATIONS.items()
        if not options.only or any(word in name for word in options.only.split(","))
    }
    began, errors = time.monotonic(), dict[str, float]()
    with ThreadPoolExecutor(1 if options.trace_only else TRACERS) as pool:
        traces = {
            name: pool.submit(in_child, lambda fields=fields: traced_peak(fields))  # type: ignore[misc]
            for name, fields in chosen.items()
        }
        for name, fields in chosen.items():
            late = time.monotonic() - began > options.seconds
            measured = (
                "not run" if options.trace_only or late else in_child(lambda fields=fields: measured_peak(fields))  # type: ignore[misc]
            )
            traced = traces[name].result()
            row = {"name": name, "traced": traced, "measured": measured}
            if isinstance(measured, float) and isinstance(traced, dict):
                row["error"] = errors[name] = traced["bytes"] / measured - 1
            print(json.dumps(row), flush=True)
    if errors:
        sizes = [abs(error) for error in errors.values()]
        print(json.dumps({"mean": mean(sizes), "worst": max(sizes), "count": len(sizes)}), flush=True)


class Residual(nn.Module):  # type: ignore[misc]
    """Two convolutions with batch norms, beside what goes in."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.Conv2d(inside, outside, 3, stride, 1, bias=False), nn.BatchNorm2d(outside), nn.ReLU(inplace=True)
        )
        self.second = nn.Sequential(nn.Conv2d(outside, outside, 3, 1, 1, bias=False), nn.BatchNorm2d(outside))
        self.beside = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

    def forward(self, x: Tensor) -> Tensor:
        """(n, inside, h, w) to (n, outside, h / stride, w / stride)."""
        return nn.functional.relu(self.second(self.first(x)) + self.beside(x))


def convnet() -> nn.Module:
    """A residual network with batch norms and dropout."""
    widths = (64, 64, 128, 256, 512)
    blocks = [Residual(a, b, 1 if place == 0 else 2) for place, (a, b) in enumerate(pairwise(widths))]
    stem = nn.Sequential(nn.Conv2d(3, 64, 7, 2, 3), nn.BatchNorm2d(64), nn.SiLU(), nn.AvgPool2d(2))
    return nn.Sequential(stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.3), nn.Linear(512, 100))


class Encoder(nn.Module):  # type: ignore[misc]
    """PyTorch's own encoder layers, with their dropout, over tokens."""

    def __init__(self, vocabulary: int = 8000, width: int = 512, depth: int = 6) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Parameter(torch.zeros(512, width))
        layer = nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.1, activation="gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, depth)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        """(n, length) to (n, length, vocabulary)."""
        return self.head(self.encoder(self.tokens(tokens) + self.places[: tokens.shape[1]]))


def encoder() -> nn.Module:
    """The encoder."""
    return Encoder()


class Mixing(nn.Module):  # type: ignore[misc]
    """Dense layers over positions, then over channels (Tolstikhin et al., 2021)."""

    def __init__(self, places: int, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.over_places = nn.Sequential(nn.Linear(places, 2 * places), nn.GELU(), nn.Linear(2 * places, places))
        self.over_channels = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Dropout(0.1), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """(n, places, width) to the same."""
        x = x + self.over_places(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.over_channels(self.norm2(x))


class Mixer(nn.Module):  # type: ignore[misc]
    """Patches of 8 x 8 pixels, mixed."""

    def __init__(self, width: int = 384, depth: int = 8) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 8, 8)
        self.blocks = nn.ModuleList(Mixing(144, width) for _ in range(depth))
        self.head = nn.Linear(width, 100)

    def forward(self, images: Tensor) -> Tensor:
        """(n, 3, 96, 96) to (n, 100)."""
        x = self.patches(images).flatten(2).transpose(1, 2)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


def mixer() -> nn.Module:
    """The mixer."""
    return Mixer()


class Decoding(nn.Module):  # type: ignore[misc]
    """A block in the style of GPT-2 with dropout everywhere, its attention written out as people do."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.joined, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.network = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        """(n, length, width) to the same."""
        n, length, width = x.shape
        q, k, v = (
            part.view(n, length, self.heads, -1).transpose(1, 2) for part in self.joined(self.norm1(x)).split(width, 2)
        )
        scores = (q @ k.transpose(-2, -1)) / (width // self.heads) ** 0.5
        hidden = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        shares = self.drop(scores.masked_fill(hidden, float("-inf")).softmax(-1))
        x = x + self.drop(self.out((shares @ v).transpose(1, 2).reshape(n, length, width)))
        return x + self.drop(self.network(self.norm2(x)))


class Decoder(nn.Module):  # type: ignore[misc]
    """A causal language model whose head is its table of tokens."""

    def __init__(self, vocabulary: int = 8000, width: int = 512, depth: int = 5) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(512, width)
        self.blocks = nn.ModuleList(Decoding(width, 8) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """(n, length) to (n, length, vocabulary)."""
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def decoder() -> nn.Module:
    """The decoder."""
    return Decoder()


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))
    main()
