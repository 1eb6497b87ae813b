"""Writes `docs/accuracy.md` and its pictures: predictions against published and recorded runs, by method.

python tools/write_accuracy.py            (`make docs` runs it too)

Published training rates, steps that were measured on one H200 (`docs/results/accuracy/h200-steps.json`) and the runs in
`tests/validation` are predicted anew.
"""

import json
from collections.abc import Iterable, Iterator
from math import exp, log
from pathlib import Path
from statistics import mean
from typing import Any

from pydantic import BaseModel

from paceline.contract.context import spec_facts
from paceline.plan import complete
from paceline.predict.deviations import UNKNOWN_STACK
from paceline.predict.prediction import Predictor
from paceline.predict.published.stacks import counted, without_own_say
from paceline.predict.published.training import TrainingRow, training_rows
from paceline.predict.question import Question, data_bytes
from paceline.predict.validate import by_cpu
from paceline.spec import RunSpec
from paceline.systems.files import load_hardware

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "accuracy.md"
PICTURES = ROOT / "docs" / "results" / "figures"
GPU_STEPS = ROOT / "docs" / "results" / "accuracy" / "h200-steps.json"
RECORDED = ROOT / "tests" / "validation"
RECORDINGS = (RECORDED, RECORDED / "again", RECORDED / "busy")
BEGIN, END = "<!-- accuracy -->", "<!-- /accuracy -->"
SIZE = 420
TITLES = {"tokens/s": "tokens/s of each device", "ms": "milliseconds of a step"}


class Point(BaseModel):
    """One run: what was predicted, with its interval, and what was measured."""

    table: str
    method: str
    name: str
    unit: str
    predicted: float
    low: float
    high: float
    measured: float
    # Why it is shown and not counted.
    caveat: str | None = None
    # Whether a number that predictions use was chosen by its table.
    used: bool = False
    # What it is drawn as.
    colour: str

    @property
    def inside(self) -> bool:
        """Whether the interval has the truth."""
        return self.low <= self.measured <= self.high

    @property
    def too_fast(self) -> float:
        """By which factor the run is predicted to be faster than it was."""
        return self.predicted / self.measured if self.unit == "tokens/s" else self.measured / self.predicted


def of_rows(rows: Iterable[TrainingRow], table: str | None = None) -> Iterator[Point]:
    """Training rates that others published."""
    for row in rows:
        yield Point(
            table=table or row.table, method=row.method, name=row.name, unit="tokens/s", predicted=row.predicted.value,
            low=row.predicted.low, high=row.predicted.high, measured=row.published, caveat=row.caveat, used=row.used,
            colour=row.stack,
        )  # fmt: skip


def on_one_gpu() -> Iterator[Point]:
    """Steps that were measured on one H200, by the grid that ships and by the data sheet alone."""
    gridded = load_hardware("h200-nvlink")
    plain = gridded.model_copy(update={"calibration": None, "uncertainty": load_hardware("h100-nvlink").uncertainty})
    for run in json.loads(GPU_STEPS.read_text()):
        for hardware in (plain, gridded):
            question = Question(hardware, workload=run["workload"], options=run["options"], precision="bf16",
                                execution="eager", **run["fields"])  # fmt: skip
            (spec,) = question.specs("torch-single", workers=(1,), batches=[("local_batch", run["batch"])])
            prediction = question.predictor.predict(spec)
            step, method = prediction.step_seconds, prediction.source.split(";")[0]
            yield Point(
                table="one H200", method=method, unit="ms", colour=f"one H200: {short(method)}",
                name=f"{run['workload']} batch {run['batch']}", predicted=1e3 * step.value, low=1e3 * step.low,
                high=1e3 * step.high, measured=run["milliseconds"], used=run["used"],
            )  # fmt: skip


def recorded() -> Iterator[Point]:
    """Runs on two cores that were not used to calibrate: on several days, with little and much other load."""
    for folder in RECORDINGS:
        yield from recorded_in(folder)


def recorded_in(folder: Path) -> Iterator[Point]:
    """Those of one calibration."""
    hardware = load_hardware(str(folder / "system.toml"))
    for row in json.loads((folder / "recorded.json").read_text())["rows"]:
        spec = complete(RunSpec.model_validate(row["spec"]))
        prediction = Predictor(hardware, spec_facts(spec), 1, data_bytes=data_bytes(spec)).predict(spec)
        for run in row["turns"]:
            step = prediction.step_seconds if run["basis"] == "wall" else by_cpu(prediction)
            yield Point(
                table="two cores, held out", method=prediction.source, unit="ms",
                colour=f"two cores: {short(prediction.source)}",
                name=f"{spec.workload} {spec.strategy} x{spec.workers}", predicted=1e3 * step.value, low=1e3 * step.low,
                high=1e3 * step.high, measured=1e3 * run["measured_seconds"],
            )  # fmt: skip


def table(points: Iterable[Point]) -> str:
    """Error, bias and coverage by table and method."""
    lines = ["| runs | computation from | rows | mean error | bias | worst | in their 90 % interval | its half width |",
             "|---|---|---|---|---|---|---|---|"]  # fmt: skip
    for (name, method), group in grouped(points).items():
        errors = [abs(point.predicted / point.measured - 1) for point in group]
        bias = exp(mean(log(point.predicted / point.measured) for point in group)) - 1
        width = mean(point.high / point.predicted - 1 for point in group)
        inside = mean(point.inside for point in group)
        lines.append(
            f"| {name} | {method} | {len(group)} | {mean(errors):.1%} | {bias:+.1%} | {max(errors):.0%} | {inside:.0%} "
            f"| ±{width:.0%} |"
        )
    return "\n".join(lines)


