"""The types of errors.

    UserError            the input is wrong; the message says what was asked, what is wrong, what to do
    ├── SpecError        a field of a run or study
    ├── DataError        a data set that is not there or not what it should be
    ├── ModelError       a model file of the user's
    └── StoreError       a results file that cannot be used

Raised at the boundary, caught once in `cli`, which prints the message and exits with 2. A run that fails is not an
exception: it is a `Record` with a `Status` and a reason.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches


class UserError(Exception):
    """The user's input is wrong."""


class SpecError(UserError):
    """A field of a run or study is unknown or impossible."""


class DataError(UserError):
    """A data set is missing or damaged."""


class ModelError(UserError):
    """A user's model file does not do what it must."""


class StoreError(UserError):
    """A results file cannot be read or written."""


class DamagedRecords(UserWarning):
    """Some records of a results file are not what was written; they are left out and the others are shown."""


@contextmanager
def user_can_choose(problem: str, choice: str) -> Iterator[None]:
    """Turns an error of the disk into a `UserError` that names the problem, its reason and what to choose instead."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{problem}: {error.strerror or error}; choose another {choice}") from None


def nearest(word: str, choices: Iterable[str]) -> str:
    """A hint for a misspelt name: the closest choice, or all of them when nothing is close."""
    names = sorted(choices)
    close = get_close_matches(word, names, n=1, cutoff=0.5)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"choose from {', '.join(names)}" if names else "there are none"
