"""Layouts of a strategy that takes one, with micro-batches, recomputation and schedule ─► the best of them, predicted.

Every combination is screened by counted bytes and seconds. Those that a device could hold are predicted in the order of
their screened seconds, until what is left cannot be among the best.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest
from itertools import product

from paceline.layout import Layout
from paceline.predict.prediction import Prediction
from paceline.predict.question import Question
from paceline.recommend.lighter import may_be_lighter, predict_as_is
from paceline.recommend.screen import RECOMPUTATION, Screen, Setting
from paceline.spec import Execution, Recompute, RunSpec, Scalar
from paceline.strategies import strategy
from paceline.units import format_bytes

# The field by which a strategy says that its layouts are worth searching.
LAYOUT = "layout"
# Sequences from this length on are divided over devices: torchtitan's from 32,768 tokens on, Llama 3's from 131,072.
LONG_SEQUENCE = 32_768
# Stages that a rank of a pipeline may hold: one, or two and four that take turns (Narayanan et al., 2021).
STAGES_PER_WORKER = (1, 2, 4)
# Micro-batches of a round for each rank of a pipeline: many leave it idle for little, few need less room for what is
# received.
ROUNDS = (8, 4, 2)
# Screened bytes leave out small buffers and what allocators keep; a prediction says what really fits.
MEMORY_TOLERANCE = 0.88
# What a prediction may be below its screened seconds, for want of knowing better what hides.
SECONDS_TOLERANCE = 0.15
# Layouts that are predicted at least and at most, of a worker count and a batch; and settings whose memory is worked
# out, of which a layout may have dozens that are screened a little below what fits.
FEWEST_PREDICTED, MOST_PREDICTED, MOST_ATTEMPTS = 6, 24, 400


@dataclass
class LayoutSearch:
    """The result of a search over layouts."""

    predictions: list[Prediction] = field(default_factory=list)
    screened: int = 0
    # Why nothing fits or can be run, where that is so.
    why_not: str | None = None


def searches_layouts(name: str) -> bool:
    """Whether a strategy declares that its layouts are worth searching."""
    return any(search.knob == LAYOUT for search in strategy(name).traits.searched)


def search_layouts(question: Question, spec: RunSpec, by_memory: bool = False) -> LayoutSearch:
    """The best settings for the workers and batch of `spec`: the fastest, or with `by_memory` the smallest."""
    result, screen = LayoutSearch(), Screen(question.predictor, spec)
    limit = question.predictor.memory_limit - question.hardware.device.reserved_bytes.value
    fitting: list[tuple[float, int, Setting]] = []
    refused: list[tuple[float, int, Setting]] = []
    least = float("inf")
    for setting in _settings(question, spec):
        result.screened += 1
        held = screen.held_bytes(setting)
        least = min(least, held)
        if held * MEMORY_TOLERANCE <= limit:
            fitting.append((held if by_memory else screen.step_seconds(setting), result.screened, setting))
        elif question.model is not None:
            refused.append((held, result.screened, setting))
    if not result.screened:
        result.why_not = _why_none(question, spec)
    elif not fitting:
        result.why_not = f"a worker would hold {format_bytes(least)} at the least and has {format_bytes(limit)}"
    # What a block of a user's model keeps when it is computed again is counted only by a trace.
    order = sorted(fitting) or nsmallest(FEWEST_PREDICTED, refused)
    _predict_best(question, spec, order, result)
    return result


def _predict_best(
    question: Question, spec: RunSpec, order: list[tuple[float, int, Setting]], result: LayoutSearch
) -> None:
    """Predicts settings in order; the first that fits stands for all that divide the work in the same way."""
    done: set[tuple[int, ...]] = set()
    best = float("inf")
    attempts = 0
    for value, _, setting in order:
        enough = len(result.predictions) >= FEWEST_PREDICTED and value * (1 - SECONDS_TOLERANCE) > best
        if enough or len(result.predictions) >= MOST_PREDICTED or attempts >= MOST_ATTEMPTS:
            break
        layout = setting.layout
        work = layout.tensor, layout.pipeline, layout.context, layout.expert
        if work in done:
            continue
        attempts += 1
        predictions, why_not = predict_as_is(question, run_of(spec, setting))
        result.why_not = result.why_not or why_not
        for prediction in predictions:
            done.add(work)
            result.predictions.append(prediction)
            best = min(best, prediction.parts.step)


def run_of(spec: RunSpec, setting: Setting) -> RunSpec:
    """The run with a setting."""
    layout, knobs = setting.layout, dict(spec.knobs)
    fields: dict[str, object] = {
        "layout": layout, "workers": layout.workers, "recompute": setting.recompute, "execution": setting.execution,
    }  # fmt: skip
    if layout.pipeline > 1:
        knobs["microbatches"] = setting.passes // setting.rounds
        fields["accumulation"] = setting.rounds
        if setting.stages_per_worker > 1:
            knobs |= {"schedule": "interleaved", "stages_per_worker": setting.stages_per_worker}
    else:
        fields["accumulation"] = setting.passes
        if setting.reduces_each:
            knobs |= strategy(spec.strategy).traits.lighter_with
    return spec.model_copy(update={**fields, "knobs": knobs})


def _settings(question: Question, spec: RunSpec) -> Iterator[Setting]:
    """Every combination that the model and the batch allow and the question leaves open."""
    ways: tuple[Recompute, ...] = (spec.recompute,) if "recompute" in question.settings else RECOMPUTATION
    for layout, executions in _layouts(question, spec, ways):
        samples, rest = divmod(spec.samples_per_step, layout.data_ranks)
        if rest or not samples:
            continue
        for passes in _passes(question, layout, samples):
            for stages, rounds in product(_stages(question, layout, passes), _rounds(question, layout, passes)):
                for way, execution in executions.items():
                    yield Setting(layout, samples, passes, way, stages, execution, rounds)
                    if passes > 1 and may_be_lighter(question, spec.strategy) and layout.pipeline == 1:
                        yield Setting(layout, samples, passes, way, stages, execution, rounds, reduces_each=True)


Executions = dict[Recompute, Execution]


def _layouts(question: Question, spec: RunSpec, ways: Sequence[Recompute]) -> Iterator[tuple[Layout, Executions]]:
    """Layouts that the model supports, each with its execution for each way to recompute."""
    if question.layouts:
        layouts = [layout for layout in question.layouts if layout.workers == spec.workers]
    else:
        search = next(each for each in strategy(spec.strategy).traits.searched if each.knob == LAYOUT)
        texts = search.values(spec.workers, question.hardware)
        layouts = [Layout(shard=spec.workers), *(Layout.from_text(str(text)) for text in texts)]
        sensible = (layout for layout in layouts if _is_sensible(question, layout, spec))
        layouts = [layout for plain in sensible for layout in _with_experts(question, plain)]
    executions: dict[tuple[int, ...], Executions] = {}
    for layout in layouts:
        # What a model refuses does not depend on how its copies and shards are divided.
        key = (
            layout.tensor,
            layout.pipeline,
            layout.context,
            layout.expert,
            layout.holders * layout.tensor % layout.expert,
        )
        if key not in executions:
            executions[key] = _executions(question, spec, layout, ways)
        if executions[key]:
            yield layout, executions[key]


def _is_sensible(question: Question, layout: Layout, spec: RunSpec) -> bool:
    if spec.offload and layout.replicate > 1:
        # Every copy would wait in the host's memory, and gain nothing there.
        return False
    return layout.context == 1 or question.facts.input_elements >= LONG_SEQUENCE


def _with_experts(question: Question, layout: Layout) -> Iterator[Layout]:
    """The layout, and with experts dealt over as many devices in a row as divide them, within a node."""
    yield layout
    experts = max(layer.experts for layer in question.facts.layers)
    ways = 2
    ranks = layout.holders * layout.tensor
    while ways <= min(experts, ranks, question.hardware.node_devices):
        if experts % ways == 0 and ranks % ways == 0:
            yield layout.model_copy(update={"expert": ways})
        ways *= 2


def _executions(question: Question, spec: RunSpec, layout: Layout, ways: Sequence[Recompute]) -> Executions:
    """The execution of steps with this layout, by recomputation; empty where the model does not support it."""
    samples = layout.data_ranks * layout.pipeline * 2
    fields = {"layout": layout, "workers": layout.workers, "global_batch": samples, "local_batch": None, "knobs": {},
              "execution": question.base.execution}  # fmt: skip
    runs = [spec.model_copy(update={**fields, "recompute": way}) for way in ways]
    return {run.recompute: question.as_usual(run).execution for run in runs if question.why_not(run) is None}


def _passes(question: Question, layout: Layout, samples: int) -> Iterator[int]:
    """Numbers of passes to try: doubled each time, down to one sample per pass."""
    fixed = _fixed(question, "microbatches" if layout.pipeline > 1 else "accumulation")
    if fixed is not None:
        yield from [fixed] if samples % fixed == 0 else []
        return
    passes = 1
    while passes <= samples:
        if samples % passes == 0 and passes >= layout.pipeline:
            yield passes
        passes *= 2


def _rounds(question: Question, layout: Layout, passes: int) -> list[int]:
    """Ways to group passes into rounds: one round, or several that each fill the pipeline; buffers hold one."""
    if layout.pipeline == 1 or _fixed(question, "microbatches") is not None:
        return [1]
    sizes = [count * layout.pipeline for count in ROUNDS]
    return [1, *(passes // size for size in sizes if passes > size and passes % size == 0)]


def _stages(question: Question, layout: Layout, passes: int) -> Iterator[int]:
    """Stages per rank to try; interleaved schedules need a multiple of the pipeline's ranks as micro-batches."""
    if layout.pipeline == 1:
        yield 1
        return
    fixed = _fixed(question, "stages_per_worker")
    schedule = question.knobs.get("schedule")
    layers = len(question.facts.layers)
    for stages in STAGES_PER_WORKER if fixed is None else (fixed,):
        interleaved = stages > 1
        if schedule not in (None, "interleaved" if interleaved else "1f1b"):
            continue
        if not interleaved or (passes % layout.pipeline == 0 and layout.pipeline * stages < layers):
            yield stages


def _fixed(question: Question, name: str) -> int | None:
    value: Scalar | None = question.knobs.get(name)
    if name == "accumulation" and question.accumulation > 1:
        value = question.accumulation
    return int(value) if value else None


def _why_none(question: Question, spec: RunSpec) -> str:
    for layout in question.layouts or (Layout(shard=spec.workers),):
        if (reason := question.why_not(run_of(spec, Setting(layout, 1, 1, spec.recompute)))) is not None:
            return reason
    batch = spec.samples_per_step
    return f"no layout of {spec.workers} devices divides a batch of {batch}; use a batch with more factors of two"
