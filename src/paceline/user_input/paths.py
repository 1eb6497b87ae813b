"""Paths as users type them; what is wrong with one is said in words."""

import errno
from pathlib import Path

from paceline.errors import UserError

# Of a program, a study or the description of a system; what is longer was named by mistake.
MOST_BYTES = 1 << 24


def home_path(text: str, what: str) -> Path:
    """The path, with `~` as a home folder."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        user = Path(text).parts[0]
        raise UserError(f"{what} {text!r}: there is no home folder {user} here; write the path in full") from None


def user_path(text: str, what: str) -> Path:
    """The same, in full."""
    path = home_path(text, what)
    try:
        return Path(str(path.resolve()).encode().decode())
    except UnicodeEncodeError:
        raise UserError(f"{what} {text!r}: its name or that of a folder above is not UTF-8; rename it") from None
    except (RuntimeError, OSError, ValueError) as error:
        raise UserError(f"{what} {text!r} is no path: {error}; name a file") from None


def read_content(path: Path) -> bytes:
    """The content of a file that a user wrote; an `OSError` where it is longer than anything that is written."""
    with path.open("rb") as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise OSError(errno.EFBIG, f"it has more than {MOST_BYTES >> 20} MiB, as no such file has", str(path))
    return content


def is_file(path: Path) -> bool:
    """Whether there is a file at a path; not where no file can have such a name."""
    try:
        return path.is_file()
    except OSError:
        return False
