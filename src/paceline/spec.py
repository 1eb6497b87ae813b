"""`RunSpec`: everything that decides what a run does; a checked, frozen value with a stable identity."""

import hashlib
import json
import math
from typing import Any, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from paceline.errors import SpecError, nearest
from paceline.layout import Layout
from paceline.link import NO_LINK, NetworkLink
from paceline.membership import Membership
from paceline.recipe import Optimizer as Optimizer  # noqa: PLC0414 (it is named as a part of the spec)
from paceline.source_files import KEY_LENGTH as KEY_LENGTH  # noqa: PLC0414 (it is named as a part of the spec)
from paceline.source_files import ModelFile as ModelFile  # noqa: PLC0414
from paceline.source_files import ScriptFile as ScriptFile  # noqa: PLC0414

Scalar = bool | int | float | str
Device = Literal["cpu", "cuda", "cuda-slice"]
Precision = Literal["fp32", "tf32", "bf16", "fp16", "bf16-pure"]
Reduction = Literal["fp32", "bf16"]
Execution = Literal["eager", "compiled", "graph", "compiled+graph"]
MemoryFormat = Literal["contiguous", "channels_last"]
Allocator = Literal["tuned", "default"]
Recompute = Literal["none", "selective", "full"]
Transport = Literal["auto", "socket"]
BatchNorm = Literal["local", "synchronised"]
Dropout = Literal["by-worker", "by-sample"]

# The run that all others are compared with: plain PyTorch on one worker.
BASELINE = "torch-single"
# Raised when the meaning of a field or a default changes, so that old records never answer for new runs.
KEY_VERSION = 1
# Samples of a step over all workers where neither a user nor a study sets a batch.
DEFAULT_GLOBAL_BATCH = 256
# Beyond any count of samples, steps or workers; of a seed, what frameworks take; of a sample, 8 GB of numbers.
MOST_COUNT, MOST_SEED, MOST_OF_A_SAMPLE = 10**12, 2**63 - 1, 2**31
# MPS takes whole percentages of the multiprocessors (CUDA_MPS_ACTIVE_THREAD_PERCENTAGE), and no GPU can be cut finer.
MOST_SLICES = 100
# What a run may set of how its strategy goes about it, beside knobs.
STRATEGY_FIELDS = ("layout", "accumulation", "recompute", "clip", "reduction", "offload", "noise_scale")
# Runs that differ in nothing else train the same on other numbers of workers, or in other ways.
SPREADING_FIELDS = frozenset(
    {"strategy", "workers", "knobs", "layout", "accumulation", "recompute", "reduction", "offload", "noise_scale"}
)
# How batches are read while training goes on.
LOADER_FIELDS = ("loader_workers", "prefetch", "pin_memory")
# What a training script decides by itself.
SCRIPT_DECIDES = (
    "model", "options", "dataset_copies", "train_samples", "input_shape", "classes", "knobs", "epochs", "steps", "seed",
    "optimizer", "precision", "execution", "memory_format", "membership", *STRATEGY_FIELDS, "checkpoint_every",
    "target_accuracy", "target_loss", *LOADER_FIELDS, "batch_norm", "dropout",
)  # fmt: skip
# Where a run keeps its key once it is computed.
_KEPT_KEY = "_kept_key"
# How long a run may take and wait is not part of what it measures.
_OUTSIDE_KEY = {"timeout_seconds", "collective_timeout_seconds"}


