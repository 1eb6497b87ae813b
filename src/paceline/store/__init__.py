"""Records in one SQLite file: each stored whole in one transaction the moment its run ends.

Several tools may write to the same file at once. Records are never changed or deleted; the newest record of a
configuration and repeat is the one that counts.
"""

from paceline.store.claims import Owner, is_here
from paceline.store.content import pack, unpack
from paceline.store.results_file import DEFAULT_PATH, Store
from paceline.store.schema import APPLICATION_ID, BUSY_SECONDS, MIGRATIONS, refuse_memory

__all__ = [
    "APPLICATION_ID", "BUSY_SECONDS", "DEFAULT_PATH", "MIGRATIONS", "Owner", "Store", "is_here", "pack",
    "refuse_memory", "unpack",
]  # fmt: skip
