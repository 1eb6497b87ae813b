"""Why the pick is the pick: sentences from the parts of its step, from cited facts, and from runs that were made."""

import tomllib
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources
from typing import Any

from paceline.predict.prediction import Prediction
from paceline.predict.question import Question
from paceline.recommend.answer import TIE, Answer, Candidate
from paceline.recommend.dimensions import explain_layout
from paceline.strategies import strategy, usual_on_several_devices
from paceline.units import format_bytes, format_count, format_percent, format_rate, format_seconds

# A part below this share of a step is not worth a word.
LEAST_SHARE = 0.02
# Batches beyond this many doublings of one sample are no answer.
DOUBLINGS = 20
MOST_FACTS = 2
MOST_TRIED = 3
BY_TIME = ("throughput", "time-to-accuracy")


@cache
def _facts() -> list[dict[str, Any]]:
    text = (resources.files("paceline.recommend") / "facts.toml").read_text()
    return list(tomllib.loads(text)["facts"])


def facts_about(name: str) -> list[str]:
    """What is known of a strategy, with its source."""
    return [
        f"{fact['text']} ({fact['source']})."
        for fact in _facts()
        if any(fnmatchcase(name, pattern) for pattern in fact["strategies"])
    ]


def explain(answer: Answer) -> list[str]:
    """All there is to say about the pick."""
    pick = answer.pick
    if pick is None:
        return ["Nothing that was asked about can run: see the reasons below."]
    sentences = [_first(answer, pick)]
    sentences += _ties(answer, pick)
    sentences += _parts(pick.prediction)
    sentences += explain_layout(answer.question, pick.prediction)
    sentences += _against_one(answer, pick)
    sentences += _against_next(answer, pick)
    sentences += _faster_but(answer, pick)
    sentences += facts_about(pick.spec.strategy)[:MOST_FACTS]
    if pick.records:
        known = pick.earlier_samples_per_second
        rate = f": {format_rate(known)} samples/s" if known is not None else ""
        sentences.append(f"Measured in {_runs(pick.records)}{rate}.")
    return sentences


def label(configuration: Candidate | Prediction) -> str:
    """A configuration in a few words."""
    spec = configuration.spec
    knobs = "".join(f", {name} {value}" for name, value in spec.settings.items())
    return f"{spec.strategy} on {format_count(spec.workers, 'worker')}{knobs}"


def _first(answer: Answer, pick: Candidate) -> str:
    known = "measured" if pick.measured is not None else "predicted"
    interval = ""
    if pick.measured is None:
        low, high = (answer.objective.text(value) for value in (pick.value.low, pick.value.high))
        interval = f" (90 %: {low} to {high})"
    return (
        f"Use {label(pick)}, a global batch of {pick.spec.samples_per_step:,}: "
        f"{answer.objective.text(pick.best_known)} {known}{interval}, the {answer.objective.about}."
    )


def _ties(answer: Answer, pick: Candidate) -> Iterator[str]:
    others = [other for other in answer.ranked if other.tied and other is not pick and other.caveat is None]
    if others:
        names = ", ".join(f"{other.spec.strategy} x{other.spec.workers}" for other in others[:4])
        more = f" and {len(others) - 4} more" if len(others) > 4 else ""
        yield f"It ties with {names}{more}: within {format_percent(TIE)}. Of those it is the simplest."
        if answer.question.hardware.kind == "cpu" and not answer.measured_runs:
            yield f"--measure {min(MOST_TRIED, len(others) + 1)} would run them here and tell them apart."


def _parts(prediction: Prediction) -> Iterator[str]:
    parts, step = prediction.parts, prediction.parts.step
    shares = {
        "communication that nothing hides": parts.exposed, "an idle line of stages": parts.bubble,
        "waiting for slower ranks or for a core": parts.waiting,
    }  # fmt: skip
    large = [f"{format_percent(part / step)} {name}" for name, part in shares.items() if part / step >= LEAST_SHARE]
    rest = f", {', '.join(large)}" if large else ""
    yield f"Of a step of {format_seconds(step)}, {format_percent(parts.compute / step)} is computation{rest}."
    hidden = parts.transfers - parts.exposed
    if hidden / step >= LEAST_SHARE:
        yield f"{format_seconds(hidden)} of transfer hides behind computation."


def _against_one(answer: Answer, pick: Candidate) -> Iterator[str]:
    """One worker, sentences plainly, with the batch from which on two would pay; or what more workers bring."""
    if pick.spec.workers == 1:
        if max(answer.question.workers) > 1 and answer.objective.name in BY_TIME:
            yield "One worker is enough: more of them gain less than they cost each other."
            yield break_even(answer.question, pick)
        elif max(answer.question.workers) > 1:
            yield "One worker is enough: each further one spends some of its time on the others."
        return
    speedup, efficiency = pick.prediction.speedup, pick.prediction.efficiency
    if speedup is not None and efficiency is not None:
        yield (
            f"That is {speedup:.2f} times one worker, {format_percent(efficiency)} of ideal"
            + (", if one worker could hold it." if not _one_fits(answer) else ".")
        )


def _one_fits(answer: Answer) -> bool:
    return any(candidate.spec.workers == 1 for candidate in answer.ranked) or min(answer.question.workers) > 1


def break_even(question: Question, pick: Candidate) -> str:
    """The global batch from which on two workers with data parallelism are faster than one."""
    name = usual_on_several_devices(strategy(pick.spec.strategy).framework or "torch").name
    for doubling in range(1, DOUBLINGS + 1):
        batch = 1 << doubling
        (spec,) = question.specs(name, {}, (2,), [("global_batch", batch)])
        prediction = question.predictor.predict(spec)
        if prediction.speedup is not None and prediction.speedup > 1 + TIE and prediction.fits:
            return f"Two workers with {name} would pay from a global batch of about {batch:,} on."
    return f"Two workers with {name} would not pay at any batch up to {batch:,}."


def _against_next(answer: Answer, pick: Candidate) -> Iterator[str]:
    """The best strategy of another kind, and why it is behind."""
    for other in answer.ranked:
        if other.spec.strategy != pick.spec.strategy and not other.tied and other.caveat is None:
            parts = other.prediction.parts
            names = {"computation": parts.compute, "exposed communication": parts.exposed, "idle stages": parts.bubble,
                     "waiting": parts.waiting}  # fmt: skip
            main = max(names, key=lambda name: names[name])
            yield (
                f"Next is {label(other)}, {format_percent(other.behind)} behind: "
                f"{format_percent(names[main] / parts.step)} of its step is {main}, and it holds "
                f"{format_bytes(other.prediction.memory_bytes.value)} per worker."
            )
            return


def _faster_but(answer: Answer, pick: Candidate) -> Iterator[str]:
    """An asynchronous strategy with the better number."""
    for other in answer.ranked:
        if other.caveat and answer.objective.better(other.best_known, pick.best_known):
            yield f"{label(other)} would reach {answer.objective.text(other.best_known)}, but {other.caveat}."
            return


def _runs(records: tuple[int, ...]) -> str:
    numbers = ", ".join(str(number) for number in records[:4])
    return f"run {numbers}" if len(records) == 1 else f"runs {numbers}"