class Frozen(BaseModel):
    """A value: cannot be changed, refuses unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @classmethod
    def parse(cls, values: dict[str, Any], where: str) -> Self:
        """The value from untrusted input; all that is wrong with it becomes one `SpecError`."""
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise SpecError(f"{where}: {describe_errors(error, cls)}") from None


class Shrunk(Frozen):
    """The scale at which a study was made smaller, and a description of each change."""

    scale: str
    changes: tuple[str, ...]

    @property
    def text(self) -> str:
        """The text for titles."""
        return f"scale {self.scale}: {', '.join(self.changes)}"


class RunSpec(Frozen):
    """One training run. `plan.complete` fills what the workload and the strategy decide."""

    workload: str = "mnist-small"
    model: ModelFile | None = None
    # A training script that is run as it is, in place of a model and a strategy.
    script: ScriptFile | None = None
    options: dict[str, Scalar] = {}
    dataset: str | None = None
    dataset_copies: int = Field(default=1, ge=1, le=MOST_COUNT)
    train_samples: int | None = Field(default=None, ge=1, le=MOST_COUNT)
    input_shape: tuple[int, ...] | None = None
    classes: int | None = Field(default=None, ge=2, le=MOST_COUNT)
    strategy: str = BASELINE
    knobs: dict[str, Scalar] = {}
    workers: int = Field(default=1, ge=1, le=MOST_COUNT)
    # How a mesh of devices divides the model; its product is the number of workers, which may then be left out.
    layout: Layout | None = None
    global_batch: int | None = Field(default=None, ge=1, le=MOST_COUNT)
    local_batch: int | None = Field(default=None, ge=1, le=MOST_COUNT)
    epochs: int | None = Field(default=None, ge=1, le=MOST_COUNT)
    steps: int | None = Field(default=None, ge=1, le=MOST_COUNT)
    seed: int = Field(default=0, ge=0, le=MOST_SEED)
    optimizer: Optimizer = Optimizer()
    # Passes over parts of the batch in one step, whose gradients are added up before the update.
    accumulation: int = Field(default=1, ge=1, le=MOST_COUNT)
    # Activations that are computed again in the backward pass: none, all but products and transfers, or all.
    recompute: Recompute = "none"
    # The global norm that gradients are scaled down to where theirs is larger.
    clip: float | None = Field(default=None, gt=0)
    # On the test set: looked for on the way, at the latest when the steps since the last look are a twentieth of all.
    target_accuracy: float | None = Field(default=None, gt=0, le=1)
    target_loss: float | None = Field(default=None, gt=0)
    # Whether the noise of gradients is measured, from norms of those that are there anyway.
    noise_scale: bool = False
    batch_norm: BatchNorm = "local"  # over the samples of each worker, or of all
    dropout: Dropout = "by-worker"  # or by a sample's place in the global batch
    # bf16 and fp16 compute in two bytes from parameters of four; bf16-pure holds everything in two.
    precision: Precision = "fp32"
    # In which precision gradients are added up between workers, where not in the strategy's usual one.
    reduction: Reduction | None = None
    # Whether parameters, gradients and optimizer state wait in the host's memory while the GPU does not need them.
    offload: bool = False
    execution: Execution = "eager"
    memory_format: MemoryFormat = "channels_last"
    device: Device = "cpu"
    # Of device cuda-slice: into how many equal slices the GPU is cut, one for each worker. All runs of a study have the
    # same, so that a worker's slice does not change with their number.
    slices: int | None = Field(default=None, ge=1, le=MOST_SLICES)
    # Of device cuda-slice: how slices talk, as fast as their NCCL can or over sockets, a slow link on purpose.
    transport: Transport = "auto"
    # Between any two processes, each of which is then in a network namespace of its own; None for loopback.
    link: NetworkLink | None = None
    cores_per_worker: int = Field(default=1, ge=1, le=MOST_COUNT)
    allocator: Allocator = "tuned"
    # For data that are read while training goes on: processes that read for each worker, batches that each of them
    # reads ahead (the framework's own number if it is not given), and whether they are put where a GPU copies from.
    loader_workers: int = Field(default=0, ge=0, le=MOST_COUNT)
    prefetch: int | None = Field(default=None, ge=1, le=MOST_COUNT)
    pin_memory: bool = False
    # The machines of the fleet that the run may use, with commas between; empty for the launcher's own. Behind a star:
    # how many processes another launcher started there (`paceline join`).
    machines: str = ""
    # Steps from one save of model and optimizer state to the next, and where; removed after the run.
    checkpoint_every: int | None = Field(default=None, ge=1, le=MOST_COUNT)
    checkpoint_to: str | None = None
    # Workers that are killed and that join at stated steps, such as leave:20,join:40.
    membership: Membership | None = None
    # A short run that records where the time goes; its times are used for nothing else.
    instrumented: bool = False
    # Part of the identity: a shrunk run never answers for a full one.
    shrunk: Shrunk | None = None
    timeout_seconds: float = Field(default=1800.0, gt=0)
    collective_timeout_seconds: float = Field(default=60.0, gt=0)

    @model_validator(mode="before")
    @classmethod
    def _follow_from_others(cls, values: Any) -> Any:
        """Workers from the layout where nobody says them, a link named none, and accumulation that was a knob once."""
        if not isinstance(values, dict):
            return values
        values = dict(values)
        knobs = values.get("knobs")
        if isinstance(knobs, dict) and "accumulation" in knobs:
            passes = knobs["accumulation"]
            if values.setdefault("accumulation", passes) != passes:
                raise ValueError(
                    f"accumulation is {values['accumulation']!r} and the knob of the same name {passes!r}; "
                    f"leave the knob out"
                )
            values["knobs"] = {name: value for name, value in knobs.items() if name != "accumulation"}
        if values.get("link") == NO_LINK:
            values["link"] = None
        layout = values.get("layout")
        if layout is not None and "workers" not in values:
            values["workers"] = Layout.model_validate(layout).workers
        return values

    @model_validator(mode="after")
    def _as_many_workers_as_the_layout(self) -> Self:
        if self.layout is not None and self.layout.workers != self.workers:
            raise ValueError(
                f"layout {self.layout.text} is of {self.layout.workers} workers and {self.workers} were asked for; "
                f"leave workers out, or change the layout"
            )
        return self

    @model_validator(mode="after")
    def _one_batch_and_one_length(self) -> Self:
        if self.script is not None:
            self._leaves_training_to_the_script()
        elif (self.global_batch is None) == (self.local_batch is None):
            raise ValueError(
                "give exactly one of global_batch (strong scaling: fixed for all workers together) "
                "and local_batch (weak scaling: fixed for each worker)"
            )
        if self.script is None and (self.epochs is None) == (self.steps is None):
            raise ValueError("give exactly one of epochs and steps")
        if self.slices is not None and self.device != "cuda-slice":
            raise ValueError(
                f"slices {self.slices} go with device cuda-slice, not {self.device}; leave one of them out"
            )
        if self.transport != "auto" and self.device != "cuda-slice":
            raise ValueError(
                f"transport {self.transport} goes with device cuda-slice, not {self.device}; leave one of them out"
            )
        if self.prefetch is not None and not self.loader_workers:
            raise ValueError(
                f"prefetch {self.prefetch} is how many batches each loader process reads ahead, and loader_workers is "
                f"0; give loader_workers too, or leave prefetch out"
            )
        if self.pin_memory and self.device == "cpu":
            raise ValueError(
                "pin_memory puts batches where a GPU can copy them from, and device cpu was asked for; leave it out"
            )
        if self.input_shape is not None and (not self.input_shape or min(self.input_shape) < 1):
            raise ValueError(f"input_shape {self.input_shape} must have sizes of at least 1, such as [3, 32, 32]")
        if self.input_shape is not None and math.prod(self.input_shape) > MOST_OF_A_SAMPLE:
            raise ValueError(
                f"input_shape {self.input_shape} has more than {MOST_OF_A_SAMPLE:,} numbers; make it smaller"
            )
        return self

    def _leaves_training_to_the_script(self) -> None:
        """Refuses fields that a script decides by itself."""
        usual = type(self).model_fields
        for name in SCRIPT_DECIDES:
            if getattr(self, name) != usual[name].default:
                raise ValueError(
                    f"{name} was given, and the script decides that itself; leave it out, or hand the script an "
                    f"argument of its own behind --"
                )
        if self.global_batch is not None and self.local_batch is not None:
            raise ValueError("give at most one of global_batch and local_batch: what the script trains on in a step")

    @model_validator(mode="after")
    def _saves_and_changes_that_come_to_pass(self) -> Self:
        if self.checkpoint_to is not None and self.checkpoint_every is None:
            raise ValueError(
                f"checkpoint_to {self.checkpoint_to} is where checkpoints go, and none is asked for; "
                f"give checkpoint_every too, or leave checkpoint_to out"
            )
        if self.membership is not None and (self.steps is None or self.membership.last_step >= self.steps):
            raise ValueError(
                f"membership {self.membership.text} needs steps beyond its last change; "
                f"give steps of more than {self.membership.last_step} in place of epochs"
            )
        return self

    @model_validator(mode="after")
    def _one_target(self) -> Self:
        if self.target_accuracy is not None and self.target_loss is not None:
            raise ValueError("give at most one of target_accuracy and target_loss: what the test set is to come to")
        if self.has_target and self.membership is not None:
            raise ValueError(
                f"a target is not looked for where workers come and go; leave membership {self.membership.text} or the "
                f"target out"
            )
        return self

    @property
    def has_target(self) -> bool:
        """Whether the run looks for a target on its way."""
        return self.target_accuracy is not None or self.target_loss is not None

    @property
    def scaling(self) -> Literal["strong", "weak"]:
        """Strong when the global batch is fixed, weak when the local batch is."""
        return "strong" if self.global_batch is not None else "weak"

    @property
    def samples_per_step(self) -> int:
        """The global batch, whichever way it was given."""
        return self.global_batch if self.global_batch is not None else (self.local_batch or 0) * self.workers

    @property
    def is_plain(self) -> bool:
        """Whether its samples per second are those of undisturbed training."""
        return not self.instrumented and self.membership is None

    @property
    def several_machines(self) -> bool:
        """Whether the run may use more than one machine, or is in processes that may as well be on several."""
        return "," in self.machines or "*" in self.machines

    @property
    def spread_over(self) -> str:
        """The strategy with its layout, or with the number of its workers."""
        return f"{self.strategy} {self.layout.text if self.layout else f'x{self.workers}'}"

    @property
    def settings(self) -> dict[str, Scalar]:
        """Knobs, and fields of the kind that some strategies heed, as far as they are not as usual."""
        usual = type(self).model_fields
        changed = {name: getattr(self, name) for name in STRATEGY_FIELDS if getattr(self, name) != usual[name].default}
        return {**self.knobs, **{name: value.text if name == "layout" else value for name, value in changed.items()}}

    def without_structure(self) -> Self:
        """The run as it is before its model was looked at."""
        model = self.model and self.model.model_copy(update={"structure": ""})
        return self.model_copy(update={"model": model})

    def key(self) -> str:
        """The identity of this configuration.

        Only fields that differ from their default count, so a field added later leaves old keys as they are.
        """
        # Tables ask for it many times.
        if _KEPT_KEY not in self.__dict__:
            self.__dict__[_KEPT_KEY] = self._computed_key()
        return str(self.__dict__[_KEPT_KEY])

    def __copy__(self) -> Self:
        """A copy is made to be changed: it has no key yet."""
        copied = super().__copy__()
        copied.__dict__.pop(_KEPT_KEY, None)
        return copied

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        """A copy that shares no part with this run, and has no key yet."""
        copied = super().__deepcopy__(memo)
        copied.__dict__.pop(_KEPT_KEY, None)
        return copied

    def _computed_key(self) -> str:
        fields = self.model_dump(mode="json", exclude_defaults=True, exclude=_OUTSIDE_KEY)
        if "accumulation" in fields:
            # Where it was before it became a field: stored runs keep their identity.
            fields["knobs"] = {**fields.get("knobs", {}), "accumulation": fields.pop("accumulation")}
        if self.model is not None:
            parts = (self.model.function, self.model.digest, self.model.structure)
            fields |= {"model": [part for part in parts if part], "workload": None}
        if self.script is not None:
            fields |= {"script": [self.script.digest, *self.script.arguments], "workload": None}
        text = json.dumps([KEY_VERSION, fields], sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:KEY_LENGTH]


# Words for limits.
_SIGNS = {
    "greater_than_equal": "at least", "greater_than": "more than", "less_than": "less than",
    "less_than_equal": "at most",
}  # fmt: skip


def describe_errors(error: ValidationError, model: type[BaseModel]) -> str:
    """Pydantic's errors as sentences: the field, its value, what is allowed."""
    return "; ".join(_sentence(dict(item), model) for item in error.errors())


def _sentence(item: dict[str, Any], model: type[BaseModel]) -> str:
    path = ".".join(str(part) for part in item["loc"])
    value, kind, context = item["input"], item["type"], item.get("ctx", {})
    if kind == "extra_forbidden":
        return f"there is no field {path!r}; {nearest(str(item['loc'][-1]), _fields_at(model, item['loc'][:-1]))}"
    if kind == "literal_error":
        return f"{path} cannot be {value!r}; choose from {context['expected']}"
    if kind in _SIGNS:
        return f"{path} {value!r} is out of range; it must be {_SIGNS[kind]} {next(iter(context.values()))}"
    if kind == "value_error":
        return str(context["error"])
    return f"{path} {value!r} is not usable: {item['msg'][0].lower()}{item['msg'][1:]}"


def _fields_at(model: type[BaseModel], path: tuple[Any, ...]) -> list[str]:
    for part in (name for name in path if isinstance(name, str)):
        annotation = model.model_fields[part].annotation if part in model.model_fields else None
        inner = [kind for kind in (annotation, *get_args(annotation)) if isinstance(kind, type)]
        nested = [kind for kind in inner if issubclass(kind, BaseModel)]
        if not nested:
            return []
        model = nested[0]
    return list(model.model_fields)
