"""Paths as users type them; what is wrong with one is said in words."""

from pathlib import Path

from paceline.errors import UserError


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


def is_file(path: Path) -> bool:
    """Whether there is a file at a path; not where no file can have such a name."""
    try:
        return path.is_file()
    except OSError:
        return False
