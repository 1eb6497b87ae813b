"""Why the pick is the pick: sentences from the parts of its step, from cited facts, and from runs that were made."""

import tomllib
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources
from typing import Any

from paceline.analysis.batches.critical import SearchedSteps
from paceline.analysis.verdicts.certainty import Certainty
from paceline.analysis.verdicts.judge import Contender, judge
from paceline.costs.footprint import optimizer_bytes
from paceline.costs.precision import parameter_width
from paceline.predict.prediction import Prediction
from paceline.predict.question import Question
from paceline.recommend.answer import TIE, Answer, Candidate, tie_of
from paceline.recommend.bottleneck import shares_of_step
from paceline.recommend.dimensions import explain_layout
from paceline.recommend.learning_rate import learning_rate_advice
from paceline.recommend.lighter import host_bytes, host_limit
from paceline.recommend.outlook import what_would_change, what_would_fit
from paceline.recommend.reading import explain_reading
from paceline.recommend.unexpected import explain_unexpected
from paceline.strategies import strategy, usual_on_several_devices
from paceline.units import (
    format_about,
    format_bytes,
    format_count,
    format_days,
    format_energy,
    format_money,
    format_percent,
    format_rate,
    format_seconds,
)

# A part below this share of a step is not worth a word.
LEAST_SHARE = 0.02
# Batches beyond this many doublings of one sample are no answer.
DOUBLINGS = 20
MOST_FACTS = 2
# Money below is told to the hundredth.
EXACT_MONEY = 100
MOST_TRIED = 3
BY_TIME = ("throughput", "time-to-accuracy")
# How many epochs a batch needs, no prediction tells.
WITHOUT_CRITICAL_BATCH = (
    "the least time for an epoch, and no more than that: how many epochs a larger batch needs is not known. No "
    "accuracy is promised; --measure or a study such as batch-regimes would find it, --critical-batch says it"
)


@cache
def _facts() -> list[dict[str, Any]]:
    text = (resources.files("paceline.recommend") / "facts.toml").read_text()
    return list(tomllib.loads(text)["facts"])


def facts_about(name: str, parameters: int = 0, workers: int | None = None) -> list[str]:
    """Known facts about a strategy that matter to models of this size, each with its source.

    One worker alone sends nothing; what is known of strategies for several says nothing of it.
    """
    if workers == 1 and strategy(name).family != "single":
        return []
    return [
        f"{fact['text']} ({fact['source']})."
        for fact in _facts()
        if any(fnmatchcase(name, pattern) for pattern in fact["strategies"])
        and parameters <= fact.get("most_parameters", parameters)
    ]


def explain(answer: Answer) -> list[str]:
    """All sentences about the pick."""
    pick = answer.pick
    if pick is None:
        return ["Nothing that was asked about can run: see the reasons below.", *what_would_fit(answer)]
    sentences = [_first(answer, pick)]
    sentences += _how_sure(answer)
    sentences += filter(None, [explain_unexpected(answer, pick)])
    sentences += _utilisation(pick.prediction)
    sentences += _training(answer, pick.prediction)
    sentences += _batch(answer.question, pick)
    sentences += _samples_needed(answer, pick)
    sentences += _ties(answer, pick)
    sentences += _parts(answer.question, pick.prediction)
    sentences += explain_reading(answer.readings, pick.prediction)
    sentences += _offloaded(answer.question, pick.prediction)
    sentences += explain_layout(answer.question, pick.prediction)
    sentences += what_would_change(answer)
    sentences += _against_one(answer, pick)
    sentences += _against_next(answer, pick)
    sentences += _faster_but(answer, pick)
    sentences += facts_about(pick.spec.strategy, answer.question.facts.parameters, pick.spec.workers)[:MOST_FACTS]
    if pick.records:
        earlier = pick.earlier_samples_per_second
        rate = f": {format_rate(earlier)} samples/s" if earlier is not None else ""
        sentences.append(f"Measured in {_runs(pick.records)}{rate}.")
    return sentences


def label(configuration: Candidate | Prediction) -> str:
    """A configuration in a few words."""
    spec = configuration.spec
    knobs = "".join(f", {name} {value}" for name, value in spec.settings.items())
    how = "" if spec.execution == "eager" else f", {spec.execution}"
    return f"{spec.strategy} on {format_count(spec.workers, 'worker')}{knobs}{how}"


def _first(answer: Answer, pick: Candidate) -> str:
    basis = "measured" if pick.measured is not None else "predicted"
    interval = ""
    if pick.measured is None:
        low, high = (answer.objective.text(value) for value in (pick.value.low, pick.value.high))
        interval = f" (90 %: {low} to {high})"
    unknown = answer.objective.name == "time-to-accuracy" and answer.critical_batch is None
    about = WITHOUT_CRITICAL_BATCH if unknown else f"the {answer.objective.about}"
    return (
        f"Use {label(pick)}, a global batch of {pick.spec.samples_per_step:,}: "
        f"{answer.objective.text(pick.best_known)} {basis}{interval}, {about}."
    )


