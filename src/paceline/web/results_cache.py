"""The results file as the pages see it: read again only when it changed, and filtered."""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from operator import is_
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar
from urllib.parse import urlencode

from paceline.analysis.rows import Row, Summary
from paceline.errors import UserError
from paceline.record import Record
from paceline.store import Store
from paceline.user_input.paths import is_file
from paceline.web.annotations import NOTHING_SAID, Annotation, read_annotations

# What results can be filtered by, in the order of the page.
FILTER_NAMES = ("study", "workload", "strategy", "workers", "tag")

# Choices of filters whose rows are kept, beside those of each study: a page and its figures, in a few tabs.
MOST_QUERIES = 16
# Parts of pages that are kept, beside one for each study.
MOST_PARTS = 64

Part = TypeVar("Part")


@dataclass(frozen=True)
class Filters:
    """The chosen values of each filter; a filter without values lets everything pass."""

    values: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def parse(cls, pairs: Iterable[tuple[str, str]]) -> "Filters":
        """The filters in the query of an address; other parameters are ignored."""
        values: dict[str, tuple[str, ...]] = {}
        for name, value in pairs:
            if name in FILTER_NAMES and value and value not in values.get(name, ()):
                values[name] = (*values.get(name, ()), value)
        return cls(values)

    def matches(self, name: str, value: str) -> bool:
        """Whether this value passes the filter."""
        return name not in self.values or value in self.values[name]

    @property
    def query(self) -> str:
        """The filters as the query of an address, with its question mark; empty without filters."""
        pairs = [(name, value) for name in FILTER_NAMES for value in self.values.get(name, ())]
        return "?" + urlencode(pairs) if pairs else ""


@dataclass
class _Summarised:
    """The rows of one choice of filters, and of which records each configuration was when they were made."""

    summary: Summary = field(default_factory=Summary)
    numbers: dict[str, tuple[int | None, ...]] = field(default_factory=dict)

    def update(self, records: Iterable[Record]) -> list[Row]:
        """The rows of these records: only configurations that changed since the last time are summarised anew."""
        groups: dict[str, list[Record]] = {}
        for record in records:
            groups.setdefault(record.key, []).append(record)
        if not groups.keys() >= self.numbers.keys():
            self.summary, self.numbers = Summary(), {}
        for key, group in groups.items():
            numbers = tuple(record.id for record in group)
            if self.numbers.get(key) != numbers:
                self.summary.add(group)
                self.numbers[key] = numbers
        return self.summary.rows()


@dataclass(frozen=True)
class _Summaries:
    """What was summarised for the last few choices of filters, and parts of pages; snapshots hand it on."""

    by_query: OrderedDict[str, _Summarised] = field(default_factory=OrderedDict)
    parts: OrderedDict[Hashable, tuple[Sequence[object], Any]] = field(default_factory=OrderedDict)
    lock: Lock = field(default_factory=Lock)

    def rows(self, query: str, records: Iterable[Record], studies: int) -> list[Row]:
        """The rows of the records that pass the filters of a query."""
        with self.lock:
            summarised = self.by_query.setdefault(query, _Summarised())
            _keep_newest(self.by_query, query, MOST_QUERIES + studies)
            return summarised.update(records)

    def part(self, name: Hashable, sources: Sequence[object], studies: int, make: Callable[[], Part]) -> Part:
        """What `make` returns, or what it returned when it was last asked for with the very same sources."""
        kept = self.parts.get(name)
        if kept is not None and len(kept[0]) == len(sources) and all(map(is_, kept[0], sources)):
            part: Part = kept[1]
        else:
            part = make()
        with self.lock:
            self.parts[name] = sources, part
            _keep_newest(self.parts, name, MOST_PARTS + studies)
        return part


def _keep_newest(kept: OrderedDict[Any, Any], name: Hashable, most: int) -> None:
    if name in kept:
        kept.move_to_end(name)
    while len(kept) > most:
        kept.popitem(last=False)


