"""What the commands print, word for word."""

import json
import re
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest

Printed = Callable[..., str]
Same = Callable[[str, str], None]
# How long a run takes depends on the machine.
ABOUT = re.compile(r"^about [\d.]+ (ms|s|min \d+ s)", re.MULTILINE)
HELP = {"help.txt": ["--help"]} | {
    f"{name}-help.txt": [name, "--help"]
    for name in (
        "doctor",
        "strategies",
        "run",
        "join",
        "show",
        "report",
        "export",
        "serve",
        "calibrate",
        "predict",
        "recommend",
        "script",
        "validate",
    )
}


@pytest.mark.parametrize("name", HELP)
def test_the_help_of_a_command_is_as_stored(printed: Printed, same_as_stored: Same, name: str) -> None:
    same_as_stored(printed(*HELP[name]), name)


@pytest.mark.parametrize("columns", [80, 120])
def test_the_tables_are_as_stored_at_this_width(
    printed: Printed, same_as_stored: Same, results_file: Path, columns: int
) -> None:
    text = printed("show", "--db", results_file, columns=columns)
    assert max(len(line.rstrip()) for line in text.splitlines()) <= columns
    headings = [line.split() for line in text.splitlines() if line.startswith("strategy ")]
    assert headings and all(words[-1] == "racy" for words in headings), "a column fell off the edge"
    same_as_stored(text, f"show-{columns}.txt")


@pytest.mark.parametrize(
    ("name", "words"),
    {
        "show.csv": ["--csv"],
        "show.json": ["--json"],
        "show-one-study.txt": ["--study", "scaling"],
        "show-statistics.txt": ["--statistics", "--study", "scaling"],
        "show-more.txt": ["--energy", "--memory", "--convergence", "--price-per-device-hour", "2.5"],
        "show-oversubscribed.txt": ["--study", "scaling", "--oversubscribed"],
    }.items(),
)
def test_results_are_as_stored_in_this_form(
    printed: Printed, same_as_stored: Same, results_file: Path, name: str, words: list[str]
) -> None:
    same_as_stored(printed("show", "--db", results_file, *words), name)


def test_an_entry_of_the_catalogue_is_as_stored(printed: Printed, same_as_stored: Same) -> None:
    catalogue = json.loads(printed("strategies", "--json"))
    for entry in catalogue:
        runs_here, why_not = entry.pop("runs_here"), entry.pop("why_not")
        assert runs_here == (why_not is None)
    (fake,) = (entry for entry in catalogue if entry["name"] == "fake")
    same_as_stored(json.dumps(fake, indent=2, ensure_ascii=False), "strategies.json")


def test_the_table_of_strategies_names_every_strategy_and_knob(printed: Printed) -> None:
    catalogue = json.loads(printed("strategies", "--json"))
    table = printed("strategies", "--knobs", columns=300)
    said = " ".join(table.split())
    for entry in catalogue:
        (line,) = (line for line in table.splitlines() if line.split()[:1] == [entry["name"]])
        assert line.split()[1:3] == ["yes" if entry["runs_here"] else "no", entry["family"]]
        assert entry["about"] in said
        assert entry["runs_here"] or entry["why_not"] in said
        for knob in entry["knobs"]:
            assert f"{knob}=" in said


def test_a_plan_is_as_stored(printed: Printed, same_as_stored: Same, tmp_path: Path) -> None:
    words = ("--strategy", "fake", "--workers", "1,2", "--global-batch", "64,128", "--device", "cpu,cuda")
    said = printed("run", *words, "--repeats", "2", "--dry-run")
    assert ABOUT.search(said), "how long it will take is not told"
    same_as_stored(ABOUT.sub("about SOME TIME", said), "dry-run.txt")
    assert list(tmp_path.iterdir()) == []


def test_a_script_is_as_stored(printed: Printed, same_as_stored: Same) -> None:
    words = ("--strategy", "torch-ddp", "--workers", "2", "--global-batch", "256", "--epochs", "2")
    text = printed("script", *words, "--input-shape", "1x28x28", "--classes", "10")
    same_as_stored(text.replace(f"Paceline {version('paceline')}", "Paceline 0.0.0"), "script-torch-ddp.txt")