def _how_sure(answer: Answer) -> Iterator[str]:
    """The verdict over the candidates that were run."""
    run = [candidate for candidate in answer.ranked if candidate.measured_values]
    higher = answer.objective.metric.better == "higher"
    contenders = [
        Contender(
            _short_name(candidate), candidate.spec.workers,
            tuple(value if higher else 1 / value for value in candidate.measured_values),
        )
        for candidate in run
    ]  # fmt: skip
    if len(contenders) < 2:
        return
    verdict = judge(contenders)
    picked = next(place for place, candidate in enumerate(run) if candidate is answer.pick)
    if verdict.certainty in (Certainty.UNKNOWN, Certainty.TIE) or verdict.best is contenders[picked]:
        yield f"How sure: {verdict.how_sure}."
    else:
        ahead = format_percent(verdict.best.median / contenders[picked].median - 1)
        runs = format_count(verdict.fewest_runs, "run")
        yield (
            f"How sure: {verdict.word}, {verdict.best.name} is {ahead} ahead of it in {runs}, too little to give up "
            f"what is simpler."
        )


def _utilisation(prediction: Prediction) -> Iterator[str]:
    """For models of tokens on GPUs: tokens per second, and the share of the peak that they reach."""
    tokens = prediction.tokens_per_second
    if tokens is not None and prediction.spec.device != "cpu":
        yield (
            f"That is {format_about(tokens.value)} tokens/s on each device, {format_percent(prediction.utilisation)} "
            f"of its peak in {prediction.spec.precision} (MFU), and "
            f"{format_about(prediction.samples_per_second.value)} samples/s in all."
        )


def _offloaded(question: Question, prediction: Prediction) -> Iterator[str]:
    """Why shards wait in the host's memory, and how much of it a machine needs for them."""
    spec = prediction.spec
    if not spec.offload:
        return
    waiting = host_bytes(question, spec, strategy(spec.strategy).footprint(spec, question.facts))
    limit = host_limit(question, spec)
    yield (
        f"Parameters, gradients and optimizer state wait in the host's memory (offload), {format_bytes(waiting)} of "
        f"{f'the {format_bytes(limit)} that are taken for a machine' if limit else 'it on each machine'}, and the "
        f"host updates them: nothing fits otherwise."
    )


def _training(answer: Answer, prediction: Prediction) -> Iterator[str]:
    """Days, energy and money of all the training that was asked about."""
    question = answer.question
    if question.tokens is None and question.samples is None:
        return
    if question.tokens is None:
        what = f"{question.samples:,} samples"
    else:
        billions = question.tokens / 1e9
        what = f"{billions:,.4g} billion tokens" if billions >= 1 else f"{question.tokens:,.0f} tokens"
    seconds, cost = prediction.epoch_seconds, prediction.cost_per_epoch
    price = f" and {_about(cost.value)} at {prediction.price_per_device_hour:g} per device-hour" if cost else ""
    energy = format_energy(prediction.joules_per_epoch.value)
    yield (
        f"{what} take {format_days(seconds.value)} (90 %: {format_days(seconds.low)} to "
        f"{format_days(seconds.high)}), {energy} of the devices{price}."
    )


def _about(amount: float) -> str:
    """Money with no more digits than a prediction has."""
    return format_about(amount) if amount >= EXACT_MONEY else format_money(amount)


def _batch(question: Question, pick: Candidate) -> Iterator[str]:
    """Where the batch comes from, if it is a model's usual one."""
    if question.chose_batch and question.tokens_per_sample is not None and question.hardware.kind == "cuda":
        tokens = pick.spec.samples_per_step * question.tokens_per_sample
        yield (
            f"The batch is {format_about(tokens / 1e6)} million tokens, as models of this size are trained with "
            f"(GPT-3, Llama 2 and 3); --global-batch and --local-batch set another."
        )


def _samples_needed(answer: Answer, pick: Candidate) -> Iterator[str]:
    """For time to accuracy: how many samples the batch needs and by what that is known, and its learning rate."""
    if answer.objective.name != "time-to-accuracy":
        return
    batch, critical = pick.spec.samples_per_step, answer.critical_batch
    if critical is not None:
        more, least, most = critical.more_samples(batch)
        between = f" ({least:.2g} to {most:.2g})" if least != most else ""
        yield (
            f"A batch of {batch:,} needs {more:.2g} times{between} the least samples, which is counted in: the "
            f"critical batch is {critical.text}."
        )
        if critical.searched is not None:
            yield _time_to_target(pick, critical.searched)
    if (rule := learning_rate_advice(pick.spec, answer.question, critical)) is not None:
        yield rule


