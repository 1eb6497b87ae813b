"""The content of a results file: records and steps as text and bytes with checksums, and back with what is wrong."""

import hashlib
import json
import zlib
from array import array
from collections.abc import Iterable
from typing import Any

from pydantic import ValidationError

from paceline.record import Record
from paceline.spec import KEY_LENGTH, Optimizer, RunSpec

CHECKSUM_BYTES = 8
# A rank's steps take eight bytes each: 33 million steps. What would expand beyond that is damage, or meant to harm.
MOST_STEP_BYTES = 1 << 28
# Fields of a record that are columns or tables of their own.
OUTSIDE_BODY = {"id", "step_seconds", "environment"}


_ALL_FIELDS = set(RunSpec.model_fields)
_optimizers: dict[Optimizer, Optimizer] = {}


class DamagedError(Exception):
    """Stored content is not what was written; the text says how that is known."""


class UnknownFieldsError(Exception):
    """A record has fields that this version does not know."""


def checksum(*parts: object) -> str:
    """A text that is another one, but for a chance of 1 in 10^19, if any byte of the parts changes."""
    digest = hashlib.blake2b(digest_size=CHECKSUM_BYTES)
    for part in parts:
        data = part if isinstance(part, bytes) else str(part).encode()
        digest.update(len(data).to_bytes(CHECKSUM_BYTES, "little"))
        digest.update(data)
    return digest.hexdigest()


def environment_digest(text: str) -> str:
    """What an environment is looked up by."""
    return hashlib.sha256(text.encode()).hexdigest()[:KEY_LENGTH]


def read_environment(digest: str, text: str) -> dict[str, Any]:
    """The fields of an environment, if its text has the digest that it is looked up by."""
    if environment_digest(text) != digest:
        raise DamagedError("its text is not the one that was written")
    fields = json.loads(text)
    assert isinstance(fields, dict)
    return fields


def check_body(body: bytes, columns: tuple[object, ...], written_checksum: str | None) -> None:
    """Raises if the text and columns of a record are not those that were written; older records have no checksum."""
    if written_checksum is not None and checksum(*columns, body) != written_checksum:
        raise DamagedError("its checksum differs")


def read_body(body: bytes) -> Record:
    """The record of a text, or why there is none."""
    try:
        body.decode()
    except UnicodeDecodeError:
        raise DamagedError("its text is not UTF-8") from None
    try:
        record = Record.model_validate_json(body)
    except ValidationError as error:
        if any(item["type"] == "json_invalid" for item in error.errors(include_url=False, include_context=False)):
            raise DamagedError("its text is not JSON") from None
        raise UnknownFieldsError("its fields are not those of a record that this Paceline knows") from None
    _share_parts(record.spec)
    return record


def _share_parts(spec: RunSpec) -> None:
    """Puts what most runs have in common in place of copies of it: half of the memory of many specs."""
    spec.__dict__["optimizer"] = _optimizers.setdefault(spec.optimizer, spec.optimizer)
    if len(spec.__pydantic_fields_set__) == len(_ALL_FIELDS):
        object.__setattr__(spec, "__pydantic_fields_set__", _ALL_FIELDS)


def pack(seconds: Iterable[float]) -> bytes:
    """Step durations as compressed doubles, little-endian."""
    return zlib.compress(array("d", seconds).tobytes())


def unpack(blob: bytes) -> tuple[float, ...]:
    """The reverse of `pack`; stops at `MOST_STEP_BYTES`."""
    values = array("d")
    stream = zlib.decompressobj()
    try:
        expanded = stream.decompress(blob, MOST_STEP_BYTES)
    except zlib.error as error:
        raise DamagedError(f"its steps cannot be expanded: {error}") from None
    if stream.unconsumed_tail:
        raise DamagedError(f"its steps would expand beyond {MOST_STEP_BYTES >> 20} MiB")
    if not stream.eof or stream.unused_data or len(expanded) % values.itemsize:
        raise DamagedError("its steps are incomplete")
    values.frombytes(expanded)
    return tuple(values)
