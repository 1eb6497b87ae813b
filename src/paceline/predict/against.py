"""Predictions beside logged runs: errors by layout and source, coverage of intervals, and what a choice loses."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import mean, median

from paceline.errors import UserError
from paceline.layout import MESH
from paceline.predict.estimate import Estimate
from paceline.predict.logged import LoggedRun
from paceline.predict.prediction import ComputeKey, Predictor
from paceline.predict.rank_passes import RankClock
from paceline.systems.hardware import Hardware
from paceline.systems.software import AttentionKernel

# Of one number alone there is no order.
LEAST_RANKED = 3
# What passes of ranks take, by the kind of attention that runs say they had.
Clocks = dict[AttentionKernel | None, dict[ComputeKey, RankClock]]


@dataclass(frozen=True)
class ComparedRun:
    """A logged run and what is predicted for it."""

    run: LoggedRun
    predicted: Estimate
    nodes: int

    @property
    def error(self) -> float:
        """Relative error; positive where the predicted time is too long."""
        return self.predicted.value / self.run.step_seconds - 1

    @property
    def inside(self) -> bool:
        """Whether the logged seconds lie in the predicted interval."""
        return self.predicted.low <= self.run.step_seconds <= self.predicted.high

    @property
    def dimensions(self) -> str:
        """The dimensions of its layout that are above one."""
        layout = self.run.spec.layout
        used = [name for name in MESH if layout is not None and getattr(layout, name) > 1]
        return "+".join(used) or "one device"


@dataclass(frozen=True)
class ErrorSummary:
    """Errors of several runs; the bias is the median of their relative errors."""

    runs: int
    mean_error: float
    median_error: float
    bias: float
    worst_error: float
    coverage: float

    @classmethod
    def of(cls, rows: Sequence[ComparedRun]) -> "ErrorSummary":
        """The summary of these rows."""
        errors = [row.error for row in rows]
        sizes = [abs(error) for error in errors]
        inside = mean(row.inside for row in rows)
        return cls(len(rows), mean(sizes), median(sizes), median(errors), max(sizes), inside)


@dataclass(frozen=True)
class ChoiceLoss:
    """How much longer a step takes than with the best logged layout, where each group's layout is chosen by a rule."""

    groups: int
    mean_loss: float
    worst_loss: float


@dataclass(frozen=True)
class Comparison:
    """All logged runs of a file beside their predictions."""

    rows: tuple[ComparedRun, ...]
    # Why others could not be predicted, by name.
    refused: dict[str, str]

    @property
    def total(self) -> ErrorSummary:
        """The summary of all runs."""
        return ErrorSummary.of(self.rows)

    def by(self, key: Callable[[ComparedRun], str]) -> dict[str, ErrorSummary]:
        """Summaries of runs grouped by a key."""
        return {name: ErrorSummary.of(rows) for name, rows in sorted(_grouped(self.rows, key).items())}

    @property
    def by_nodes(self) -> dict[str, ErrorSummary]:
        """Summaries of runs within one node, and over several nodes."""
        return self.by(lambda row: "one node" if row.nodes == 1 else "several nodes")

    @property
    def by_layout(self) -> dict[str, ErrorSummary]:
        """Summaries by the layout dimensions in use."""
        return self.by(lambda row: row.dimensions)

    @property
    def by_source(self) -> dict[str, ErrorSummary]:
        """Summaries by the log's source column."""
        return self.by(lambda row: row.run.source)

    @property
    def rank_correlation(self) -> float | None:
        """Spearman's correlation within runs of one model and device count; the mean over groups, weighted by runs."""
        groups = _grouped(self.rows, lambda row: str((row.run.spec.workload, row.run.group[2], row.run.spec.workers)))
        correlations = [(len(rows), _spearman(rows)) for rows in groups.values() if len(rows) >= LEAST_RANKED]
        total = sum(count for count, _ in correlations)
        return sum(count * value for count, value in correlations) / total if total else None

    @property
    def loss_of_predicted(self) -> ChoiceLoss | None:
        """How much longer steps take if the layout with the shortest predicted step is chosen."""
        return self._loss(lambda rows: min(rows, key=lambda row: row.predicted.value))

    @property
    def loss_of_data_parallel(self) -> ChoiceLoss | None:
        """How much longer steps take if data parallelism with the largest micro-batch is always chosen."""
        return self._loss(lambda rows: max(rows, key=_data_parallel))

    def _loss(self, choose: Callable[[Sequence[ComparedRun]], ComparedRun]) -> ChoiceLoss | None:
        groups = [rows for rows in _grouped(self.rows, lambda row: str(row.run.group)).values() if len(rows) > 1]
        losses = [choose(rows).run.step_seconds / min(row.run.step_seconds for row in rows) - 1 for rows in groups]
        return ChoiceLoss(len(losses), mean(losses), max(losses)) if losses else None


def _data_parallel(row: ComparedRun) -> tuple[int, float]:
    layout = row.run.spec.layout
    return layout.data_ranks if layout else row.run.spec.workers, row.run.microbatch


def _grouped(rows: Iterable[ComparedRun], key: Callable[[ComparedRun], str]) -> dict[str, list[ComparedRun]]:
    groups: dict[str, list[ComparedRun]] = defaultdict(list)
    for row in rows:
        groups[key(row)].append(row)
    return groups


def _spearman(rows: Sequence[ComparedRun]) -> float:
    from scipy.stats import spearmanr

    if len({row.run.step_seconds for row in rows}) == 1 or len({row.predicted.value for row in rows}) == 1:
        return 0.0
    return float(spearmanr([row.run.step_seconds for row in rows], [row.predicted.value for row in rows]).statistic)


def compare(runs: Iterable[LoggedRun], hardware: Hardware, refused: dict[str, str] | None = None) -> Comparison:
    """Predicts every logged run for a system; those that cannot be are named with the reason."""
    rows: list[ComparedRun] = []
    reasons = dict(refused or {})
    for run, predictor in predictors_of(runs, hardware):
        try:
            predicted = predictor.predict(run.spec).step_seconds
        except (UserError, ValueError) as error:
            reasons[run.name] = str(error)
        else:
            rows.append(ComparedRun(run, predicted, nodes_of(run, hardware)))
    return Comparison(tuple(rows), reasons)


def predictors_of(
    runs: Iterable[LoggedRun], hardware: Hardware, clocks: Clocks | None = None
) -> Iterator[tuple[LoggedRun, Predictor]]:
    """Each run with the predictor of its model; runs of one model share it, and all share what passes take.

    `clocks` of an earlier call may be given where nothing differs but links, shares and what a step takes beside.
    """
    known: dict[tuple[int, AttentionKernel | None], Predictor] = {}
    clocks = {} if clocks is None else clocks
    for run in runs:
        # The models of a log are kept as long as its runs.
        place = id(run.model), run.attention
        if place not in known:
            system = _with_attention(hardware, run.attention)
            shared = clocks.setdefault(run.attention, {})
            known[place] = Predictor(system, run.model, run.spec.samples_per_step, clocks=shared)
        yield run, known[place]


def _with_attention(hardware: Hardware, attention: AttentionKernel | None) -> Hardware:
    """The system with the attention kernel (fused or not) that a logged run used."""
    if attention is None or hardware.software is None or hardware.software.attention == attention:
        return hardware
    software = hardware.software.model_copy(update={"attention": attention})
    return hardware.model_copy(update={"software": software})


def nodes_of(run: LoggedRun, hardware: Hardware) -> int:
    """Nodes that a run needs."""
    return -(-run.spec.workers // hardware.node_devices)