def _time_to_target(pick: Candidate, searched: SearchedSteps) -> str:
    """Steps to the target of a stored search with the batch of the pick, and how long they take."""
    steps = searched.regimes.steps_interval(pick.spec.samples_per_step)
    epoch, step = pick.prediction.epoch_seconds, pick.prediction.parts.step
    between = time_between = ""
    if steps.low is not None and steps.high is not None:
        # How sure the time of a step is, is known of the epoch's.
        slowest, quickest = epoch.high / epoch.value, epoch.low / epoch.value
        between = f" (90 %: {steps.low:,.0f} to {steps.high:,.0f})"
        low, high = (format_seconds(seconds) for seconds in (steps.low * step * quickest, steps.high * step * slowest))
        time_between = f" ({low} to {high})"
    return (
        f"With this batch such runs take about {steps.value:,.0f} steps{between} to {searched.target}: "
        f"{format_seconds(steps.value * step)}{time_between} at this pace, if the optimizer and its rate are as good "
        f"as theirs."
    )


def _ties(answer: Answer, pick: Candidate) -> Iterator[str]:
    others = [other for other in answer.ranked if other.tied and other is not pick and other.caveat is None]
    if others:
        names = "; ".join(_short_name(other) for other in others[:4])
        more = f" and {len(others) - 4} more" if len(others) > 4 else ""
        best = min(answer.ranked, key=lambda candidate: (candidate.caveat is not None, candidate.behind))
        near = format_percent(tie_of(answer, best))
        apart = f"within {near}" if pick.measured is None else f"within {near}, or by runs that overlap"
        yield f"It ties with {names}{more}: {apart}. Of those it is the simplest."
        if answer.question.hardware.kind == "cpu" and not answer.measured_runs:
            yield f"--measure {min(MOST_TRIED, len(others) + 1)} would run them here and tell them apart."


def _short_name(candidate: Candidate) -> str:
    spec = candidate.spec
    return " ".join([spec.strategy, *([spec.layout.text] if spec.layout else []), f"x{spec.workers}"])


def _parts(question: Question, prediction: Prediction) -> Iterator[str]:
    step, shares = prediction.parts.step, shares_of_step(question, prediction)
    bound = next(iter(shares))
    large = [f"{format_percent(share)} {name}" for name, share in shares.items() if share >= LEAST_SHARE]
    yield f"It is bound by {bound}: of a step of {format_seconds(step)}, {', '.join(large)}."
    hidden = prediction.parts.transfers - prediction.parts.exposed
    if hidden / step >= LEAST_SHARE:
        yield f"{format_seconds(hidden)} of transfer hides behind computation."


def _against_one(answer: Answer, pick: Candidate) -> Iterator[str]:
    """Says that one worker is enough and from which batch on two would pay, or what several workers gain over one."""
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
            f"That is {format_about(speedup)} times one worker, {format_percent(efficiency)} of ideal"
            + (", if one worker could hold it." if not _one_fits(answer) else ".")
        )


def _one_fits(answer: Answer) -> bool:
    """Whether one worker was predicted, or has room at least for parameters, gradients and optimizer state."""
    if any(candidate.spec.workers == 1 for candidate in answer.ranked):
        return True
    spec, parameters = answer.question.base, answer.question.facts.parameters
    width = parameter_width(spec)
    state = 2 * parameters * width + optimizer_bytes(spec.optimizer, parameters, answer.question.facts.tensors, width)
    reserved = answer.question.hardware.device.reserved_bytes.value
    return min(answer.question.workers) > 1 and state <= answer.question.predictor.memory_limit - reserved


def break_even(question: Question, pick: Candidate) -> str:
    """The global batch from which on two workers with data parallelism are faster than one."""
    name = usual_on_several_devices(strategy(pick.spec.strategy).framework or "torch").name
    if question.links != (None,) and any(map(question.why_not, question.specs(name, {}, (2,)))):
        # It is one process, which crosses no link.
        name = usual_on_several_devices("torch").name
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
    """Names a strategy with a better number that is not picked, and why not."""
    for other in answer.ranked:
        if other.caveat and answer.objective.better(other.best_known, pick.best_known):
            yield f"{label(other)} would reach {answer.objective.text(other.best_known)}, but {other.caveat}."
            return


def _runs(records: tuple[int, ...]) -> str:
    numbers = ", ".join(str(number) for number in records[:4])
    return f"run {numbers}" if len(records) == 1 else f"runs {numbers}"
