"""Files of checkpoints: whole or absent, on the disk before they count, and read from the disk when they are loaded."""

import os
from collections.abc import Callable, Iterable
from pathlib import Path


def write_durably(file: Path, write: Callable[[Path], object]) -> int:
    """Writes the file under another name, waits until the disk has it, then renames it; gives its bytes."""
    draft = file.with_name(f"{file.stem}.draft{file.suffix}")
    write(draft)
    sync([draft])
    draft.replace(file)
    return file.stat().st_size


def sync(files: Iterable[Path]) -> None:
    """Returns when the disk has all bytes of the files: what a crash of the machine leaves of others is unknown."""
    for file in files:
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def forget(files: Iterable[Path]) -> None:
    """Asks the kernel to drop its copies of the files, as after a restart, so that they are read from the disk."""
    for file in files:
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
