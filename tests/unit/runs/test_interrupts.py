"""When a signal that stops a study is heard."""

import signal

import pytest

from paceline.runs.interrupts import STOPPING, hear_signals, heard_interrupts, held_interrupts


@pytest.fixture(autouse=True)
def signals_as_before():
    before = {number: signal.getsignal(number) for number in STOPPING}
    for number in STOPPING:
        signal.signal(number, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", STOPPING)
def test_every_signal_that_stops_a_study_is_an_interrupt(number):
    hear_signals()
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(number)


@pytest.mark.parametrize("number", STOPPING)
def test_a_signal_that_is_ignored_stays_ignored(number):
    signal.signal(number, signal.SIG_IGN)
    hear_signals()
    signal.raise_signal(number)


def test_a_held_signal_waits_until_what_must_be_whole_is_whole():
    hear_signals()
    done = []
    with pytest.raises(KeyboardInterrupt), held_interrupts():
        signal.raise_signal(signal.SIGTERM)
        done.append("stored")
    assert done == ["stored"]


def test_a_signal_is_heard_at_once_where_a_run_may_be_stopped_and_only_once():
    hear_signals()
    done = []
    with held_interrupts():
        signal.raise_signal(signal.SIGHUP)
        with pytest.raises(KeyboardInterrupt), heard_interrupts():
            done.append("never")
        done.append("stored as interrupted")
    assert done == ["stored as interrupted"]


def test_signals_after_the_first_do_not_cut_its_clean_end_short():
    hear_signals()
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGHUP)
    for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGQUIT):
        signal.raise_signal(number)


def test_whoever_presses_ctrl_c_three_times_does_not_wait():
    hear_signals()
    presses = iter(range(10))
    with pytest.raises(KeyboardInterrupt), held_interrupts():
        for _press in presses:
            signal.raise_signal(signal.SIGINT)
    assert next(presses) == 3
