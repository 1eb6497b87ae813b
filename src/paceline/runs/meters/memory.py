"""What this process holds in memory, from the kernel's own account of it."""

import ctypes
from dataclasses import dataclass
from pathlib import Path

KIBIBYTE = 1024
STATUS = Path("/proc/self/status")
# Writing this there makes the kernel's peak start again from what is resident now (proc(5)).
CLEAR, PEAK_ONLY = Path("/proc/self/clear_refs"), "5"


@dataclass(frozen=True)
class Resident:
    """Resident bytes of this process without pages of files: now, and the most so far."""

    current_bytes: int
    peak_bytes: int


def resident(status: Path = STATUS) -> Resident | None:
    """What this process holds without pages of files, which come in as programs are used, whatever the model is.

    The kernel keeps the peak with those pages, so that they are taken off as they are now. They hardly ever go again:
    the peak may come out too small by what came in since then, and never too large. None where there is no such file.
    """
    try:
        lines = status.read_text().splitlines()
    except OSError:
        return None
    fields = {name: text.split()[0] for name, _, text in (line.partition(":") for line in lines) if text.split()}
    if not {"VmRSS", "VmHWM", "RssFile"} <= fields.keys():
        return None
    now, peak, files = (int(fields[name]) * KIBIBYTE for name in ("VmRSS", "VmHWM", "RssFile"))
    return Resident(now - files, max(peak, now) - files)


def start_peak_anew() -> None:
    """Gives pages that are free back to the system and starts the peak from here, so that it is of what follows.

    Importing, loading data and making weights leave tens of megabytes behind; how many depends on the order in which
    that was done, not on how the model is trained. Where the system cannot do either, nothing happens.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    try:
        CLEAR.write_text(PEAK_ONLY)
    except OSError:
        return
