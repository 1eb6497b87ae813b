"""What this process holds in memory, from the kernel's own account of it."""

from dataclasses import dataclass
from pathlib import Path

KIBIBYTE = 1024
STATUS = Path("/proc/self/status")


@dataclass(frozen=True)
class Resident:
    """Resident bytes without pages of files: now, and the most so far."""

    own_bytes: int
    peak_bytes: int


def resident(status: Path = STATUS) -> Resident | None:
    """Pages of files are left out: programs and libraries come in page by page as they are used, whatever the model.

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
