"""What every template is given: the docstring, the constants at the top, and where the data come from."""

from collections.abc import Iterator, Mapping
from importlib import metadata, resources
from typing import Any

from paceline.data import synthetic, text, tokens
from paceline.data.base import EVALUATION_BATCH
from paceline.data.mnist import cache_folder, find_folder
from paceline.recommend.scripts.base import Script, Source
from paceline.recommend.scripts.layout import assignment, call, prose
from paceline.recommend.scripts.recipe_text import recipe_values
from paceline.runs.devices import TUNED_ALLOCATOR
from paceline.spec import Optimizer, RunSpec
from paceline.units import format_count

ABOUT_MEMORY = "The exports keep the C library from giving memory back, and fetching it again, in every step."
USUAL_STEPS_PER_LINE, LINES_OF_A_SHORT_RUN = 10, 20


def values_of(source: Source, script: Script, file_name: str, why: str) -> Mapping[str, Any]:
    """What every template is filled with, by name."""
    spec = source.spec
    return {
        "spec": spec,
        "call": call,
        "knobs": source.knobs,
        "docstring": docstring(source, script, file_name, why),
        "constants": list(constants(source, script)),
        "user_model": spec.model is not None,
        "user_functions": source.user_functions,
        "build": f"user_file.{spec.model.function}()" if spec.model is not None else "build()",
        "loss": "user_file.loss" if "loss" in source.user_functions else "cross_entropy",
        # Accuracy is told where classes are predicted, which a loss of the user's own need not mean.
        "counts_right": "loss" not in source.user_functions,
        "make_optimizer": "user_file.optimizer" if "optimizer" in source.user_functions else "make_optimizer",
        "total_steps": "EPOCHS * steps" if spec.epochs is not None else "STEPS",
        **recipe_values(source),
        "turns_images": source.turns_images,
        "synthetic": synthetic,
        "tokens": tokens,
        "text": text,
    }


def docstring(source: Source, script: Script, file_name: str, why: str) -> str:
    """What the script is, how it is started, what it was chosen with."""
    spec = source.spec
    data = "data of its own" if spec.dataset == "own" else spec.dataset
    parts = [
        f"Trains {spec.workload} on {data} with {spec.strategy}.",
        prose(f"It is {script.about.format(workers=spec.workers)}. Start it with"),
        "\n".join(f"    {line}" for line in [*environment(spec), script.start(spec, file_name)]),
        prose(f"{ABOUT_MEMORY if environment(spec) else ''} {script.notes(spec)}".strip()),
        prose(f"Chosen with {chosen_with(spec)}. {why}".strip()),
        prose(f"Written by Paceline {metadata.version('paceline')}, which it does not need; it is yours to change."),
    ]
    return "\n\n".join(part for part in parts if part)


def environment(spec: RunSpec) -> list[str]:
    """What a run on CPU has set and a script cannot set for itself."""
    if spec.device != "cpu" or spec.allocator != "tuned":
        return []
    first, second, third = (f"{name}={value}" for name, value in TUNED_ALLOCATOR.items())
    return [f"export {first} {second}", f"export {third}"]


def chosen_with(spec: RunSpec) -> str:
    """The numbers of the run in a row."""
    batch = f"global batch {spec.global_batch}" if spec.global_batch else f"local batch {spec.local_batch}"
    length = format_count(spec.epochs, "epoch") if spec.epochs else format_count(spec.steps or 0, "step")
    words = [spec.strategy, format_count(spec.workers, "worker"), batch, *optimizer_words(spec.optimizer)]
    words += [spec.precision, spec.execution, length, f"seed {spec.seed}"]
    words += [f"{name} {value}" for name, value in {**spec.options, **spec.settings}.items()]
    return ", ".join(words)