def short(method: str) -> str:
    """Where computation comes from, in a word or two."""
    return "grid" if "grid" in method else method.partition(",")[0].removeprefix("the ")


def grouped(points: Iterable[Point]) -> dict[tuple[str, str], list[Point]]:
    """By table and method, with a mark for tables that decided numbers and for those that are not counted."""
    groups: dict[tuple[str, str], list[Point]] = {}
    for point in points:
        mark = (" †" if point.used and point.unit == "tokens/s" else "") + (" ‡" if point.caveat else "")
        groups.setdefault((point.table + mark, point.method), []).append(point)
    return groups


def draw(points: list[Point], unit: str) -> Any:
    """Predicted over measured, both logarithmic, with the line where they agree and the interval of each."""
    import altair

    rows: list[dict[str, Any]] = [
        {"measured": point.measured, "predicted": point.predicted, "low": point.low, "high": point.high,
         "runs": point.colour}
        for point in points
    ]  # fmt: skip
    places = [value for row in rows for value in (row["measured"], row["predicted"])]
    ends = [min(places) / 1.3, max(places) * 1.3]
    scale = altair.Scale(type="log", domain=ends, clamp=True)
    line = altair.Chart(altair.Data(values=[{"x": end, "y": end} for end in ends]))
    base = altair.Chart(altair.Data(values=rows)).encode(
        x=altair.X("measured:Q", scale=scale, title=f"measured, {TITLES[unit]}", axis=altair.Axis(tickCount=6)),
        color=altair.Color("runs:N", title=None, scale=altair.Scale(scheme="tableau10"), sort=None,
                           legend=altair.Legend(orient="top", columns=4, symbolOpacity=1, labelLimit=SIZE)),
    )  # fmt: skip
    chart = (
        line.mark_line(color="#999", strokeDash=[4, 4]).encode(
            x=altair.X("x:Q", scale=scale), y=altair.Y("y:Q", scale=scale))
        + base.mark_rule(opacity=0.25).encode(
            y=altair.Y("low:Q", scale=scale, axis=altair.Axis(tickCount=6)), y2="high:Q")
        + base.mark_point(filled=True, size=36, opacity=0.8).encode(
            y=altair.Y("predicted:Q", scale=scale, title=f"predicted, {TITLES[unit]}"))
    )  # fmt: skip
    return chart.properties(width=SIZE, height=SIZE)


def draw_errors(points: list[Point]) -> Any:
    """By which factor each run is predicted too fast, in a row for each table and method, over its intervals."""
    import altair

    rows: list[dict[str, Any]] = []
    for (name, method), group in grouped(points).items():
        width = exp(mean(log(point.high / point.predicted) for point in group))
        rows += [
            {"runs": f"{name} ({short(method)})", "factor": point.too_fast, "low": 1 / width, "high": width,
             "inside": "inside" if point.inside else "outside"}
            for point in group
        ]  # fmt: skip
    order = list(dict.fromkeys(row["runs"] for row in rows))
    scale = altair.Scale(type="log", domain=[0.4, 2.5], clamp=True)
    axis = altair.Axis(values=[0.5, 0.67, 0.8, 1, 1.25, 1.5, 2], format=".2~f", grid=True)
    base = altair.Chart(altair.Data(values=rows)).encode(
        y=altair.Y("runs:N", sort=order, title=None, axis=altair.Axis(labelLimit=SIZE)))  # fmt: skip
    bands = base.mark_bar(color="#dce6f2", height=14).encode(
        x=altair.X("low:Q", scale=scale, axis=axis, title="predicted over measured speed; the band is a 90 % interval"),
        x2="high:Q",
    )  # fmt: skip
    dots = base.mark_tick(thickness=2, height=12).encode(
        x=altair.X("factor:Q", scale=scale),
        color=altair.Color("inside:N", title=None, legend=altair.Legend(orient="top"),
                           scale=altair.Scale(domain=["inside", "outside"], range=["#1f5fa8", "#d62728"])),
    )  # fmt: skip
    middle = altair.Chart(altair.Data(values=[{"x": 1}])).mark_rule(color="#999", strokeDash=[4, 4]).encode(
        x=altair.X("x:Q", scale=scale))  # fmt: skip
    return (bands + middle + dots).properties(width=SIZE + 60, height=altair.Step(22))


def save(chart: Any, name: str) -> str:
    """The picture as a file; the line that shows it on the page."""
    import vl_convert

    path = PICTURES / f"accuracy-{name.replace('/', '-per-')}.svg"
    path.write_text(str(vl_convert.vegalite_to_svg(chart.to_dict())), encoding="utf-8")
    return path.name


def main() -> None:
    """Writes the page between its marks, and its pictures."""
    rows = list(training_rows())
    fresh = counted(rows)
    together = list(of_rows(fresh, "all stacks that decided no speed"))
    blind = list(of_rows(without_own_say(fresh, UNKNOWN_STACK), "the same, intervals without the own stack's say"))
    points = [*of_rows(rows), *on_one_gpu(), *recorded()]
    titles = {name: f"predicted against measured, {title}" for name, title in TITLES.items()}
    pictures = [
        f"![by which factor runs are predicted too fast](results/figures/{save(draw_errors(points), 'errors')})"
    ]
    for unit in dict.fromkeys(point.unit for point in points):
        name = save(draw([point for point in points if point.unit == unit], unit), unit)
        pictures.append(f"![{titles[unit]}](results/figures/{name})")
    text = PAGE.read_text()
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    between = "\n\n".join([table([*points, *together, *blind]), *pictures])
    PAGE.write_text(f"{before}{BEGIN}\n{between}\n{END}{after}")


if __name__ == "__main__":
    main()
