"""The types of errors.

    UserError            the input is wrong; the message says what was asked, what is wrong, what to do
    ├── SpecError        a field of a run or study
    ├── DataError        a data set that is not there or not what it should be
    ├── ModelError       a model file of the user's
    └── StoreError       a results file that cannot be used

Raised at the boundary, caught once in `cli`, which prints the message and exits with 2. A run that fails is not an
exception: it is a `Record` with a `Status` and a reason.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from difflib import SequenceMatcher, get_close_matches


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


# How like a name a word must be to be meant, and how much less like it than the nearest another may be; the share of
# letters that both have in the same order.
LEAST_LIKENESS, NEARLY_AS_NEAR = 0.5, 0.08
# A word that is as long is perhaps the beginning of a name.
LEAST_BEGINNING, MOST_NAMES = 3, 4


def nearest(word: str, choices: Iterable[str]) -> str:
    """A hint for a misspelt name: the closest choices, or all of them when nothing is close."""
    names = sorted(choices)
    if close := near_names(word, names):
        *others, last = map(repr, close)
        return f"did you mean {', '.join(others)} or {last}?" if others else f"did you mean {last}?"
    return f"choose from {', '.join(names)}" if names else "there are none"


def near_names(word: str, names: Sequence[str]) -> list[str]:
    """The names that begin with a word; if none does, those most like it, the most like first."""
    longer = [name for name in names if name.startswith(word)] if len(word) >= LEAST_BEGINNING else []
    if longer:
        return sorted(longer, key=len)[:MOST_NAMES]
    close = get_close_matches(word, names, n=MOST_NAMES, cutoff=LEAST_LIKENESS)
    likeness = [SequenceMatcher(None, name, word).ratio() for name in close]
    return [name for name, share in zip(close, likeness, strict=True) if share >= likeness[0] - NEARLY_AS_NEAR]
