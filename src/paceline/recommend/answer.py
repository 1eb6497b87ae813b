"""A question and an objective ─► candidates, predicted and ranked; ties are ties, and what is left out has a reason."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from paceline.analysis.batches.critical import CriticalBatch
from paceline.analysis.verdicts.certainty import CLOSE, Certainty, certainty
from paceline.predict.estimate import Estimate
from paceline.predict.prediction import Prediction
from paceline.predict.question import Question
from paceline.recommend.candidates import pointless_on_one_worker, simplicity, variants, worker_counts
from paceline.recommend.lighter import OFFLOAD, predict_fitting
from paceline.recommend.objectives import PEAK_MEMORY, Objective, counting_samples, objective
from paceline.recommend.reading import Reading, readings_of
from paceline.recommend.search import search_layouts, searches_layouts
from paceline.record import Record
from paceline.spec import SPREADING_FIELDS, RunSpec
from paceline.strategies import strategy

TIE = CLOSE
# Synchronous strategies follow one loss curve for one global batch; what others lose, only runs can tell.
UNSYNCHRONISED = "a step improves the model less than a step of one worker; how much less, only runs tell"
# What a framework's compiler makes of a step, where it is not the framework's only way.
COMPILED = "compiled"
# Layouts of a worker count and a batch that an answer lists.
LAYOUTS_KEPT = 4
# Numbers of earlier runs and their samples per second, by configuration.
Evidence = dict[str, list[tuple[int, float]]]
ANOTHER_OPTIMIZER = "it trains with an optimizer of its own"


@dataclass(frozen=True)
class Candidate:
    """One configuration. `value` is the objective's; `measured` replaces it once it was run."""

    prediction: Prediction
    value: Estimate
    behind: float = 0.0
    tied: bool = False
    measured: float | None = None
    # Of each run that `measured` is the best of, in the objective's unit; and whether other load disturbed them.
    measured_values: tuple[float, ...] = ()
    disturbed: bool = False
    records: tuple[int, ...] = ()
    # Samples per second of earlier runs of it, where there are any.
    earlier_samples_per_second: float | None = None
    # Why its number must not be compared with the others as it is.
    caveat: str | None = None

    @property
    def spec(self) -> RunSpec:
        """The candidate's run."""
        return self.prediction.spec

    @property
    def best_known(self) -> float:
        """The measured value, or the predicted one where it was not measured."""
        return self.value.value if self.measured is None else self.measured


@dataclass(frozen=True)
class Answer:
    """The ranking, the pick, and everything that was left out."""

    question: Question
    objective: Objective
    ranked: tuple[Candidate, ...]
    excluded: dict[str, str]
    predictions: int
    # Configurations that were looked at, most of them only counted.
    considered: int = 0
    pick: Candidate | None = None
    measured_runs: int = 0
    critical_batch: CriticalBatch | None = None
    # What reading a batch took in earlier runs of the model, where its data are read while it trains; the newest first.
    readings: tuple[Reading, ...] = ()


def recommend(
    question: Question, goal: str = "throughput", records: Iterable[Record] = (),
    critical_batch: CriticalBatch | float | None = None,
) -> Answer:  # fmt: skip
    """Predicts every candidate and ranks them; the best setting stands for its strategy and worker count."""
    if isinstance(critical_batch, float | int):
        critical_batch = CriticalBatch(critical_batch)
    records = list(records)
    readings = readings_of(question.base, records)
    answer = replace(_answer(question, goal, _evidence(records), critical_batch), readings=readings)
    if (answer.pick is not None and answer.pick.caveat is None) or question.offload:
        return answer
    # Nothing that trains as one worker would fits: perhaps with shards in the host's memory, slower than all else.
    names = [name for name in question.names() if OFFLOAD in strategy(name).needs.heeds]
    if not names or question.hardware.kind != "cuda":
        return answer
    offloaded = _answer(question.but_with(offload=True, strategies=tuple(names)), goal, {}, critical_batch)
    # What trains otherwise stays among what is listed.
    offloaded = ranked(replace(offloaded, ranked=(*offloaded.ranked, *answer.ranked)))
    listed = {candidate.spec.strategy for candidate in offloaded.ranked}
    excluded = {name: why for name, why in {**answer.excluded, **offloaded.excluded}.items() if name not in listed}
    return replace(
        answer if offloaded.pick is None else replace(offloaded, question=answer.question, readings=answer.readings),
        excluded=excluded,
        considered=answer.considered + offloaded.considered,
        predictions=answer.predictions + offloaded.predictions,
    )


