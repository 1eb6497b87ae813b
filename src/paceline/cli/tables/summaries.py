"""Records of a results file ─► rows and findings; a large file is read by two processes, about half of it each."""

import gc
import os
import pickle
import subprocess
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from zlib import crc32

from paceline.analysis.findings import RunFindings
from paceline.analysis.rows import Summary
from paceline.errors import DamagedRecords
from paceline.record import Record
from paceline.store import Store

# Of fewer records, a second process would have to start for longer than it helps.
LEAST_FOR_TWO = 20_000
# The part of the second process in a hundred: it also has to start and to hand over.
SECOND_PART = 45


def summarise_stored(configurations: Iterable[Sequence[Record]]) -> tuple[Summary, RunFindings]:
    """The rows and the findings of records that are read one configuration at a time."""
    summary, findings = Summary(), RunFindings()
    with _without_collection():
        for records in configurations:
            findings.add(summary.add(records), records)
    return summary, findings


def summarise_file(store: Store, study: str | None) -> tuple[Summary, RunFindings]:
    """The same of a results file, or of one study of it."""
    numbers = store.numbers(study)
    if len(numbers) < LEAST_FOR_TWO or len(os.sched_getaffinity(0)) < 2:
        return summarise_stored(store.configurations(study))
    keys = list(dict.fromkeys(key for _, key in numbers))
    ours, theirs = [key for key in keys if not _is_second(key)], [key for key in keys if _is_second(key)]
    # -P: a file in the user's folder must not stand in for a module of the same name.
    words = [sys.executable, "-P", "-m", __name__, str(store.path.resolve()), *([study] if study else [])]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as second:
        try:
            summary, findings = summarise_stored(store.configurations(study, ours))
            assert second.stdout is not None
            with _without_collection():
                other, other_findings, damage = pickle.load(second.stdout)
        except (EOFError, pickle.UnpicklingError):
            # It broke down; then this process does what was left to it.
            other, other_findings, damage = *summarise_stored(store.configurations(study, theirs)), ()
        finally:
            second.kill()
    for text in damage:
        warnings.warn(DamagedRecords(text), stacklevel=2)
    summary.include(other, keys)
    findings.include(other_findings)
    return summary, findings


def _is_second(key: str) -> bool:
    # Any text: the file may be damaged.
    return crc32(key.encode()) % 100 < SECOND_PART


@contextmanager
def _without_collection() -> Iterator[None]:
    # Nothing here refers to itself in a circle, and looking for that in all rows again and again takes a third longer.
    gc.disable()
    try:
        yield
    finally:
        # What is known by now stays to the end of the command.
        gc.freeze()
        gc.enable()


def main(path: str, study: str | None = None) -> None:
    """Writes what the second process knows of a results file to standard output."""
    with Store.open_existing(Path(path)) as store, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        keys = {key for _, key in store.numbers(study) if _is_second(key)}
        summary, findings = summarise_stored(store.configurations(study, keys))
    damage = [str(warning.message) for warning in caught if issubclass(warning.category, DamagedRecords)]
    pickle.dump((summary, findings, damage), sys.stdout.buffer, pickle.HIGHEST_PROTOCOL)


if __name__ == "__main__":
    main(*sys.argv[1:])