def optimizer_words(optimizer: Optimizer) -> Iterator[str]:
    """An optimizer's name and rate, and what of it is not as usual."""
    yield f"{optimizer.name} at rate {optimizer.lr:g}"
    if optimizer.momentum:
        yield f"momentum {optimizer.momentum:g}"
    if optimizer.weight_decay:
        yield f"weight decay {optimizer.weight_decay:g}{' of matrices' if optimizer.weight_decay_on != 'all' else ''}"
    if optimizer.schedule == "step":
        yield f"schedule step ({optimizer.step_factor:g} every {format_count(optimizer.step_every or 1, 'step')})"
    elif optimizer.schedule != "constant":
        yield f"schedule {optimizer.schedule}{f' to {optimizer.final_lr:g}' if optimizer.final_lr else ''}"
    if optimizer.warmup_steps:
        yield f"{optimizer.warmup_steps} warm-up steps"


def constants(source: Source, script: Script) -> Iterator[str]:
    """Assignments, with a comment above those that need one."""
    spec = source.spec
    yield f"GLOBAL_BATCH = {spec.global_batch}" if spec.global_batch else f"LOCAL_BATCH = {spec.local_batch}"
    yield f"EPOCHS = {spec.epochs}" if spec.epochs else f"STEPS = {spec.steps}"
    yield f"SEED = {spec.seed}"
    if spec.dataset_copies > 1:
        yield "# The data set is gone through this many times in an epoch."
        yield f"COPIES = {spec.dataset_copies}"
    yield from _data_sizes(spec)
    if script.tests:
        yield f"TEST_BATCH = {EVALUATION_BATCH}"
    yield f"LOG_EVERY = {steps_per_line(spec)}"
    yield from _places(source)


def _data_sizes(spec: RunSpec) -> Iterator[str]:
    """Sizes of the data: of synthetic data all that decides them, of others how many samples are used."""
    if spec.dataset == "synthetic":
        yield f"TRAIN_SAMPLES = {spec.train_samples or synthetic.DEFAULT_TRAIN_SAMPLES}"
        yield f"INPUT_SHAPE = {spec.input_shape or synthetic.DEFAULT_SHAPE}"
        yield f"CLASSES = {spec.classes or synthetic.DEFAULT_CLASSES}"
    elif spec.dataset == "tokens":
        yield f"TRAIN_SAMPLES = {spec.train_samples or tokens.DEFAULT_TRAIN_SAMPLES}"
        yield f"LENGTH = {(spec.input_shape or (tokens.DEFAULT_LENGTH,))[0]}"
        yield f"CLASSES = {spec.classes or tokens.DEFAULT_VOCABULARY}"
    elif spec.dataset == "text":
        yield f"LENGTH = {(spec.input_shape or (text.DEFAULT_LENGTH,))[0]}"
    if spec.train_samples is not None and spec.dataset not in ("synthetic", "tokens"):
        yield f"TRAIN_SAMPLES = {spec.train_samples}"


def steps_per_line(spec: RunSpec) -> int:
    """A short run tells more often, so that there is something to see."""
    return min(USUAL_STEPS_PER_LINE, max(1, spec.steps // LINES_OF_A_SHORT_RUN)) if spec.steps else USUAL_STEPS_PER_LINE


def _places(source: Source) -> Iterator[str]:
    """Files that the script reads."""
    spec = source.spec
    if spec.model is not None:
        yield "# Your model; the file may lie anywhere."
        yield assignment("MODEL_FILE", _quoted(str(spec.model.path)))
    if spec.dataset == "mnist-5k":
        yield "# 5,000 + 1,000 digits of MNIST that came with Paceline; take the file along."
        yield assignment("DATA_FILE", _quoted(str(resources.files("paceline.data") / "mnist_5k.xz")))
    if spec.dataset == "text":
        yield "# Chapters of Moby-Dick that came with Paceline; take the file along."
        yield assignment("DATA_FILE", _quoted(str(resources.files("paceline.data") / "text.xz")))
    if spec.dataset == "mnist":
        yield "# The folder with the four files of MNIST (LeCun, Cortes, Burges)."
        yield assignment("DATA_FOLDER", _quoted(str(find_folder() or cache_folder())))


def _quoted(text: str) -> str:
    """A string literal in double quotes, as formatters write it."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
