"""`NetworkLink`: how fast workers on different machines talk, as `1gbit` or `100mbit:5ms` on the command line."""

import re
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_serializer, model_validator

BITS_PER_BYTE = 8
# From the largest, so that a rate is written in the largest unit that fits it.
BITS_PER_SECOND = {"gbit": 1e9, "mbit": 1e6, "kbit": 1e3}
SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
# In place of a link: the machine's own loopback, as fast as it is.
NO_LINK = "none"
# Slower than any link that a model is trained over, and faster than any that one machine can pretend to be.
LEAST_BYTES_PER_SECOND, MOST_BYTES_PER_SECOND = 1e3, 50e9
LONGEST_DELAY_SECONDS = 10.0

_RATE = re.compile(r"(\d+(?:\.\d+)?)(gbit|mbit|kbit)(?:/s)?")
_DELAY = re.compile(r"(\d+(?:\.\d+)?)(s|ms|us)")


class NetworkLink(BaseModel):
    """The link between each process of a run and all others: bytes per second each way, and a delay each way."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    bytes_per_second: float = Field(ge=LEAST_BYTES_PER_SECOND, le=MOST_BYTES_PER_SECOND)
    # From a byte's departure to its arrival; an answer takes as long again.
    delay_seconds: float = Field(default=0.0, ge=0, le=LONGEST_DELAY_SECONDS)

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        return _read(value) if isinstance(value, str) else value

    @model_serializer
    def _as_text(self) -> str:
        return self.text

    @classmethod
    def from_text(cls, text: str) -> Self:
        """`100mbit` or `100mbit:5ms`; what is wrong is a `ValueError` in words."""
        return cls.model_validate(_read(text))

    @property
    def bits_per_second(self) -> float:
        """The rate as links are sold."""
        return self.bytes_per_second * BITS_PER_BYTE

    @property
    def text(self) -> str:
        """The link as it is written on the command line; equal links are written alike."""
        rate, delay = _in_units(self.bits_per_second, BITS_PER_SECOND), _in_units(self.delay_seconds, SECONDS)
        return ":".join("".join(part) for part in ((rate, delay) if self.delay_seconds else (rate,)))


def format_bits_per_second(rate: float) -> str:
    """A rate as people say it: `100 Mbit/s`, `2.5 Gbit/s`."""
    number, unit = _in_units(rate, BITS_PER_SECOND)
    return f"{number} {unit.capitalize()}/s"


def format_delay(seconds: float) -> str:
    """A delay as people say it: `5 ms`."""
    number, unit = _in_units(seconds, SECONDS)
    return f"{number} {unit}"


def link_rank(link: NetworkLink | None) -> tuple[float, float]:
    """Sorts links from the slowest to the fastest, of equal rates the one with the longest delay first."""
    return (float("inf"), 0.0) if link is None else (link.bytes_per_second, -link.delay_seconds)


def _in_units(value: float, units: dict[str, float]) -> tuple[str, str]:
    """The number in the largest unit in which it is at least one, and that unit."""
    unit = next((name for name, size in units.items() if round(value / size, 9) >= 1), list(units)[-1])
    return f"{value / units[unit]:.9g}", unit


def _read(text: str) -> dict[str, float]:
    rate_text, colon, delay_text = (part.strip() for part in text.lower().partition(":"))
    rate, delay = _RATE.fullmatch(rate_text), _DELAY.fullmatch(delay_text)
    if rate is None or (colon and delay is None):
        raise ValueError(
            f"link {text!r} is not understood; write a rate in kbit, mbit or gbit and, if wanted, a delay in us, ms "
            f"or s, such as 1gbit or 100mbit:5ms"
        )
    bytes_per_second = float(rate[1]) * BITS_PER_SECOND[rate[2]] / BITS_PER_BYTE
    if not LEAST_BYTES_PER_SECOND <= bytes_per_second <= MOST_BYTES_PER_SECOND:
        limits = (LEAST_BYTES_PER_SECOND, MOST_BYTES_PER_SECOND)
        least, most = ("".join(_in_units(limit * BITS_PER_BYTE, BITS_PER_SECOND)) for limit in limits)
        raise ValueError(f"link {text!r} is out of range; use a rate from {least} to {most}")
    delay_seconds = float(delay[1]) * SECONDS[delay[2]] if delay else 0.0
    if delay_seconds > LONGEST_DELAY_SECONDS:
        raise ValueError(f"link {text!r} is out of range; use a delay of at most {LONGEST_DELAY_SECONDS:g}s")
    return {"bytes_per_second": bytes_per_second, "delay_seconds": delay_seconds}
