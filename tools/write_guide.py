"""Writes the tables of `docs/choosing-a-strategy.md`: the advisor's answers, what was measured, what is known.

python tools/write_guide.py            (`make docs` runs it too)

Answers are predictions for systems that ship with Paceline, so that the page is the same wherever it is written.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from paceline.predict.question import Question
from paceline.recommend.answer import Answer, recommend
from paceline.recommend.reasons import break_even, facts_about
from paceline.spec import Scalar
from paceline.strategies import strategies
from paceline.systems.files import load_hardware
from paceline.units import format_bytes, format_percent

ROOT = Path(__file__).parents[1]
GUIDE = ROOT / "docs" / "choosing-a-strategy.md"
RECORDED = ROOT / "tests" / "validation" / "recorded.json"
# Strategies that are in question on GPUs, one of each kind.
KINDS = (
    "torch-single", "torch-ddp", "torch-zero", "torch-fsdp", "torch-tensor", "torch-pipeline", "torch-mesh",
    "torch-ps-sync",
)  # fmt: skip
# Of MNIST, and of a text model as it is usually trained.
DIGITS, DIGIT_CLASSES = (1, 28, 28), 10
TOKENS, VOCABULARY, HEAD_WIDTH = (2048,), 50_304, 128
EPOCH_SAMPLES = 60_000


@dataclass(frozen=True)
class Case:
    """A typical question."""

    title: str
    workload: str
    options: dict[str, Scalar]
    system: str
    workers: tuple[int, ...]
    batch: int

    def question(self) -> Question:
        """As `paceline recommend` would be asked."""
        text = self.workload == "transformer"
        return Question(
            hardware=load_hardware(self.system), workload=self.workload, options=self.options,
            input_shape=TOKENS if text else DIGITS, classes=VOCABULARY if text else DIGIT_CLASSES,
            workers=self.workers, global_batches=(self.batch,), strategies=KINDS, samples=EPOCH_SAMPLES,
        )  # fmt: skip

    def answer(self, objective: str) -> Answer:
        """What it answers."""
        return recommend(self.question(), objective)


def gpt(title: str, depth: int, width: int, system: str, workers: tuple[int, ...], batch: int) -> Case:
    """A text model of the usual proportions."""
    options: dict[str, Scalar] = {"depth": depth, "width": width, "heads": width // HEAD_WIDTH}
    return Case(title, "transformer", options, system, workers, batch)


FEW, MORE, MANY = (1, 2, 4, 8), (8, 16, 32, 64), (8, 16, 32, 64, 128, 256)
CASES = (
    Case("small CNN (0.4 M)", "mnist-small", {}, "k80-n1-highmem-2", (1, 2, 4), 256),
    Case("large CNN (4.1 M)", "mnist-large", {}, "k80-n1-highmem-2", (1, 2, 4), 512),
    Case("small CNN (0.4 M)", "mnist-small", {}, "8xh100-nvlink", FEW, 256),
    Case("large CNN (4.1 M)", "mnist-large", {}, "8xh100-nvlink", FEW, 4096),
    gpt("GPT, 0.1 billion", 12, 768, "8xa100-nvlink", FEW, 64),
    gpt("GPT, 0.1 billion", 12, 768, "4xa100-pcie", (1, 2, 4, 8, 16), 64),
    gpt("GPT, 1.3 billion", 24, 2048, "8xh100-nvlink", FEW, 32),
    gpt("GPT, 6.7 billion", 32, 4096, "8xh100-nvlink", MORE, 128),
    gpt("GPT, 39 billion", 48, 8192, "8xh100-nvlink", MANY, 256),
)


def answers(objective: str) -> list[str]:
    """One line for each case."""
    return [
        "| model | where | use | of ideal | exposed communication | held by a worker |",
        "|---|---|---|---|---|---|",
        *(_line(case, case.answer(objective)) for case in CASES),
    ]


def _line(case: Case, answer: Answer) -> str:
    where = f"{case.title} | {case.system}, {min(case.workers)} to {max(case.workers)} workers, batch {case.batch:,}"
    if answer.pick is None:
        return f"| {where} | nothing fits | | | |"
    spec, found = answer.pick.spec, answer.pick.prediction
    knobs = "".join(f", {name} {value}" for name, value in spec.settings.items())
    efficiency = "–" if found.efficiency is None else format_percent(found.efficiency)
    exposed = format_percent(found.parts.exposed / found.parts.step)
    held = format_bytes(found.memory_bytes.value)
    return f"| {where} | `{spec.strategy}` x{spec.workers}{knobs} | {efficiency} | {exposed} | {held} |"


def break_evens() -> list[str]:
    """For the small models on each system."""
    found = []
    for case in CASES[:4]:
        pick = case.answer("energy").pick
        if pick is not None:
            found.append(f"- {case.title} on {case.system}: {break_even(case.question(), pick)}")
    return found


def measured() -> list[str]:
    """What recorded runs took."""
    rows = json.loads(RECORDED.read_text())["rows"]
    own = [row for row in rows if row["spec"]["workload"] == "mnist-small"]
    lines = ["| strategy | workers | global batch | by | ms per step | predicted |", "|---|---|---|---|---|---|"]
    for row in sorted(own, key=lambda row: (row["spec"]["global_batch"], row["measured_seconds"])):
        spec = row["spec"]
        lines.append(
            f"| `{spec['strategy']}` | {spec['workers']} | {spec['global_batch']} | {row['basis']} "
            f"| {row['measured_seconds'] * 1e3:.1f} | {row['predicted_seconds'] * 1e3:.1f} |"
        )
    return lines


def known() -> list[str]:
    """Cited facts, each with the strategies that it is about."""
    names_by_fact: dict[str, list[str]] = {}
    for name in sorted(strategies()):
        for fact in facts_about(name):
            names_by_fact.setdefault(fact, []).append(f"`{name}`")
    return [f"- {', '.join(names)}: {fact}" for fact, names in names_by_fact.items()]


def with_tables(text: str) -> str:
    """The page with what is between its marks replaced."""
    tables = {
        "throughput": answers("throughput"), "energy": answers("energy"), "break-even": break_evens(),
        "measured": measured(), "known": known(),
    }  # fmt: skip
    for name, lines in tables.items():
        before, _, rest = text.partition(f"<!-- {name} -->")
        after = rest.partition(f"<!-- /{name} -->")[2]
        text = f"{before}<!-- {name} -->\n" + "\n".join(lines) + f"\n<!-- /{name} -->{after}"
    return text


if __name__ == "__main__":
    GUIDE.write_text(with_tables(GUIDE.read_text()))