def _answer(question: Question, goal: str, evidence: Evidence, critical_batch: CriticalBatch | None) -> Answer:
    chosen, chooses_batch = objective(goal), False
    question = replace(question, workers=worker_counts(question.workers))
    if goal == "time-to-accuracy" and critical_batch is not None:
        chosen, chooses_batch = counting_samples(chosen), question.chose_batch
        if chooses_batch:
            around = critical_batch.batches_around
            fitting = tuple(batch for batch in around if batch <= question.epoch_samples) or around[:1]
            question = replace(question, global_batches=fitting)
    candidates: list[Candidate] = []
    excluded: dict[str, str] = {}
    considered = predictions = 0
    for name in question.names():
        search = _best_layouts if searches_layouts(name) else _best_settings
        tally = search(question, name, chosen)
        considered, predictions = considered + tally.considered, predictions + tally.predictions
        candidates += (_candidate(chosen, prediction, evidence, critical_batch) for prediction in tally.best)
        if tally.why_not is not None and not tally.best:
            excluded[name] = tally.why_not
    candidates = _best_batches(candidates) if chooses_batch else candidates
    distinct = tuple(_without_doubles(chosen, candidates))
    answer = Answer(question, chosen, distinct, excluded, predictions, considered, critical_batch=critical_batch)
    return ranked(answer)


def _best_batches(candidates: Iterable[Candidate]) -> list[Candidate]:
    """The soonest of candidates that differ in their batch alone, or in what goes with it."""
    best: dict[tuple[object, ...], Candidate] = {}
    for candidate in candidates:
        spec = candidate.spec
        key = spec.strategy, spec.workers, str(spec.layout), spec.precision
        if key not in best or candidate.value.value < best[key].value.value:
            best[key] = candidate
    return list(best.values())


