"""Writes `docs/accuracy.md` and its pictures: predictions against published and recorded runs, by method.

python tools/write_accuracy.py            (`make docs` runs it too)

Published training rates and the runs in `tests/validation` are predicted anew. Files in `docs/results/accuracy/` hold
rows of machines that are not at hand, as their benchmarks wrote them: a list of `Point`s.
"""

import json
from collections.abc import Iterable, Iterator
from math import exp, log
from pathlib import Path
from statistics import mean

from pydantic import BaseModel

from paceline.contract.context import spec_facts
from paceline.plan import complete
from paceline.predict.prediction import Predictor
from paceline.predict.published.training import training_rows
from paceline.predict.question import data_bytes
from paceline.predict.validate import by_cpu
from paceline.spec import RunSpec
from paceline.systems.files import load_hardware

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "accuracy.md"
PICTURES = ROOT / "docs" / "results" / "figures"
MORE = ROOT / "docs" / "results" / "accuracy"
RECORDED = ROOT / "tests" / "validation"
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

    @property
    def inside(self) -> bool:
        """Whether the interval has the truth."""
        return self.low <= self.measured <= self.high


def published() -> Iterator[Point]:
    """Training rates that others published."""
    for row in training_rows():
        yield Point(
            table=row.table, method=row.method, name=row.name, unit="tokens/s", predicted=row.predicted.value,
            low=row.predicted.low, high=row.predicted.high, measured=row.published, caveat=row.caveat,
        )  # fmt: skip


def recorded() -> Iterator[Point]:
    """Runs on two cores that were not used to calibrate."""
    hardware = load_hardware(str(RECORDED / "system.toml"))
    for row in json.loads((RECORDED / "recorded.json").read_text())["rows"]:
        spec = complete(RunSpec.model_validate(row["spec"]))
        prediction = Predictor(hardware, spec_facts(spec), 1, data_bytes=data_bytes(spec)).predict(spec)
        for run in row["turns"]:
            step = prediction.step_seconds if run["basis"] == "wall" else by_cpu(prediction)
            yield Point(
                table="two cores, held out", method=prediction.source, unit="ms",
                name=f"{spec.workload} {spec.strategy} x{spec.workers}", predicted=1e3 * step.value, low=1e3 * step.low,
                high=1e3 * step.high, measured=1e3 * run["measured_seconds"],
            )  # fmt: skip


def stored() -> Iterator[Point]:
    """Rows that benchmarks on other machines left."""
    for path in sorted(MORE.glob("*.json")):
        yield from (Point.model_validate(values) for values in json.loads(path.read_text()))


def table(points: Iterable[Point]) -> str:
    """Error, bias and coverage by table and method."""
    lines = ["| runs | computation from | rows | mean error | bias | worst | in their 90 % interval | its half width |",
             "|---|---|---|---|---|---|---|---|"]  # fmt: skip
    groups: dict[tuple[str, str], list[Point]] = {}
    for point in points:
        groups.setdefault((point.table + (f" ({point.caveat})" if point.caveat else ""), point.method), []).append(
            point
        )
    for (name, method), group in groups.items():
        errors = [abs(point.predicted / point.measured - 1) for point in group]
        bias = exp(mean(log(point.predicted / point.measured) for point in group)) - 1
        width = mean(point.high / point.predicted - 1 for point in group)
        inside = mean(point.inside for point in group)
        lines.append(
            f"| {name} | {method} | {len(group)} | {mean(errors):.1%} | {bias:+.1%} | {max(errors):.0%} | {inside:.0%} "
            f"| ±{width:.0%} |"
        )
    return "\n".join(lines)


def draw(points: list[Point], unit: str) -> str:
    """Predicted over measured, both logarithmic, with the line where they agree."""
    import altair
    import vl_convert

    rows = [
        {"measured": point.measured, "predicted": point.predicted, "runs": f"{point.table}: {point.method}"}
        for point in points
    ]
    ends = [min(min(row["measured"], row["predicted"]) for row in rows), max(row["measured"] for row in rows)]  # type: ignore[call-overload, type-var]
    scale = altair.Scale(type="log", domain=[ends[0] / 1.3, ends[1] * 1.3])
    line = altair.Chart(altair.Data(values=[{"x": end, "y": end} for end in (ends[0] / 1.3, ends[1] * 1.3)]))
    dots = altair.Chart(altair.Data(values=rows)).mark_point(filled=True, size=36, opacity=0.75)
    chart = line.mark_line(color="#999", strokeDash=[4, 4]).encode(
        x=altair.X("x:Q", scale=scale), y=altair.Y("y:Q", scale=scale)
    ) + dots.encode(
        x=altair.X("measured:Q", scale=scale, title=f"measured, {TITLES[unit]}"),
        y=altair.Y("predicted:Q", scale=scale, title=f"predicted, {TITLES[unit]}"),
        color=altair.Color("runs:N", title=None, legend=altair.Legend(orient="top", columns=1, labelLimit=SIZE)),
        shape=altair.Shape("runs:N", title=None),
    )
    return str(vl_convert.vegalite_to_svg(chart.properties(width=SIZE, height=SIZE).to_dict()))


def main() -> None:
    """Writes the page between its marks, and a picture for each unit."""
    points = [*published(), *stored(), *recorded()]
    pictures = []
    for unit in dict.fromkeys(point.unit for point in points):
        path = PICTURES / f"accuracy-{unit.replace('/', '-per-')}.svg"
        path.write_text(draw([point for point in points if point.unit == unit], unit), encoding="utf-8")
        pictures.append(f"![predicted against measured, {TITLES[unit]}](results/figures/{path.name})")
    text = PAGE.read_text()
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    between = "\n\n".join([table(points), *pictures])
    PAGE.write_text(f"{before}{BEGIN}\n{between}\n{END}{after}")


if __name__ == "__main__":
    main()
