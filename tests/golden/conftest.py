"""Text for people, compared with stored files. `PACELINE_UPDATE_GOLDEN=1 pytest tests/golden` writes them anew.

The results come from real runs of the `fake` strategy, whose numbers are exact; what depends on the machine (its load,
memory, clock and name) is replaced before they are stored.
"""

import os
import subprocess
import sysconfig
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from paceline.api import run
from paceline.record import Energy, Finding, Memory, Record, Startup
from paceline.store import Store
from paceline.study import Study

SCRIPT = Path(sysconfig.get_path("scripts")) / "paceline"
STORED = Path(__file__).parent / "stored"
UPDATE = "PACELINE_UPDATE_GOLDEN"
PATIENCE_SECONDS = 120.0
OF_THE_MACHINE = frozenset({"other_load", "oversubscribed"})
CROWDED = Finding(
    code="oversubscribed",
    text="4 workers of 1 core(s) want 4 cores; this machine has 2",
    hint="times are of an oversubscribed machine; scaling efficiency leaves them out",
)
ENVIRONMENT = {
    "paceline": "0.0.0",
    "python": "3.0.0",
    "numpy": "1.0.0",
    "frameworks": {"torch": "2.0.0"},
    "cpu": "a processor",
    "cores": [0, 1],
    "memory_bytes": 8_000_000_000,
    "gpus": [],
    "kernel": "6.0.0",
    "host": "a-machine",
    "git_commit": None,
}
ENERGY = Energy(source="estimated", watts_per_core=6.0)
MEMORY = Memory(baseline_bytes=20_000_000, steady_bytes=24_000_000, peak_bytes=26_000_000, final_bytes=25_000_000)
STUDIES = (
    Study(
        name="scaling",
        repeats=3,
        fixed={"strategy": "fake", "global_batch": 256, "epochs": 2, "knobs": {"first_epoch_ms": 60.0, "jitter": 0.1}},
        factors={"workers": [1, 2, 4], "seed": [0]},
    ),
    Study(
        name="faults",
        fixed={"strategy": "fake", "local_batch": 64, "steps": 4},
        factors={"knobs": {"fault": ["none", "fail", "out_of_memory"]}, "device": ["cpu", "cuda"]},
    ),
)


def on_no_machine(record: Record) -> Record:
    """The record as if made on a machine that is the same everywhere, at a time of its own."""
    findings = tuple(finding for finding in record.findings if finding.code not in OF_THE_MACHINE)
    return record.model_copy(
        update={
            "started_at": f"2020-01-01T00:{record.id or 0:02d}:00.000+00:00",
            "wall_seconds": 1.5,
            "environment": ENVIRONMENT,
            "log_tail": "",
            "findings": (CROWDED, *findings) if record.spec.workers > 2 else findings,
            "startup": Startup(launch_seconds=0.1, import_seconds=0.2, build_seconds=0.3, first_step_seconds=0.01)
            if record.ok
            else None,
            "energy": ENERGY if record.ok else None,
            "epochs": tuple(epoch.model_copy(update={"cpu_seconds": 0.5, "joules": 3.0}) for epoch in record.epochs),
            "ranks": tuple(
                rank.model_copy(
                    update={"cores": (0,), "cpu_seconds": 1.0, "peak_memory_bytes": 50_000_000, "memory": MEMORY}
                )
                for rank in record.ranks
            ),
        }
    )


@pytest.fixture(scope="session")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[Record]:
    """Two studies with runs that scale, are crowded, fail and are skipped."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(folder))
        made = [record for study in STUDIES for record in run(study, folder / "runs.db").records]
    made.sort(key=lambda record: (record.study != "scaling", record.key, record.repeat))
    return [on_no_machine(record.model_copy(update={"id": number})) for number, record in enumerate(made)]


@pytest.fixture(scope="session")
def results_file(records: list[Record], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results as a file, the same on every machine."""
    path = tmp_path_factory.mktemp("stored") / "results.db"
    with Store.open(path) as store:
        for record in records:
            store.add(record)
        for study in STUDIES:
            store.add_to_study(study.name, {record.key for record in records if record.study == study.name})
    return path


@pytest.fixture
def printed(tmp_path: Path) -> Callable[..., str]:
    """What a command prints on standard output, at a width."""

    def run_command(*words: str | Path, columns: int = 100) -> str:
        kept = {name: value for name, value in os.environ.items() if name not in ("FORCE_COLOR", "PACELINE_DATA")}
        env = {**kept, "COLUMNS": str(columns), "TERM": "dumb", "NO_COLOR": "1"}
        ended = subprocess.run(
            [SCRIPT, *words],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    return run_command


@pytest.fixture
def same_as_stored() -> Callable[[str, str], None]:
    """Compares a text with the file of that name, or writes the file when that is asked for."""

    def compare(text: str, name: str) -> None:
        path = STORED / name
        tidy = "\n".join(line.rstrip() for line in text.splitlines()) + "\n"
        if os.environ.get(UPDATE):
            path.parent.mkdir(exist_ok=True)
            path.write_text(tidy)
        assert path.is_file(), f"{name} is not stored yet; {UPDATE}=1 pytest tests/golden writes it"
        assert tidy == path.read_text(), (
            f"{name} differs; if that is meant, {UPDATE}=1 pytest tests/golden writes it anew"
        )

    return compare
