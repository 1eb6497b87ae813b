"""How the answer of a process that ran a user's code comes back: a file of its own, whole or not at all.

Standard output and inherited descriptors are the user's: a model may print, write to them, close them, or start
processes that keep them open. A file that is written at the end and checked when it is read depends on none of that.
"""

import hashlib
from pathlib import Path

DIGEST_BYTES = hashlib.sha256().digest_size


def write_answer(path: Path, answer: bytes) -> None:
    """Writes the answer with its digest in front; the name appears when all of it is there."""
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_bytes(hashlib.sha256(answer).digest() + answer)
    unfinished.rename(path)


def read_answer(path: Path) -> bytes | None:
    """The answer; None where there is none, or not the one that was written."""
    try:
        frame = path.read_bytes()
    except OSError:
        return None
    digest, answer = frame[:DIGEST_BYTES], frame[DIGEST_BYTES:]
    return answer if hashlib.sha256(answer).digest() == digest else None
