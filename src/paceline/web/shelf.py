"""The results file as the pages see it: read again only when there is something new, and cut to what was chosen."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from urllib.parse import urlencode

from paceline.analysis.rows import Row, summarise
from paceline.record import Record
from paceline.store import Store

# What results can be filtered by, in the order of the page.
FILTERS = ("study", "workload", "strategy", "workers")


@dataclass(frozen=True)
class Choice:
    """Values that were chosen for each filter; a filter without any takes everything."""

    values: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def parse(cls, pairs: Iterable[tuple[str, str]]) -> "Choice":
        """From the query of an address; what is no filter is left out."""
        found: dict[str, tuple[str, ...]] = {}
        for name, value in pairs:
            if name in FILTERS and value and value not in found.get(name, ()):
                found[name] = (*found.get(name, ()), value)
        return cls(found)

    def takes(self, name: str, value: str) -> bool:
        """Whether something with this value was chosen."""
        return name not in self.values or value in self.values[name]

    @property
    def query(self) -> str:
        """As the query of an address, with its question mark where there is one."""
        pairs = [(name, value) for name in FILTERS for value in self.values.get(name, ())]
        return "?" + urlencode(pairs) if pairs else ""


@dataclass(frozen=True)
class Content:
    """What the file held at one moment."""

    version: str
    records: tuple[Record, ...] = ()
    members: Mapping[str, set[str]] = field(default_factory=dict)
    # Rows by the filters they were asked for with; pages and their figures ask for the same ones.
    _rows: dict[str, list[Row]] = field(default_factory=dict, repr=False, compare=False)

    def chosen(self, choice: Choice) -> list[Record]:
        """The records that the filters leave."""
        studies = [self.members.get(name, set()) for name in choice.values.get("study", self.members)]
        keys = set().union(*studies)
        return [
            record
            for record in self.records
            if (record.key in keys or "study" not in choice.values)
            and choice.takes("workload", record.spec.workload)
            and choice.takes("strategy", record.spec.strategy)
            and choice.takes("workers", str(record.spec.workers))
        ]

    def rows(self, choice: Choice) -> list[Row]:
        """One per configuration of the chosen records."""
        if choice.query not in self._rows:
            self._rows[choice.query] = summarise(self.chosen(choice))
        return self._rows[choice.query]

    @property
    def configurations(self) -> int:
        """How many there are."""
        return len({record.key for record in self.records if not record.spec.instrumented})

    def offered(self) -> dict[str, list[str]]:
        """The values of each filter that there are."""
        specs = [record.spec for record in self.records]
        return {
            "study": sorted(self.members),
            "workload": sorted({spec.workload for spec in specs}),
            "strategy": sorted({spec.strategy for spec in specs}),
            "workers": [str(count) for count in sorted({spec.workers for spec in specs})],
        }


class Shelf:
    """Keeps the newest content; safe to ask from several threads."""

    def __init__(self, db: Path) -> None:
        self.db = db
        self._content = Content("")
        self._lock = Lock()

    def version(self) -> str:
        """Changes when something is written; found without opening the file, as it is asked for all the time."""
        return " ".join(_stamp(path) for path in (self.db, self.db.with_name(self.db.name + "-wal")))

    def content(self) -> Content:
        """All records, read again if something was written."""
        with self._lock:
            version = self.version()
            if version != self._content.version:
                self._content = self._read(version)
            return self._content

    def _read(self, version: str) -> Content:
        if not self.db.is_file() or not self.db.stat().st_size:
            return Content(version)
        with Store.open_existing(self.db) as store:
            return Content(version, tuple(store.records()), store.members())


def _stamp(path: Path) -> str:
    try:
        found = path.stat()
    except OSError:
        return "-"
    # Reading leaves an empty file beside, which says nothing new.
    return f"{found.st_mtime_ns}.{found.st_size}" if found.st_size else "-"
