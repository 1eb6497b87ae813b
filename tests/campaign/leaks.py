"""What a campaign leaves behind on the machine: processes, shared memory, sockets, temporary folders, namespaces."""

from pathlib import Path

from campaign.case import MARK

SHARED_MEMORY, NAMED_NETWORKS = Path("/dev/shm"), Path("/run/netns")


class Leaks:
    """Notes what is there before, so that only what came later counts."""

    def __init__(self) -> None:
        self._shared, self._networks = _names(SHARED_MEMORY), _names(NAMED_NETWORKS)

    def found(self, folder: str) -> list[str]:
        """What is left of processes whose cases were in that folder, as words."""
        processes = [pid for pid in _processes() if f"{MARK}={folder}".encode() in _read(pid, "environ")]
        left = [f"{len(processes)} processes {processes}"] if processes else []
        # A segment that some process uses belongs to whatever else runs on the machine.
        used = b"".join(_read(pid, "maps") for pid in _processes())
        for name in sorted(_names(SHARED_MEMORY) - self._shared):
            if f"{SHARED_MEMORY}/{name}".encode() not in used:
                left.append(f"shared memory {name}")
        left += [f"namespace {name}" for name in sorted(_names(NAMED_NETWORKS) - self._networks)]
        sockets = [line for line in _text("/proc/net/unix").splitlines() if folder in line]
        left += [f"{len(sockets)} sockets"] if sockets else []
        folders = [str(path) for path in Path(folder).glob("*/temporary/paceline-*")]
        return left + [f"folder {path}" for path in folders]


def _names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()


def _processes() -> list[str]:
    return [path.name for path in Path("/proc").glob("[0-9]*")]


def _read(pid: str, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def _text(path: str) -> str:
    return Path(path).read_text() if Path(path).exists() else ""
