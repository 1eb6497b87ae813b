"""The signals that stop a study, and when they are heard.

Each of them does what Ctrl-C does. While a record is made and stored they wait, so that a run is stored as it ended and
its processes and its folder are gone.
"""

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
# Whoever presses Ctrl-C that often does not want to wait for a clean end.
IMPATIENT_PRESSES = 3


class _Signals:
    """What arrived, and whether it has to wait."""

    held = False
    arrived: list[int] = []


def hear_signals() -> None:
    """Makes an interrupt of every signal that stops a study, but for those that are ignored, as under `nohup`."""
    for number in STOPPING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)


def _interrupt(number: int, _frame: FrameType | None) -> None:
    if number != signal.SIGINT:
        # A terminal that is closed sends more than one; the next would cut short the clean end that this one asks for.
        for other in STOPPING[1:]:
            signal.signal(other, signal.SIG_IGN)
    if not _Signals.held:
        raise KeyboardInterrupt
    _Signals.arrived.append(number)
    if _Signals.arrived.count(signal.SIGINT) >= IMPATIENT_PRESSES:
        raise KeyboardInterrupt


@contextlib.contextmanager
def held_interrupts() -> Iterator[None]:
    """Lets signals wait until the context ends, but for where `heard_interrupts` says otherwise."""
    _Signals.held, _Signals.arrived = True, []
    try:
        yield
    finally:
        waiting, _Signals.held, _Signals.arrived = _Signals.arrived, False, []
    if waiting:
        raise KeyboardInterrupt


@contextlib.contextmanager
def heard_interrupts() -> Iterator[None]:
    """Raises an interrupt at once, also one that has been waiting."""
    before, _Signals.held = _Signals.held, False
    try:
        if _Signals.arrived:
            raise KeyboardInterrupt
        yield
    finally:
        _Signals.held, _Signals.arrived = before, []