@dataclass(frozen=True)
class Snapshot:
    """What the results file held at one moment."""

    version: str
    records: tuple[Record, ...] = ()
    members: Mapping[str, set[str]] = field(default_factory=dict)
    annotations: Mapping[str, Annotation] = field(default_factory=dict)
    _summaries: _Summaries = field(default_factory=_Summaries, repr=False, compare=False)
    # Rows by filters: a page and its figures ask for the same ones.
    _rows: OrderedDict[str, list[Row]] = field(default_factory=OrderedDict, repr=False, compare=False)

    def select(self, filters: Filters) -> list[Record]:
        """The records that pass the filters."""
        return [
            record
            for record in self._of_studies(filters)
            if filters.matches("workload", record.spec.workload)
            and filters.matches("strategy", record.spec.strategy)
            and filters.matches("workers", str(record.spec.workers))
            and ("tag" not in filters.values or set(self.said_of(record.key).tags) & set(filters.values["tag"]))
        ]

    def _of_studies(self, filters: Filters) -> Sequence[Record]:
        """The records of the chosen studies, the oldest first; all of them where none is chosen."""
        if "study" not in filters.values:
            return self.records
        keys = set().union(*(self.members.get(name, ()) for name in filters.values["study"]))
        places = sorted(place for key in keys for place in self._places.get(key, ()))
        return [self.records[place] for place in places]

    @cached_property
    def _places(self) -> dict[str, list[int]]:
        """Where the records of each configuration are."""
        places: dict[str, list[int]] = {}
        for place, record in enumerate(self.records):
            places.setdefault(record.key, []).append(place)
        return places

    def records_of(self, key: str) -> list[Record]:
        """The records of one configuration."""
        return [self.records[place] for place in self._places.get(key, ())]

    def part(self, name: Hashable, sources: Sequence[object], make: Callable[[], Part]) -> Part:
        """A part of a page, made anew only where something that it is made from has changed."""
        return self._summaries.part(name, sources, len(self.members), make)

    def said_of(self, key: str) -> Annotation:
        """The tags and the note of a configuration."""
        return self.annotations.get(key, NOTHING_SAID)

    def rows(self, filters: Filters) -> list[Row]:
        """The rows of the records that pass the filters, one per configuration."""
        rows = self._rows.get(filters.query)
        if rows is None:
            studies = len(self.members)
            rows = self._rows[filters.query] = self._summaries.rows(filters.query, self.select(filters), studies)
            _keep_newest(self._rows, filters.query, MOST_QUERIES + studies)
        return rows

    @cached_property
    def configurations(self) -> int:
        """How many configurations there are; instrumented runs are none of their own."""
        return sum(not self.records[places[0]].spec.instrumented for places in self._places.values())

    @cached_property
    def filter_values(self) -> dict[str, list[str]]:
        """The values that each filter can have."""
        specs = [self.records[places[0]].spec for places in self._places.values()]
        return {
            "study": sorted(self.members),
            "workload": sorted({spec.workload for spec in specs}),
            "strategy": sorted({spec.strategy for spec in specs}),
            "workers": [str(count) for count in sorted({spec.workers for spec in specs})],
            "tag": sorted({tag for annotation in self.annotations.values() for tag in annotation.tags}),
        }


def filtered_values(snapshot: Snapshot, filters: Filters) -> dict[str, object]:
    """What a page with filters shows of them: their names and values, and how many configurations pass."""
    return {
        "filter_names": FILTER_NAMES,
        "filter_values": snapshot.filter_values,
        "filters": filters,
        "shown": len(snapshot.rows(filters)),
        "total": snapshot.configurations,
        "version_seen": snapshot.version,
    }


class ResultsCache:
    """Keeps the newest snapshot; safe to use from several threads."""

    def __init__(self, db: Path) -> None:
        self.db = db
        self._snapshot = Snapshot("")
        # Records by number of the file that was read last, which is known by its place on the disk.
        self._records: dict[int | None, Record] = {}
        self._summaries = _Summaries()
        self._file = 0
        self._lock = Lock()

    def version(self) -> str:
        """A text that changes when something is written; it is cheap, as the file is not opened."""
        return " ".join(_stamp(path) for path in (self.db, self.db.with_name(self.db.name + "-wal")))

    def snapshot(self) -> Snapshot:
        """The newest snapshot, read again if something was written."""
        with self._lock:
            version = self.version()
            if version != self._snapshot.version:
                self._snapshot = self._read(version)
            return self._snapshot

    def prepare(self) -> None:
        """Reads and summarises the file before anybody asks; what is wrong with it is told to who asks."""
        with suppress(UserError, OSError):
            snapshot = self.snapshot()
            for filters in (Filters(), *(Filters({"study": (name,)}) for name in snapshot.members)):
                snapshot.rows(filters)

    def _read(self, version: str) -> Snapshot:
        """What the file has now; of records that were read before only the numbers are looked up again."""
        if not is_file(self.db) or not self.db.stat().st_size:
            return Snapshot(version)
        file = self.db.stat().st_ino
        if file != self._file:
            self._records, self._summaries, self._file = {}, _Summaries(), file
        with Store.open_existing(self.db) as store:
            numbers = [number for number, _ in store.numbers()]
            new = {record.id: record for record in store.read(n for n in numbers if n not in self._records)}
            known = self._records | new
            self._records = {number: known[number] for number in numbers if number in known}
            annotations = read_annotations(self.db)
            if annotations == self._snapshot.annotations:
                annotations = self._snapshot.annotations
            return Snapshot(version, tuple(self._records.values()), store.members(), annotations, self._summaries)


def _stamp(path: Path) -> str:
    try:
        status = path.stat()
    except OSError:
        return "-"
    # Reading leaves an empty write-ahead log, which is no change.
    return f"{status.st_mtime_ns}.{status.st_size}" if status.st_size else "-"
