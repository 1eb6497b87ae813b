"""What would change an answer: a larger batch, faster links, more memory; and what would fit where nothing does."""

from collections.abc import Callable, Iterator
from typing import Any

from paceline.errors import UserError
from paceline.predict.question import Question
from paceline.recommend.answer import Answer, Candidate, recommend
from paceline.recommend.bottleneck import HOST, shares_of_step
from paceline.recommend.objectives import Objective
from paceline.spec import RunSpec
from paceline.systems.files import load_hardware, shipped_systems
from paceline.systems.hardware import Hardware, Link, Quantity
from paceline.units import format_bytes, format_count, format_percent

# Changes that gain less are not worth a word.
LEAST_GAIN = 0.03
# By how much each is changed.
TWICE = 2
# What a gain is called where it is none of time.
BETTER = {"energy": "more economical", "cost": "cheaper"}
# Devices are doubled so often, to find how many would hold the model.
DOUBLINGS = 7


def what_would_change(answer: Answer) -> Iterator[str]:
    """A sentence about changes that would make the answer better on GPUs, or that none would."""
    pick, question = answer.pick, answer.question
    if pick is None or question.hardware.kind != "cuda" or answer.objective.metric.name == "peak_memory_bytes":
        return
    gains = []
    for words, change in _changes(question, pick.spec).items():
        best = _best(question.but_with(**change), pick, answer)
        if best is None:
            continue
        gain = _gain(answer.objective, pick, best)
        if gain >= LEAST_GAIN:
            how, better = _differences(pick.spec, best.spec), BETTER.get(answer.objective.name, "faster")
            gains.append((gain, f"{words} would make it {format_percent(gain)} {better}{how}"))
    if gains:
        yield f"What would change it: {'; '.join(text for _, text in sorted(gains, reverse=True))}."
    else:
        bound = next(iter(shares_of_step(question, pick.prediction)))
        yield (
            f"Neither twice the batch, links twice as fast nor twice the memory would gain "
            f"{format_percent(LEAST_GAIN)}: {bound} decide{'' if bound == HOST else 's'}."
        )


def _gain(objective: Objective, pick: Candidate, best: Candidate) -> float:
    """By how much the objective is better; what is told of an epoch, per sample, as batches may be larger than that."""
    values = [
        each.value.value / (1 if objective.metric.better == "higher" else each.prediction.samples_per_epoch)
        for each in (pick, best)
    ]
    return objective.worse_by(*values)


def _changes(question: Question, spec: RunSpec) -> dict[str, dict[str, Any]]:
    hardware = question.hardware
    device = hardware.device
    batch = {"global_batches": (TWICE * spec.samples_per_step,), "local_batches": ()}
    changes: dict[str, dict[str, Any]] = {"twice the batch": batch}
    if spec.workers > 1:
        changes["a link twice as fast within nodes"] = _with(hardware, inner=_faster(hardware.inner))
    if spec.workers > hardware.node_devices:
        changes["a link twice as fast between nodes"] = _with(hardware, outer=_faster(hardware.outer))
    memory = device.model_copy(update={"memory_bytes": _times(device.memory_bytes)})
    changes["twice the memory"] = _with(hardware, device=memory)
    return changes


def _with(hardware: Hardware, **fields: Any) -> dict[str, Any]:
    return {"hardware": hardware.model_copy(update=fields)}


def _faster(link: Link) -> Link:
    return link.model_copy(update={"bytes_per_second": _times(link.bytes_per_second)})


def _times(quantity: Quantity) -> Quantity:
    return Quantity(value=TWICE * quantity.value, source=f"twice: {quantity.source}")


def _best(question: Question, pick: Candidate, answer: Answer) -> Candidate | None:
    """The best candidate of the same strategy on as many workers."""
    fields: dict[str, Any] = {"strategies": (pick.spec.strategy,), "workers": (pick.spec.workers,)}
    if question.global_batches == answer.question.global_batches:
        fields |= {"global_batches": (pick.spec.samples_per_step,), "local_batches": ()}
    return recommend(question.but_with(**fields), answer.objective.name, (), answer.critical_batch).pick


def _differences(before: RunSpec, after: RunSpec) -> str:
    """The layout and recomputation, where the changed question would choose others."""
    changed = []
    if after.layout is not None and after.layout != before.layout:
        changed.append(f"layout {after.layout.text}")
    if after.recompute != before.recompute:
        changed.append(f"recompute {after.recompute}")
    return f" (with {' and '.join(changed)})" if changed else ""


def what_would_fit(answer: Answer) -> Iterator[str]:
    """Where nothing can be recommended: the nearest questions that have an answer."""
    question = answer.question
    tries: tuple[Callable[[Question], Iterator[tuple[str, Question]]], ...] = (
        _lifted_restrictions, _smaller_batches, _more_devices, _other_systems,
    )  # fmt: skip
    answers = []
    for others in tries:
        for words, other in others(question):
            try:
                best = recommend(other).pick
            except UserError:
                continue
            if best is not None:
                held = format_bytes(best.prediction.memory_bytes.value)
                answers.append(f"{words} ({_described(best)}, {held} on each)")
                break
    if answers:
        yield f"What would fit: {'; '.join(answers)}."


def _described(candidate: Candidate) -> str:
    spec = candidate.spec
    settings = ", ".join(f"{name} {value}" for name, value in spec.settings.items())
    return f"{spec.strategy} x{spec.workers}{f', {settings}' if settings else ''}"


def _lifted_restrictions(question: Question) -> Iterator[tuple[str, Question]]:
    """The question without the settings that it fixes, one kind after another."""
    if question.recompute != "none" or question.accumulation > 1 or question.knobs:
        yield "without the settings that are fixed", question.but_with(recompute="none", accumulation=1, knobs={})
    if question.layouts:
        yield "another layout", question.but_with(layouts=())
    if question.strategies:
        yield "another strategy", question.but_with(strategies=())


def _smaller_batches(question: Question) -> Iterator[tuple[str, Question]]:
    size = max(question.local_batches, default=1)
    while size > 1:
        size //= 2
        yield f"a local batch of {size}", question.but_with(local_batches=(size,), global_batches=())


def _more_devices(question: Question) -> Iterator[tuple[str, Question]]:
    most = max(question.workers)
    for doubling in range(1, DOUBLINGS + 1):
        workers = most << doubling
        yield format_count(workers, "device"), question.but_with(workers=(workers,))


def _other_systems(question: Question) -> Iterator[tuple[str, Question]]:
    """Shipped systems with more memory per device, the smallest first."""
    systems = [load_hardware(name) for name in shipped_systems()]
    memory = question.hardware.device.memory_bytes.value
    larger = [each for each in systems if each.kind == "cuda" and each.device.memory_bytes.value > memory]
    for hardware in sorted(larger, key=lambda each: each.device.memory_bytes.value):
        yield f"--system {hardware.name}", question.but_with(hardware=hardware)
