"""The noise of gradients: each strategy that measures it finds the same, whatever else the run does with gradients."""

from pathlib import Path
from typing import Any

import pytest

from paceline.plan import complete, refusal
from paceline.record import GradientNoise
from paceline.runs.probe import probe
from paceline.spec import ModelFile, RunSpec
from paceline.systems import local_system

pytestmark = pytest.mark.torch

# A rate that is zero in single precision: all runs look at gradients of the same weights.
STILL: dict[str, Any] = {"optimizer": {"name": "sgd", "lr": 1e-50}, "steps": 16, "noise_scale": True}
TWO: dict[str, Any] = {"strategy": "torch-ddp", "workers": 2}
FROZEN = """
from torch import nn


def build():
    layers = nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))
    layers[1].requires_grad_(False)
    return layers
"""


def noise(trained: Any, **fields: Any) -> GradientNoise:
    found = trained("mnist-small", **STILL, **fields).record.epochs[0].noise
    assert found is not None
    # At first every third one is measured.
    assert found.steps == len(range(0, STILL["steps"], 3))
    return found


def assert_alike(found: GradientNoise, expected: GradientNoise, rel: float = 1e-5) -> None:
    assert (found.small_batch, found.big_batch) == (expected.small_batch, expected.big_batch)
    assert found.small_square == pytest.approx(expected.small_square, rel=rel)
    assert found.big_square == pytest.approx(expected.big_square, rel=rel)


def test_a_divided_optimizer_sees_the_same_noise_as_a_whole_one(trained: Any) -> None:
    assert_alike(noise(trained, strategy="torch-zero", workers=2), noise(trained, **TWO))


def test_one_worker_with_two_passes_sees_that_of_two_workers(trained: Any) -> None:
    alone, two = noise(trained, strategy="torch-single", accumulation=2), noise(trained, **TWO)
    assert alone.big_square == pytest.approx(two.big_square, rel=1e-4)
    # It looks at one of the two parts of each batch.
    assert alone.small_square == pytest.approx(two.small_square, rel=0.25)
    assert alone.small_square != pytest.approx(two.small_square, rel=1e-6)


@pytest.mark.parametrize("fields", [{"clip": 1e-3}, {"accumulation": 2}], ids=["clipped", "accumulated"])
def test_what_is_done_with_gradients_later_changes_nothing(trained: Any, fields: dict[str, Any]) -> None:
    assert_alike(noise(trained, **TWO, **fields), noise(trained, **TWO))


@pytest.mark.parametrize("precision", ["bf16", "bf16-pure"])
def test_gradients_in_two_bytes_are_squared_in_four(trained: Any, precision: str) -> None:
    halves, whole = noise(trained, **TWO, precision=precision), noise(trained, **TWO)
    assert_alike(halves, whole, rel=0.05)
    # The difference of the two squares is what the variance is made of.
    apart = [found.small_square - found.big_square for found in (halves, whole)]
    assert apart[0] == pytest.approx(apart[1], rel=0.1)


def test_frozen_parameters_have_no_part_in_it(tmp_path: Path, trained: Any) -> None:
    source = tmp_path / "frozen.py"
    source.write_text(FROZEN)
    model = ModelFile.from_text(str(source))
    run = RunSpec(model=model, workload="frozen.py", dataset="mnist-5k", global_batch=64, **STILL)
    whole = trained.again(complete(run.model_copy(update={"strategy": "torch-single", "accumulation": 2})))
    spread = trained.again(complete(run.model_copy(update=TWO)))
    alone, two = (found.record.epochs[0].noise for found in (whole, spread))
    assert alone.big_square == pytest.approx(two.big_square, rel=1e-4)
    assert alone.small_square == pytest.approx(two.small_square, rel=0.3)


def test_as_few_steps_are_measured_as_the_time_of_looking_asks_for() -> None:
    noise_module = pytest.importorskip("paceline.frameworks.torch.gradients.noise", reason="PyTorch is not installed")
    for look_seconds, wanted in ((0.1, 25), (0.001, 3)):
        rhythm = noise_module.Rhythm()
        for number in range(noise_module.TIMED_STEPS):
            assert rhythm.measures == (number % 3 == 0)
            if rhythm.measures:
                rhythm.add_look(look_seconds)
            is_timed = rhythm.end_step(1.0)
        assert is_timed
        assert rhythm.wanted() == wanted


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"strategy": "torch-single"}, "there is one pass; use accumulation 2 or more, or more workers"),
        ({**TWO, "execution": "compiled"}, "noise_scale of torch-ddp was not tried with execution; leave execution"),
        ({**TWO, "knobs": {"compression": "powersgd"}}, "looks at gradients as they are; leave compression out"),
        ({"strategy": "jax-data", "workers": 2}, "jax-data does not measure the noise of its gradients; leave"),
        ({"strategy": "torch-fsdp", "workers": 2}, "use torch-ddp, torch-single, torch-zero"),
    ],
)
def test_where_noise_is_not_measured_the_run_is_refused_in_words(fields: dict[str, Any], words: str) -> None:
    spec = complete(RunSpec(global_batch=64, steps=1, noise_scale=True, **fields))
    assert words in (refusal(spec, local_system(), probe) or "")
