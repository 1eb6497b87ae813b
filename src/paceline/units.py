"""Quantities to text and back. Inside Paceline everything is SI: seconds, bytes, samples per second."""

import math
import re
from collections.abc import Iterable

from paceline.errors import UserError

_SECONDS_PER = {"s": 1.0, "m": 60.0, "h": 3600.0}
_SECONDS_PER_DAY = 86_400
_BYTES_PER = {"B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
# Longer numbers are no counts of anything; longer lists were never meant.
_MOST_DIGITS, MOST_NUMBERS = 15, 10_000
_RANGE = re.compile(rf"(\d{{1,{_MOST_DIGITS}}})\.\.(\d{{1,{_MOST_DIGITS}}})")


def parse_seconds(text: str) -> float:
    """`90`, `90s`, `5m`, `2h` as seconds."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text.strip())
    if not match:
        raise UserError(
            f"{text!r} is not a length of time; write seconds, or a number with s, m or h, such as 90s or 5m"
        )
    return float(match[1]) * _SECONDS_PER[match[2] or "s"]


def parse_bytes(text: str) -> float:
    """`500MB`, `2GB` or `2e9` as bytes."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?(?:e\d+)?)\s*([kMGT]?B)?(?:/s)?", text.strip())
    if not match:
        raise UserError(f"{text!r} is not a number of bytes; write a number with kB, MB, GB or TB, such as 2GB")
    return float(match[1]) * _BYTES_PER[match[2] or "B"]


def parse_shape(text: str) -> tuple[int, ...]:
    """`3x32x32` as (3, 32, 32)."""
    if not re.fullmatch(r"[1-9]\d*([x,][1-9]\d*)*", text.strip()):
        raise UserError(f"{text!r} is not a shape; write sizes joined by x, channels first, such as 3x32x32")
    return tuple(int(size) for size in re.split("[x,]", text.strip()))


def parse_whole_numbers(text: str, what: str) -> list[int]:
    """`1,2,4` or `1..8` as a list of whole numbers."""
    numbers: list[int] = []
    for part in text.split(","):
        word = part.strip()
        if (span := _RANGE.fullmatch(word)) and int(span[1]) <= int(span[2]):
            span_numbers = range(int(span[1]), int(span[2]) + 1)
            if len(numbers) + len(span_numbers) > MOST_NUMBERS:
                raise UserError(f"{what} {text!r} has more than {MOST_NUMBERS:,} numbers; name fewer, such as 1,2,4,8")
            numbers += span_numbers
        elif span:
            raise UserError(f"{what} {text!r} has {word!r}, which runs backwards; write the smaller number first")
        elif re.fullmatch(rf"-?\d{{1,{_MOST_DIGITS}}}", word):
            numbers.append(int(word))
        else:
            raise UserError(f"{what} {text!r} has {word!r}, which is not a whole number; write such as 1,2,4 or 1..8")
    return numbers


def format_seconds(seconds: float) -> str:
    """Three significant digits in the unit that fits: `1.93 s`, `42 ms`, `3 min 20 s`."""
    for unit, size in (("µs", 1e-6), ("ms", 1e-3)):
        if float(f"{seconds / size:.3g}") < 1000:
            return f"{seconds / size:.3g} {unit}"
    if seconds < 100:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 100:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def format_days(seconds: float) -> str:
    """Long times in days, shorter ones as `format_seconds` writes them: `12.3 days`."""
    days = seconds / _SECONDS_PER_DAY
    return f"{days:,.3g} days" if days >= 2 else format_seconds(seconds)


def format_energy(joules: float) -> str:
    """Energy in the units in which electricity is billed: `1.25 kWh`, `340 MWh`; single joules below a watt-hour."""
    for unit, size in (("GWh", 3.6e12), ("MWh", 3.6e9), ("kWh", 3.6e6), ("Wh", 3.6e3)):
        if joules >= size:
            return f"{joules / size:,.3g} {unit}"
    return f"{joules:.3g} J"


def format_rate(per_second: float) -> str:
    """A rate with thousands separators and no false precision: `12,390`, `98.4`."""
    return f"{per_second:,.0f}" if per_second >= 100 else f"{per_second:.3g}"


def format_about(value: float) -> str:
    """A number with three significant digits: `255,000`, `98.4`."""
    return format_rate(float(f"{value:.3g}"))


def format_bytes(count: float) -> str:
    """Decimal bytes: `16.4 MB`."""
    for unit, size in (("B", 1.0), ("kB", 1e3), ("MB", 1e6), ("GB", 1e9)):
        if float(f"{count / size:.3g}") < 1000:
            return f"{count / size:.3g} {unit}"
    return f"{float(f'{count / 1e12:.3g}'):,g} TB"


def format_money(amount: float) -> str:
    """An amount with two significant digits, and never fewer than two after the point: `1,234.50`, `0.012`."""
    digits = 2 if amount <= 0 else max(2, 1 - math.floor(math.log10(amount)))
    return f"{amount:,.{digits}f}"


def format_percent(share: float) -> str:
    """A share of one as a whole percentage: `97 %`."""
    return f"{share * 100:.0f} %"


def format_count(number: int, what: str) -> str:
    """`1 worker`, `2 workers`."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def format_names(names: Iterable[str]) -> str:
    """`left`, `left and right`, `left, middle and right`."""
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last