def _without_doubles(objective: Objective, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Without composed layouts that divide a model as a plainer strategy of the framework does, and gain nothing by it.

    They may differ in passes and in what is recomputed; of both, the better one is listed.
    """
    candidates = _without_idle_strategies(objective, candidates)
    plain = {_division(candidate.spec): candidate for candidate in candidates if candidate.spec.layout is None}
    better: list[Candidate] = []
    replaced: set[int] = set()
    for candidate in candidates:
        like = plain.get(_division(candidate.spec)) if candidate.spec.layout is not None else None
        if like is None:
            better.append(candidate)
        elif objective.worse_by(like.best_known, candidate.best_known) > TIE:
            better.append(candidate)
            replaced.add(id(like))
    return [candidate for candidate in better if id(candidate) not in replaced]


def _without_idle_strategies(objective: Objective, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Without strategies for several workers that have one, and gain nothing on training without a strategy."""

    def key(spec: RunSpec) -> tuple[object, ...]:
        return strategy(spec.strategy).framework, spec.samples_per_step, spec.precision

    alone = {key(each.spec): each for each in candidates if strategy(each.spec.strategy).family == "single"}

    def is_idle(candidate: Candidate) -> bool:
        single = alone.get(key(candidate.spec)) if candidate.spec.workers == 1 else None
        return single not in (None, candidate) and objective.worse_by(single.best_known, candidate.best_known) <= TIE

    return [candidate for candidate in candidates if not is_idle(candidate)]


def _division(spec: RunSpec) -> tuple[object, ...]:
    """How devices divide the model and the batch, in which framework and numbers."""
    chosen = strategy(spec.strategy)
    layout = spec.layout or chosen.traits.layout(spec)
    return chosen.framework, str(layout), spec.samples_per_step, spec.precision


@dataclass
class _Tally:
    """The best predictions of one strategy, and how many settings were considered and predicted for them."""

    best: list[Prediction] = field(default_factory=list)
    considered: int = 0
    predictions: int = 0
    why_not: str | None = None


def _best_settings(question: Question, name: str, objective: Objective) -> _Tally:
    """The best setting of each worker count, batch and precision."""
    tally, best = _Tally(), dict[tuple[object, ...], Prediction]()
    for spec in _executed(question, _specs(question, name)):
        predicted, why_not = predict_fitting(question, spec)
        tally.predictions += len(predicted)
        tally.considered += max(1, len(predicted))
        if why_not is not None and (tally.why_not is None or spec.settings.keys() <= question.settings):
            # The last word is that on the most workers, with the strategy's own settings.
            tally.why_not = f"x{spec.workers}: {why_not}"
        for prediction in predicted:
            key = spec.workers, spec.samples_per_step, spec.precision
            if key not in best or _clearly_better(objective, prediction, best[key]):
                best[key] = prediction
    tally.best = list(best.values())
    return tally


def _executed(question: Question, specs: Iterable[RunSpec]) -> Iterator[RunSpec]:
    """Each run, and compiled where that is left open and not how such a model is trained anyway."""
    for spec in specs:
        yield spec
        if question.hardware.kind == "cuda" and question.execution is None and spec.execution != COMPILED:
            compiled = spec.model_copy(update={"execution": COMPILED})
            if COMPILED in strategy(spec.strategy).needs.executions and question.why_not(compiled) is None:
                yield compiled


def _clearly_better(objective: Objective, prediction: Prediction, other: Prediction) -> bool:
    """Whether it is better, and by more than a tie where its model has to be compiled for it."""
    more_to_do = prediction.spec.execution != other.spec.execution
    gained = objective.worse_by(objective.of(other).value, objective.of(prediction).value)
    return gained > (TIE if more_to_do else 0.0)


def _best_layouts(question: Question, name: str, objective: Objective) -> _Tally:
    """The best layouts of each worker count, batch and precision."""
    tally, done = _Tally(), set()
    for spec in _specs(question, name):
        key = spec.workers, spec.samples_per_step, spec.precision
        if key in done:
            continue
        done.add(key)
        search = search_layouts(question, spec, by_memory=objective.metric is PEAK_MEMORY)
        tally.considered += search.screened
        tally.predictions += len(search.predictions)
        if search.why_not is not None:
            tally.why_not = f"x{spec.workers}: {search.why_not}"
        in_order = sorted(search.predictions, key=lambda each: objective.worse_by(objective.of(each).value, 1.0))
        tally.best += in_order[:LAYOUTS_KEPT]
    return tally


def _simplicity(candidate: Candidate) -> tuple[float, ...]:
    """Sort key: fewer workers, a simpler family, fewer dimensions and settings, whole models, less to send."""
    spec = candidate.spec
    dimensions = spec.layout.text.count("=") if spec.layout else 0
    layout = strategy(spec.strategy).traits.layout(spec)
    divided = layout is not None and layout.holders > 1
    return (
        *simplicity(spec.strategy, spec.workers), dimensions, len(spec.settings), divided,
        candidate.prediction.parts.transfers,
    )  # fmt: skip


def _specs(question: Question, name: str) -> Iterator[RunSpec]:
    for workers in question.workers:
        if workers == 1 < len(question.workers) and pointless_on_one_worker(strategy(name)):
            continue
        for knobs in variants(strategy(name), question, workers):
            yield from question.specs(name, knobs, (workers,))


def ranked(answer: Answer) -> Answer:
    """The candidates ranked by their best known values; the pick is the simplest that ties with the first."""
    objective = answer.objective
    sign = -1 if objective.metric.better == "higher" else 1
    order = sorted(answer.ranked, key=lambda candidate: (candidate.caveat is not None, sign * candidate.best_known))
    if not order:
        return answer
    tie = tie_of(answer, order[0])
    candidates = []
    for candidate in order:
        behind = objective.worse_by(candidate.best_known, order[0].best_known)
        tied = behind <= tie or not _told_apart(order[0], candidate)
        candidates.append(replace(candidate, behind=behind, tied=tied))
    equals = [candidate for candidate in candidates if candidate.tied and candidate.caveat is None] or candidates[:1]
    pick = min(equals, key=_simplicity)
    others = (candidate for candidate in candidates if candidate is not pick)
    return replace(answer, ranked=(pick, *others), pick=pick)


def _told_apart(best: Candidate, other: Candidate) -> bool:
    """Whether the runs of both differ by more than chance; what was not run often enough is told by its numbers."""
    return certainty(best.measured_values, other.measured_values) is not Certainty.TIE


def tie_of(answer: Answer, best: Candidate) -> float:
    """How close to the best a candidate must be to tie: repeats vary as much, and data sheets are no more exact."""
    if best.measured is not None or answer.question.hardware.calibration is not None:
        return TIE
    return max(TIE, best.prediction.deviation)


def _candidate(
    objective: Objective, prediction: Prediction, evidence: Evidence, critical_batch: CriticalBatch | None
) -> Candidate:
    spec, value = prediction.spec, objective.of(prediction)
    chosen = strategy(spec.strategy)
    caveat = None if chosen.synchronous else UNSYNCHRONISED
    if chosen.testing.reference(spec).optimizer != spec.optimizer:
        caveat = ANOTHER_OPTIMIZER
    if objective.name == "time-to-accuracy" and critical_batch:
        # 1 + batch / critical batch times as many samples (McCandlish et al., "An Empirical Model of Large-Batch
        # Training", 2018).
        more, least, most = critical_batch.more_samples(spec.samples_per_step)
        value = Estimate(value.value * more, value.low * least, value.high * most)
    runs = evidence.get(_identity(spec), [])
    return Candidate(
        prediction, value, caveat=caveat, records=tuple(number for number, _ in runs),
        earlier_samples_per_second=median(rate for _, rate in runs) if runs else None,
    )  # fmt: skip


def _identity(spec: RunSpec) -> str:
    fields = spec.model_dump(mode="json", include={"workload", "model", "options", "device", "precision", "link"})
    spread = spec.model_dump(mode="json", include=set(SPREADING_FIELDS))
    return f"{fields} {spread} {spec.samples_per_step}"


def _evidence(records: Iterable[Record]) -> Evidence:
    """Good runs by configuration: their numbers in the results file, and samples per second."""
    runs: Evidence = {}
    for record in records:
        if record.ok and record.spec.is_plain and record.id is not None and record.steady is not None:
            runs.setdefault(_identity(record.spec), []).append((record.id, record.steady.samples_per_second))
    return runs


@dataclass(frozen=True)
class Measurement:
    """What runs of a candidate gave, in the objective's unit, the best of them, and the number of the last record."""

    values: tuple[float, ...]
    best: float
    record: int
    disturbed: bool


def with_measurements(answer: Answer, measured: Sequence[tuple[RunSpec, Measurement]], runs: int) -> Answer:
    """The answer ranked again with the measured values of the best candidates."""
    by_spec = {_identity(spec): measurement for spec, measurement in measured}
    run, predicted_only = [], []
    for candidate in answer.ranked:
        measurement = by_spec.get(_identity(candidate.spec))
        if measurement is None:
            predicted_only.append(replace(candidate, measured=None))
        else:
            run.append(replace(
                candidate, measured=measurement.best, measured_values=measurement.values,
                disturbed=measurement.disturbed, records=(*candidate.records, measurement.record),
            ))  # fmt: skip
    # What was run stands before what was only predicted.
    again = ranked(replace(answer, ranked=tuple(run), measured_runs=runs))
    return replace(again, ranked=(*again.ranked, *predicted_only))
