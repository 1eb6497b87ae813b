"""Results files of several machines ─► one: every record once, each with the machine that it came from."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline.errors import StoreError
from paceline.record import Record
from paceline.store import Store
from paceline.user_input.paths import is_file


@dataclass
class MergedFile:
    """What one results file gave: records that are new, and those that were there already."""

    path: Path
    machines: tuple[str, ...]
    added: int = 0
    known: int = 0


def merge_files(sources: Sequence[Path], target: Path) -> list[MergedFile]:
    """Adds all records of the sources to the target, which may be new; sources are only read.

    Two machines may have made the same repeats of a configuration: those of the second count as further repeats, so
    that none hides another. Equal records are there once, however often they are merged.
    """
    if any(_same_file(source, target) for source in sources):
        raise StoreError(f"{target} is both merged and written; name the others alone, or another file with --out")
    for source in sources:
        # Every file is looked at before anything is written.
        Store.open_existing(source).close()
    merged = []
    with Store.open(target) as store:
        for source in sources:
            merged.append(_merge_file(source, store))
    return merged


def _merge_file(source: Path, store: Store) -> MergedFile:
    repeats: dict[str, set[int]] = {}
    place_of: dict[str, int] = {}
    for record in store.everything():
        repeats.setdefault(record.key, set()).add(record.repeat)
        place_of[_identity(record)] = record.repeat
    with Store.open_existing(source) as other:
        records, members = list(other.everything()), other.members()
    result = MergedFile(source, tuple(sorted({str(record.environment.get("host", "")) for record in records} - {""})))
    moved = _new_repeats(records, repeats, place_of)
    for record in records:
        if _identity(record) in place_of:
            result.known += 1
            continue
        store.add(record.model_copy(update={"repeat": moved[record.key, record.repeat], "id": None}))
        result.added += 1
    for study, keys in members.items():
        store.add_to_study(study, keys)
    return result


def _new_repeats(
    records: Iterable[Record], repeats: dict[str, set[int]], place_of: dict[str, int]
) -> dict[tuple[str, int], int]:
    """The repeat that each repeat of a file becomes: its own, or the next free one where another run has it.

    Runs of one repeat stay together: the newest of them is the one that counts, as it was.
    """
    moved = {
        (record.key, record.repeat): place_of[_identity(record)] for record in records if _identity(record) in place_of
    }
    for record in records:
        taken_repeats = repeats.setdefault(record.key, set())
        if (record.key, record.repeat) not in moved:
            free = next(number for number in range(len(taken_repeats) + 1) if number not in taken_repeats)
            moved[record.key, record.repeat] = free if record.repeat in taken_repeats else record.repeat
            taken_repeats.add(moved[record.key, record.repeat])
    return moved


def _identity(record: Record) -> str:
    """What tells a record from others, the same wherever it is stored."""
    text = record.model_dump_json(by_alias=True, exclude={"id", "repeat"})
    return hashlib.sha256(text.encode()).hexdigest()


def _same_file(first: Path, second: Path) -> bool:
    return is_file(first) and is_file(second) and first.samefile(second)
