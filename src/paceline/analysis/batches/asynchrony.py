"""Steps to a target and steps per second of asynchronous strategies, beside a synchronous one with as many workers."""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from paceline.analysis.batches.regimes import target_text
from paceline.analysis.configurations.identity import identity_except
from paceline.analysis.labels import data_name
from paceline.analysis.rows import Row
from paceline.contract.strategy import Strategy
from paceline.spec import RunSpec, Scalar
from paceline.strategies import strategy_of_stored

# Below this share of a difference two ways are as soon.
ALIKE_SHARE = 0.05


@dataclass(frozen=True)
class Way:
    """One strategy with its settings at its best learning rate: steps to the target of each seed, and their speed."""

    name: str
    strategy: str
    # Those in which it differs from other ways of its strategy.
    knobs: tuple[tuple[str, Scalar], ...]
    synchronous: bool
    # Mean over all updates, in steps of other workers; None where neither settings nor runs tell it.
    staleness: float | None
    # Whether that was counted in its runs.
    counted: bool
    rate: float
    at_the_edge: bool
    steps: tuple[float, ...]
    step_seconds: float
    oversubscribed: bool

    @property
    def middle_steps(self) -> float:
        """The median over seeds."""
        return median(self.steps)

    @property
    def seconds(self) -> float:
        """Seconds of training to the target."""
        return self.middle_steps * self.step_seconds


@dataclass(frozen=True)
class Asynchrony:
    """Ways to train with as many workers on as large batches to one target; the first one is synchronous."""

    target: str
    title: str
    baseline: Way
    ways: tuple[Way, ...]
    # Those that never came to the target with any learning rate.
    missed: tuple[str, ...]
    rows: tuple[Row, ...]

    def speed(self, way: Way) -> float:
        """Steps per second, as a multiple of the synchronous one's."""
        return self.baseline.step_seconds / way.step_seconds

    def more_steps(self, way: Way) -> float:
        """Steps to the target, as a multiple of the synchronous one's."""
        return way.middle_steps / self.baseline.middle_steps


def asynchronous_searches(rows: Iterable[Row]) -> list[Asynchrony]:
    """Runs that look for a target, by all that they share beside strategy, its settings, learning rate and seed."""
    by_setting: dict[Hashable, list[Row]] = defaultdict(list)
    for row in rows:
        if row.measured and row.spec.has_target and row.spec.workers > 1:
            by_setting[_setting(row.spec)].append(row)
    searches = (_search(alike) for alike in by_setting.values())
    return [search for search in searches if search is not None]


def _setting(spec: RunSpec) -> Hashable:
    plain = spec.model_copy(update={"optimizer": spec.optimizer.model_copy(update={"lr": 1.0})})
    return identity_except(plain, {"strategy", "knobs", "seed", "timeout_seconds", "collective_timeout_seconds"})


def _search(rows: Sequence[Row]) -> Asynchrony | None:
    """None without a way of each kind that came to the target."""
    by_way: dict[Hashable, list[Row]] = defaultdict(list)
    for row in rows:
        chosen = strategy_of_stored(row.spec.strategy)
        if chosen is not None:
            by_way[row.spec.strategy, tuple(sorted(_knobs(row.spec, chosen).items()))].append(row)
    differing = _differing(list(by_way.values()))
    ways, missed = [], []
    for members in by_way.values():
        way = _way(members, differing.get(members[0].spec.strategy, []))
        if way is None:
            missed.append(_name(members[0].spec, differing.get(members[0].spec.strategy, [])))
        else:
            ways.append(way)
    synchronous = [way for way in ways if way.synchronous]
    others = sorted((way for way in ways if not way.synchronous), key=lambda way: (way.strategy, way.staleness or 0.0))
    if not synchronous or not others:
        return None
    spec = rows[0].spec
    title = (
        f"{spec.workload} on {data_name(spec)} · {spec.workers} workers, global batch {spec.samples_per_step:,}, "
        f"{spec.optimizer.name}"
    )
    baseline = min(synchronous, key=lambda way: way.seconds)
    return Asynchrony(target_text(rows[0]), title, baseline, tuple(others), tuple(missed), tuple(rows))


def _knobs(spec: RunSpec, chosen: Strategy) -> dict[str, Scalar]:
    """The run's knobs but its learning rate."""
    return {name: value for name, value in spec.knobs.items() if name != chosen.traits.rate_knob}


