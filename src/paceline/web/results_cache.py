"""The results file as the pages see it: read again only when it changed, and filtered."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from urllib.parse import urlencode

from paceline.analysis.rows import Row, summarise
from paceline.record import Record
from paceline.store import Store
from paceline.web.annotations import NOTHING_SAID, Annotation, read_annotations

# What results can be filtered by, in the order of the page.
FILTER_NAMES = ("study", "workload", "strategy", "workers", "tag")


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


@dataclass(frozen=True)
class Snapshot:
    """What the results file held at one moment."""

    version: str
    records: tuple[Record, ...] = ()
    members: Mapping[str, set[str]] = field(default_factory=dict)
    annotations: Mapping[str, Annotation] = field(default_factory=dict)
    # Rows by filters: a page and its figures ask for the same ones.
    _rows: dict[str, list[Row]] = field(default_factory=dict, repr=False, compare=False)

    def select(self, filters: Filters) -> list[Record]:
        """The records that pass the filters."""
        studies = [self.members.get(name, set()) for name in filters.values.get("study", self.members)]
        keys = set().union(*studies)
        return [
            record
            for record in self.records
            if (record.key in keys or "study" not in filters.values)
            and filters.matches("workload", record.spec.workload)
            and filters.matches("strategy", record.spec.strategy)
            and filters.matches("workers", str(record.spec.workers))
            and ("tag" not in filters.values or set(self.said_of(record.key).tags) & set(filters.values["tag"]))
        ]

    def said_of(self, key: str) -> Annotation:
        """The tags and the note of a configuration."""
        return self.annotations.get(key, NOTHING_SAID)

    def rows(self, filters: Filters) -> list[Row]:
        """The rows of the records that pass the filters, one per configuration."""
        if filters.query not in self._rows:
            self._rows[filters.query] = summarise(self.select(filters))
        return self._rows[filters.query]

    def filter_values(self) -> dict[str, list[str]]:
        """The values that each filter can have."""
        specs = [record.spec for record in self.records]
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
        "filter_values": snapshot.filter_values(),
        "filters": filters,
        "shown": len(snapshot.rows(filters)),
        "total": len({record.key for record in snapshot.records if not record.spec.instrumented}),
        "version_seen": snapshot.version,
    }


class ResultsCache:
    """Keeps the newest snapshot; safe to use from several threads."""

    def __init__(self, db: Path) -> None:
        self.db = db
        self._snapshot = Snapshot("")
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

    def _read(self, version: str) -> Snapshot:
        if not self.db.is_file() or not self.db.stat().st_size:
            return Snapshot(version)
        with Store.open_existing(self.db) as store:
            return Snapshot(version, tuple(store.records()), store.members(), read_annotations(self.db))


def _stamp(path: Path) -> str:
    try:
        status = path.stat()
    except OSError:
        return "-"
    # Reading leaves an empty write-ahead log, which is no change.
    return f"{status.st_mtime_ns}.{status.st_size}" if status.st_size else "-"
