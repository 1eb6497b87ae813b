"""Examples of `examples/` that need training libraries beside a framework, each from a folder of its own.

`make soak` runs those whose libraries are installed: pip install -c constraints.txt '.[examples]'.
"""

import importlib.util
import re
import shutil
from pathlib import Path

import pytest

from integration.conftest import Tool

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"

pytestmark = pytest.mark.soak


def copied(example: str, tool: Tool, *libraries: str) -> Path:
    """The example in the tool's folder; skips where a library is missing."""
    for name in libraries:
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed: pip install -c constraints.txt '.[examples]'")
    folder = tool.folder / example
    shutil.copytree(EXAMPLES / example, folder)
    return folder


@pytest.mark.parametrize(
    ("example", "libraries", "words"),
    [
        ("lightning", ("torch", "lightning"), ("--workers", "1,2", "--breakdown")),
        ("hf_trainer", ("torch", "transformers", "accelerate"), ("--workers", "1,2", "--breakdown")),
        ("accelerate", ("torch", "accelerate"), ("--workers", "1,2", "--breakdown")),
        ("keras_fit", ("tensorflow",), ()),
    ],
)
def test_samples_of_a_script_are_those_that_its_library_prints(
    tool: Tool, example: str, libraries: tuple[str, ...], words: tuple[str, ...]
) -> None:
    script = copied(example, tool, *libraries) / "train.py"
    ended = tool("run", script, *words)
    assert ended.code == 0, ended.said + "".join(record.log_tail for record in tool.records())
    for record in tool.records():
        if record.spec.instrumented:
            assert len(record.breakdown) == record.spec.workers
            for rank in record.breakdown:
                assert min(rank.forward, rank.backward, rank.optimizer, rank.input) > 0
                assert rank.other >= 0 and (rank.sent_bytes > 0) == (record.spec.workers > 1)
            continue
        printed = re.findall(r"samples/s ([\d.]+)", record.log_tail)
        assert record.ranks[0].details["steps_from"] == "callback" and record.steady is not None
        assert record.steady.samples_per_second == pytest.approx(float(printed[-1]), rel=0.02)


@pytest.mark.parametrize(
    ("example", "file", "libraries", "strategies"),
    [
        ("huggingface", "gpt2.py", ("torch", "transformers"), "torch-single,torch-ddp,torch-zero,torch-fsdp"),
        ("huggingface", "bert.py", ("torch", "transformers"), "torch-single,torch-ddp,torch-fsdp"),
        ("timm", "vit.py", ("torch", "timm"), "torch-single,torch-ddp,torch-fsdp"),
        ("lightning", "train.py:Classifier", ("torch", "lightning"), "torch-single,torch-ddp,torch-zero,torch-fsdp"),
        ("memmap", "model.py", ("torch",), "torch-single,torch-ddp"),
        ("flax", "network.py", ("jax", "flax", "optax"), "jax-single,jax-data"),
    ],
)
def test_a_model_trains_alike_on_one_worker_and_on_two(
    tool: Tool, example: str, file: str, libraries: tuple[str, ...], strategies: str
) -> None:
    tool.more["DATA_FOLDER"] = str(tool.folder)
    model = f"{copied(example, tool, *libraries)}/{file}"
    words = ("--workers", "1,2", "--global-batch", "16", "--steps", "6")
    ended = tool("run", "--model", model, "--strategy", strategies, *words)
    assert ended.code == 0, ended.said
    trained = [record for record in tool.records() if record.ok]
    (alone,) = [record for record in trained if record.spec.strategy.endswith("-single")]
    assert {record.spec.strategy for record in trained} == set(strategies.split(","))
    assert alone.losses[-1] is not None and alone.losses[0] is not None and alone.losses[-1] != alone.losses[0]
    for record in trained:
        assert record.losses == pytest.approx(alone.losses, rel=1e-3)