def _differing(ways: Sequence[Sequence[Row]]) -> dict[str, list[str]]:
    """The knobs in which the ways of each strategy differ."""
    values: dict[str, dict[str, set[Scalar]]] = defaultdict(lambda: defaultdict(set))
    for members in ways:
        spec = members[0].spec
        chosen = strategy_of_stored(spec.strategy)
        assert chosen is not None
        for knob, value in chosen.knob_values(spec).items():
            if knob != chosen.traits.rate_knob:
                values[chosen.name][knob].add(value)
    return {name: [knob for knob, choices in knobs.items() if len(choices) > 1] for name, knobs in values.items()}


def _rate(spec: RunSpec, chosen: Strategy) -> float:
    knob = chosen.traits.rate_knob
    return spec.optimizer.lr if knob is None else float(chosen.knob_values(spec)[knob])


def _name(spec: RunSpec, knobs: Sequence[str]) -> str:
    """The strategy with the named knobs."""
    chosen = strategy_of_stored(spec.strategy)
    assert chosen is not None
    values = chosen.knob_values(spec)
    return " ".join([chosen.name, *(f"{knob}={values[knob]}" for knob in knobs)])


def _way(rows: Sequence[Row], knobs: Sequence[str]) -> Way | None:
    """With the learning rate that took the fewest steps, by the median over seeds of which all came to the target."""
    chosen = strategy_of_stored(rows[0].spec.strategy)
    assert chosen is not None
    by_rate: dict[float, list[Row]] = defaultdict(list)
    for row in rows:
        by_rate[_rate(row.spec, chosen)].append(row)
    reached = {
        rate: [row.steps_to_target for row in members if row.steps_to_target is not None]
        for rate, members in by_rate.items()
        if all(row.steps_to_target is not None for row in members)
    }
    if not reached:
        return None
    best = min(reached, key=lambda rate: median(reached[rate]))
    members = by_rate[best]
    counted = [row.convergence.staleness_mean for row in members if row.convergence.staleness_mean is not None]
    stale = median(counted) if counted else 0.0 if chosen.synchronous else None
    if stale is None and chosen.traits.staleness is not None:
        stale = chosen.traits.staleness(rows[0].spec)
    # Of whole epochs, not of a middle step: most steps of local SGD send nothing. It hardly depends on the rate, and
    # the middle of all runs is steadier than that of a few.
    seconds = median(row.spec.samples_per_step / row.samples_per_second for row in rows if row.samples_per_second)
    values = chosen.knob_values(rows[0].spec)
    return Way(
        _name(rows[0].spec, knobs), chosen.name, tuple((knob, values[knob]) for knob in knobs),
        chosen.synchronous, stale, bool(counted), best,
        len(by_rate) > 1 and best in (min(by_rate), max(by_rate)), tuple(sorted(reached[best])), seconds,
        any(row.oversubscribed for row in members),
    )  # fmt: skip


def describe_asynchrony(search: Asynchrony) -> list[str]:
    """What each strategy came to at the setting with which it was soonest, and what is left open."""
    soonest: dict[str, Way] = {}
    for way in search.ways:
        if way.strategy not in soonest or way.seconds < soonest[way.strategy].seconds:
            soonest[way.strategy] = way
    sentences = [_sentence(search, way) for way in soonest.values()]
    if search.missed:
        sentences.append(f"Never came to it within the steps of a run: {', '.join(search.missed)}.")
    edges = [way for way in (search.baseline, *search.ways) if way.at_the_edge]
    if edges:
        at_edges = ", ".join(f"{way.name} ({way.rate:g})" for way in edges)
        sentences.append(f"The best learning rate is at the edge of those tried for {at_edges}: a better one may be.")
    if any(way.oversubscribed for way in (search.baseline, *search.ways)):
        crowded = ", ".join(dict.fromkeys(way.strategy for way in search.ways if way.oversubscribed))
        sentences.append(f"More processes than cores, which slows its steps: {crowded}.")
    return sentences


def _sentence(search: Asynchrony, way: Way) -> str:
    base = search.baseline
    ratio = way.seconds / base.seconds
    outcome = f"in {ratio:.2f} times its time" if abs(ratio - 1) > ALIKE_SHARE else "as soon"
    return (
        f"{way.name} makes {search.speed(way):.2f} times the steps/s of {base.name} and needs "
        f"{search.more_steps(way):.2f} times its steps: it comes to {search.target} {outcome}."
    )
