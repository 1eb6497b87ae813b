"""TensorBoard's event files, written without TensorBoard: framed records of protocol buffers.

Framing: TensorFlow's TFRecord (length, its checksum, data, its checksum; checksums are masked CRC-32C, RFC 3720).
Fields: tensorboard/compat/proto/event.proto and summary.proto, tensorboard/plugins/hparams/plugin_data.proto and
api.proto.
"""

import struct
from collections.abc import Iterable, Mapping
from functools import cache

from paceline.spec import Scalar

VERSION = "brain.Event:2"
# Castagnoli's polynomial, bits reversed; and what TFRecord adds to a rotated checksum.
_POLYNOMIAL = 0x82F63B78
_MASK_DELTA = 0xA282EAD8
_VARINT, _DOUBLE, _BYTES, _FLOAT = 0, 1, 2, 5
SUCCESS, FAILURE = 1, 2
STRING, BOOL, FLOAT64 = 1, 2, 3


def framed(events: Iterable[bytes]) -> bytes:
    """Events as the content of a file."""
    parts = []
    for event in events:
        length = struct.pack("<Q", len(event))
        parts += [length, _checksum(length), event, _checksum(event)]
    return b"".join(parts)


def opening(seconds: float) -> bytes:
    """The event that every file begins with."""
    return _double(1, seconds) + _bytes(3, VERSION.encode())


def scalar(seconds: float, step: int, tag: str, value: float) -> bytes:
    """One number at one step."""
    return _event(seconds, step, _bytes(1, tag.encode()) + _float(2, value))


def experiment(seconds: float, settings: Mapping[str, Scalar], metrics: Iterable[str]) -> bytes:
    """The columns of the table of hyperparameters: settings, each with a value that shows its type, and metrics."""
    columns = b"".join(_bytes(4, _bytes(1, name.encode()) + _integer(4, _data_type(v))) for name, v in settings.items())
    results = b"".join(_bytes(5, _bytes(1, _bytes(2, tag.encode())) + _bytes(3, tag.encode())) for tag in metrics)
    return _hyperparameters(seconds, "experiment", 2, _double(3, seconds) + columns + results)


def session_start(seconds: float, settings: Mapping[str, Scalar], group: str) -> bytes:
    """The settings of the run, for the table of hyperparameters."""
    entries = b"".join(_bytes(1, _bytes(1, name.encode()) + _bytes(2, _value(v))) for name, v in settings.items())
    return _hyperparameters(seconds, "session_start_info", 3, entries + _bytes(4, group.encode()) + _double(5, seconds))


def session_end(seconds: float, status: int) -> bytes:
    """How the run ended."""
    return _hyperparameters(seconds, "session_end_info", 4, _integer(1, status) + _double(2, seconds))


def _hyperparameters(seconds: float, name: str, number: int, content: bytes) -> bytes:
    plugin = _bytes(1, b"hparams") + _bytes(2, _bytes(number, content))
    return _event(seconds, 0, _bytes(1, f"_hparams_/{name}".encode()) + _bytes(9, _bytes(1, plugin)))


def _event(seconds: float, step: int, value: bytes) -> bytes:
    return _double(1, seconds) + _integer(2, step) + _bytes(5, _bytes(1, value))


def _data_type(value: Scalar) -> int:
    """DataType of tensorboard/plugins/hparams/api.proto."""
    return STRING if isinstance(value, str) else BOOL if isinstance(value, bool) else FLOAT64


def _value(value: Scalar) -> bytes:
    """google.protobuf.Value."""
    if isinstance(value, bool):
        return _integer(4, int(value))
    return _bytes(3, value.encode()) if isinstance(value, str) else _double(2, float(value))


def _key(number: int, kind: int) -> bytes:
    return _varint(number << 3 | kind)


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def _integer(number: int, value: int) -> bytes:
    return _key(number, _VARINT) + _varint(value)


def _double(number: int, value: float) -> bytes:
    return _key(number, _DOUBLE) + struct.pack("<d", value)


def _float(number: int, value: float) -> bytes:
    return _key(number, _FLOAT) + struct.pack("<f", value)


def _bytes(number: int, value: bytes) -> bytes:
    return _key(number, _BYTES) + _varint(len(value)) + value


@cache
def _table() -> tuple[int, ...]:
    table = []
    for start in range(256):
        value = start
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
        table.append(value)
    return tuple(table)


def _checksum(data: bytes) -> bytes:
    table, value = _table(), 0xFFFFFFFF
    for byte in data:
        value = table[(value ^ byte) & 0xFF] ^ value >> 8
    value ^= 0xFFFFFFFF
    masked = ((value >> 15 | value << 17 & 0xFFFFFFFF) + _MASK_DELTA) & 0xFFFFFFFF
    return struct.pack("<I", masked)
