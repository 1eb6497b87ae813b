"""Options of commands ─► fields of a study."""

import json
from typing import TYPE_CHECKING, Any

from paceline.errors import SpecError
from paceline.plan import expand_strategies
from paceline.spec import ModelFile, Scalar
from paceline.units import parse_seconds, parse_shape, parse_whole_numbers

if TYPE_CHECKING:
    from paceline.cli.run_options import TrainingOptions

# Options that take several names, several numbers, or one number, and have the name of the field they set.
NAMES = ("workload", "dataset", "strategy", "precision", "execution", "memory_format", "device", "transport",
         "allocator", "recompute", "reduction", "link", "batch_norm", "dropout")  # fmt: skip
NUMBERS = (
    "dataset_copies", "train_samples", "workers", "seed", "global_batch", "local_batch", "cores_per_worker",
    "accumulation", "checkpoint_every", "loader_workers", "prefetch",
)  # fmt: skip
SWITCHES = ("offload", "pin_memory")
SINGLE_NUMBERS = ("epochs", "steps", "classes", "slices", "clip", "target_accuracy", "target_loss")


def study_fields(options: "TrainingOptions") -> dict[str, Any]:
    """The fields that options set; comma-separated values become lists, which are factors of the study."""
    values = {name: value for name, value in vars(options).items() if value is not None}
    fields: dict[str, Any] = {name: values[name] for name in SINGLE_NUMBERS if name in values}
    fields |= {name: split_words(values[name]) for name in NAMES if name in values}
    for name in NUMBERS:
        if name in values:
            fields[name] = parse_whole_numbers(values[name], "--" + name.replace("_", "-"))
    if "strategy" in fields:
        fields["strategy"] = expand_strategies(fields["strategy"])
    for name in SWITCHES:
        if name in values:
            fields[name] = [_scalar(word) for word in split_words(values[name])]
    if options.noise_scale:
        fields["noise_scale"] = True
    if options.checkpoint_to is not None:
        fields["checkpoint_to"] = str(options.checkpoint_to.resolve())
    if options.membership is not None:
        fields["membership"] = options.membership
    if options.layout is not None:
        fields["layout"] = options.layout
    if options.input_shape is not None:
        fields["input_shape"] = parse_shape(options.input_shape)
    if options.timeout is not None:
        fields["timeout_seconds"] = parse_seconds(options.timeout)
    if options.model is not None:
        fields["model"] = ModelFile.from_text(options.model)
    return fields


def parse_pairs(pairs: list[str] | None, option: str) -> dict[str, list[Scalar]]:
    """`bucket_mb=1,25` as {"bucket_mb": [1, 25]}."""
    values: dict[str, list[Scalar]] = {}
    for pair in pairs or []:
        name, equals, text = pair.partition("=")
        if not equals or not name.strip() or not text.strip():
            raise SpecError(f"{option} {pair!r} is not understood; write name=value, such as {option} name=1")
        values[name.strip()] = [_scalar(word) for word in split_words(text)]
    return values


def split_words(text: str) -> list[str]:
    """`a, b` as ["a", "b"]."""
    return [word.strip() for word in text.split(",") if word.strip()]


def _scalar(word: str) -> Scalar:
    try:
        value = json.loads(word.lower() if word.lower() in ("true", "false") else word)
    except json.JSONDecodeError:
        return word
    return value if isinstance(value, bool | int | float | str) else word
