"""What is asked about: a model, a system, and runs of it that nobody has made ─► specs and a predictor for them."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from math import prod
from typing import Any

from paceline.contract.context import data_request, spec_classes, spec_facts, spec_layers
from paceline.contract.user_model_facts import UserModelFacts
from paceline.costs.footprint import FLOAT_BYTES, ModelFacts
from paceline.data import data_source
from paceline.errors import SpecError, UserError
from paceline.layout import Layout
from paceline.link import NetworkLink
from paceline.plan import complete, crosses_links, refusal, sample_count
from paceline.predict.compute import ReplayableModel
from paceline.predict.prediction import Predictor
from paceline.runs.probe import probe
from paceline.runs.traced_model import TracedModel
from paceline.spec import DEFAULT_GLOBAL_BATCH, Execution, ModelFile, Precision, Recompute, RunSpec, Scalar
from paceline.strategies import strategies, strategy
from paceline.systems.hardware import Hardware
from paceline.workloads import workload
from paceline.workloads.user_model import USER_DATA

# Test samples for each training sample, in the data sets that come with Paceline.
TEST_SHARE = 0.2
# Of one image: channels, height and width.
IMAGE_DIMENSIONS = 3
# Data sets whose samples are sequences of tokens.
SEQUENCES = ("tokens", "masked-tokens", "text")
# As torchtitan, nanoGPT and llm-foundry's later recipes train.
USUAL_EXECUTION: Execution = "compiled"
# Tokens of a step by the model's parameters, at most: GPT-3's models of up to 0.8, 2.7 and 13 billion (Brown et al.,
# 2020, table 2.1), Llama 2 70B (Touvron et al., 2023), and Llama 3 405B (Dubey et al., 2024).
USUAL_TOKENS = (
    (1e9, 2**19), (5e9, 2**20), (2e10, 2**21), (1e11, 2**22), (float("inf"), 2**24),
)  # fmt: skip
# The check that a batch is not larger than the data is about a run; the data of a question may be others.
_ENOUGH_COPIES = 1 << 30


@dataclass(frozen=True)
class Question:
    """One model on one system; lists are crossed. Without a batch, the global batch is fixed at a usual size."""

    hardware: Hardware
    workload: str = "mnist-small"
    model: ModelFile | None = None
    options: dict[str, Scalar] = field(default_factory=dict)
    dataset: str | None = None
    input_shape: tuple[int, ...] | None = None
    classes: int | None = None
    strategies: tuple[str, ...] = ()
    knobs: dict[str, Scalar] = field(default_factory=dict)
    workers: tuple[int, ...] = (1,)
    # For strategies that take one: they say how many workers there are.
    layouts: tuple[Layout, ...] = ()
    accumulation: int = 1
    recompute: Recompute = "none"
    # Whether shards of parameters and optimizer state wait in the host's memory.
    offload: bool = False
    global_batches: tuple[int, ...] = ()
    local_batches: tuple[int, ...] = ()
    precision: Precision | None = None
    # Beside it, where several are to be compared.
    other_precisions: tuple[Precision, ...] = ()
    # As usual for such a model on the system, where nothing is said.
    execution: Execution | None = None
    optimizer: dict[str, Any] = field(default_factory=dict)
    # Of one epoch; the data set's own where nothing is said.
    samples: int | None = None
    # To train on, in place of samples.
    tokens: float | None = None
    price_per_device_hour: float | None = None
    # Between workers, in place of the system's own; None in it stands for that one.
    links: tuple[NetworkLink | None, ...] = (None,)

    @cached_property
    def base(self) -> RunSpec:
        """One run of it, with the shape of its data filled in, so that nothing has to be loaded again."""
        fields = {
            "workload": self.workload, "model": self.model, "options": self.options, "dataset": self.dataset,
            "input_shape": self.input_shape, "classes": self.classes, "device": self.hardware.kind,
            "precision": self.precision or usual_precision(self.hardware), "steps": 1,
            "global_batch": DEFAULT_GLOBAL_BATCH, "optimizer": dict(self.optimizer),
            "execution": self.execution or "eager", "offload": self.offload,
        }  # fmt: skip
        spec = complete(RunSpec.parse(fields, "the question"))
        if spec.model is not None:
            return spec
        _, shape = spec_layers(spec)
        return spec.model_copy(update={"input_shape": shape, "classes": spec_classes(spec)})

    @property
    def assumption(self) -> str | None:
        """Which options of the model follow from others that were given, in words; None where none does."""
        return None if self.model is not None else workload(self.workload).assumption(self.options)

    @cached_property
    def user_model_facts(self) -> UserModelFacts | None:
        """What the probe says of a user's model; None for a built-in workload."""
        return probe(self.base) if self.model is not None else None

    @cached_property
    def facts(self) -> ModelFacts:
        """The model's layers in numbers; a user's model is traced on the meta device in a process of its own."""
        if self.user_model_facts is None:
            return spec_facts(self.base)
        if self.user_model_facts.model is None:
            label, framework = self.base.workload, self.user_model_facts.framework
            raise SpecError(
                f"{label} is a {framework} model, and only PyTorch modules can be followed layer by layer; "
                f"give a torch.nn.Module, or measure it with paceline run"
            )
        return self.user_model_facts.model

    def but_with(self, **fields: Any) -> "Question":
        """The same question with some fields changed; what is already known of the model is kept."""
        other = replace(self, **fields)
        known: dict[str, Any] = {name: vars(self)[name] for name in ("user_model_facts", "facts") if name in vars(self)}
        vars(other).update(known)
        return other

    @cached_property
    def predictor(self) -> Predictor:
        """The predictor of all runs of the question."""
        described, price = self.hardware.price_per_device_hour, self.price_per_device_hour
        predictor = predictor_of(self.hardware, self.base, self.facts, self.epoch_samples)
        return replace(
            predictor,
            price_per_device_hour=described.value if price is None and described else price,
            tokens_per_sample=self.tokens_per_sample,
        )

    @property
    def epoch_samples(self) -> int:
        """Samples of one epoch, or of all tokens that are to be trained on."""
        if self.tokens is not None:
            if self.tokens_per_sample is None:
                raise SpecError(f"--tokens is about sequences, and {self.base.workload} has none; use --samples")
            return max(1, round(self.tokens / self.tokens_per_sample))
        return self.samples or sample_count(self.base, probe)

    @cached_property
    def tokens_per_sample(self) -> int | None:
        """Tokens in a sample; None for models that are not trained on tokens."""
        shape = self.base.input_shape
        return shape[0] if self.base.dataset in SEQUENCES and shape else None

    @cached_property
    def batches(self) -> list[tuple[str, int]]:
        """("global_batch" or "local_batch", size) for each batch asked about; by default a usual one."""
        if not self.global_batches and not self.local_batches:
            return [("global_batch", self._usual_batch)]
        fixed = [("global_batch", size) for size in self.global_batches]
        return fixed + [("local_batch", size) for size in self.local_batches]

    @property
    def _usual_batch(self) -> int:
        """The default batch: as many tokens as such models are trained with on GPUs, else a multiple of workers."""
        if self.hardware.kind == "cuda" and self.tokens_per_sample is not None:
            tokens = next(tokens for most, tokens in USUAL_TOKENS if self.facts.parameters <= most)
            return 1 << max(0, tokens // self.tokens_per_sample).bit_length() - 1
        size = DEFAULT_GLOBAL_BATCH
        while size < max(self.workers):
            size *= 2
        return size

    @property
    def chose_batch(self) -> bool:
        """Whether Paceline chose the batch because the user named none."""
        return not self.global_batches and not self.local_batches

    def specs(
        self,
        name: str,
        knobs: dict[str, Scalar] | None = None,
        workers: Sequence[int] | None = None,
        batches: Sequence[tuple[str, int]] | None = None,
    ) -> Iterator[RunSpec]:
        """Runs of one strategy: every batch and worker count, those of the question unless others are passed."""
        values = {**self.knobs, **(knobs or {})}
        # Fields of the run, though they are searched as knobs are.
        layout = values.pop("layout", None)
        more = {
            "accumulation": int(values.pop("accumulation", self.accumulation)),
            "recompute": values.pop("recompute", self.recompute),
        }
        for precision, (batch, size) in product((self.base.precision, *self.other_precisions), batches or self.batches):
            fields = {"strategy": name, "knobs": values, "global_batch": None, "local_batch": None, batch: size}
            spec = complete(self.base.model_copy(update={**fields, **more, "precision": precision}))
            if layout is not None:
                chosen = Layout.from_text(str(layout))
                shapes: Iterable[dict[str, Any]] = [{"workers": chosen.workers, "layout": chosen}]
            else:
                shapes = self._shapes(spec, workers or self.workers)
            for shape in shapes:
                yield from map(self.as_usual, self._over_links(spec.model_copy(update=shape)))

    def _over_links(self, spec: RunSpec) -> Iterator[RunSpec]:
        """The run over each link in question; once where it is one process, which crosses none."""
        links = self.links if crosses_links(spec) else (None,)
        yield from (spec.model_copy(update={"link": link}) for link in links)

    def as_usual(self, spec: RunSpec) -> RunSpec:
        """The run with defaults for what was not asked: models of tokens are compiled on GPUs, where possible."""
        if self.execution is not None or self.hardware.kind != "cuda" or self.tokens_per_sample is None:
            return spec
        if USUAL_EXECUTION not in strategy(spec.strategy).needs.executions:
            return spec
        compiled = spec.model_copy(update={"execution": USUAL_EXECUTION})
        return compiled if self.why_not(compiled) is None else spec

    def _shapes(self, spec: RunSpec, workers: Sequence[int]) -> Iterator[dict[str, Any]]:
        """Worker counts, or the layouts of a strategy that takes them."""
        if "layout" not in strategy(spec.strategy).needs.heeds:
            yield from ({"workers": count} for count in workers)
            return
        layouts = [layout for layout in self.layouts if layout.workers in workers]
        for layout in layouts if self.layouts else [Layout(shard=count) for count in workers]:
            yield {"workers": layout.workers, "layout": layout}

    @property
    def settings(self) -> set[str]:
        """Names of run fields that the question itself fixes."""
        fixed_fields = {"accumulation": self.accumulation > 1, "recompute": self.recompute != "none", "layout": True}
        return {*self.knobs, *(name for name, fixed in fixed_fields.items() if fixed)}

    def names(self) -> Sequence[str]:
        """The strategies in question: those named, or all that train such a model."""
        if self.strategies:
            return [strategy(name).name for name in self.strategies]
        kind = self.user_model_facts.framework if self.user_model_facts else None
        real = [chosen for chosen in strategies().values() if chosen.family != "fake"]
        return [chosen.name for chosen in real if kind is None or chosen.trains == kind]

    def why_not(self, spec: RunSpec) -> str | None:
        """Why a run cannot be made on the system in question, in words, or None."""
        chosen = strategy(spec.strategy)
        devices = chosen.needs.devices
        if self.hardware.kind not in devices:
            return f"{chosen.name} does not run with device {self.hardware.kind}; it offers {', '.join(devices)}"
        roles, cuda = chosen.needs.roles(spec), self.hardware.kind == "cuda"
        # Workers that are processes may be on other machines; those within one process may not.
        within = roles and spec.workers > 1 and sum(role.processes for role in roles) == 1
        if cuda and within and (nodes := -(-spec.workers // self.hardware.node_devices)) > 1:
            return f"{chosen.name} is one process and cannot reach over {nodes} nodes"
        fields: dict[str, Any] = {"dataset_copies": _ENOUGH_COPIES}
        # A usual precision that it lacks is no reason to refuse it; one that was asked for is.
        if self.precision is None and spec.precision not in chosen.needs.precisions:
            fields["precision"] = chosen.needs.precisions[-1]
        if (too_large := self._too_large(spec)) is not None:
            return too_large
        try:
            reason = refusal(spec.model_copy(update=fields), self.hardware.as_system(spec.workers), self._probed)
            if reason is None and spec.model is not None:
                # Whether a model of the user's can be divided so is seen when it is tried.
                chosen.footprint(spec, self.facts)
        except (UserError, ValueError) as error:
            return str(error)
        return reason

    def _too_large(self, spec: RunSpec) -> str | None:
        """Why there is no step with so large a batch; data that are generated have as many samples as it takes."""
        named = self.samples is not None or self.tokens is not None
        if not named and spec.dataset != USER_DATA and data_source(str(spec.dataset)).generated:
            return None
        if spec.samples_per_step <= self.epoch_samples:
            return None
        return (
            f"global_batch {spec.samples_per_step} is larger than the {self.epoch_samples:,} training samples; "
            f"use a smaller batch, or say with --samples how many there will be"
        )

    def _probed(self, _spec: RunSpec) -> UserModelFacts:
        assert self.user_model_facts is not None
        return self.user_model_facts


def predictor_of(hardware: Hardware, spec: RunSpec, facts: ModelFacts, epoch_samples: int) -> Predictor:
    """The predictor of all runs of the spec's model on a system; a user's model goes by its traced operations."""
    return Predictor(
        hardware, facts, epoch_samples,
        data_bytes=data_bytes(spec),
        traced=TracedModel(spec) if spec.model is not None else None,
        replayable=ReplayableModel(facts, TracedModel(spec)) if hardware.calibrated.replayed_calls else None,
    )  # fmt: skip


def data_bytes(spec: RunSpec) -> float:
    """Samples as a process of a run on cores holds them: the set as it is loaded, and a copy that its framework makes.

    PyTorch makes none of images of one channel, whose layout is the same in any order, and none of other layouts.
    """
    if spec.dataset == USER_DATA:
        return 0.0
    source = data_source(str(spec.dataset))
    shape = spec.input_shape or source.shape
    if shape is None:
        return 0.0
    used = source.count(data_request(spec))
    loaded = max(used, source.count(data_request(spec.model_copy(update={"train_samples": None}))))
    reordered = spec.memory_format == "channels_last" and len(shape) == IMAGE_DIMENSIONS and shape[0] > 1
    copied = used if reordered or strategy(spec.strategy).framework != "torch" else 0
    return (1 + TEST_SHARE) * (loaded + copied) * prod(shape) * FLOAT_BYTES


def usual_precision(hardware: Hardware) -> Precision:
    """The precision that people train with on this hardware: bf16 where a GPU supports it, fp16 on older ones."""
    halves: tuple[Precision, ...] = ("bf16", "fp16")
    offered = [half for half in halves if half in hardware.device.flops_per_second]
    return offered[0] if hardware.kind == "cuda" and offered else "fp32"
