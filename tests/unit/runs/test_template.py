"""What a template says of the processes that it forks."""

import os

from paceline.runs.template import Forked, Template, Templates


def unstarted() -> Template:
    """The launcher's side alone, without a process behind it."""
    template = object.__new__(Template)
    template.codes = {}
    template.hear = lambda: None  # type: ignore[method-assign]
    return template


def test_a_process_runs_until_its_end_is_told():
    template = unstarted()
    assert template.take({"started": 42}) == 42
    assert Forked(42, template).poll() is None
    assert template.take({"ended": 42, "code": 3}) is None
    assert Forked(42, template).poll() == 3


def test_a_number_that_the_system_gives_out_again_does_not_bring_back_an_old_end():
    template = unstarted()
    template.take({"started": 42})
    template.take({"ended": 42, "code": 0})
    template.take({"started": 42})
    assert Forked(42, template).poll() is None


def test_what_importing_took_is_known_until_the_template_ends():
    made = Templates()
    template = made.of(("decimal",), dict(os.environ))
    assert 0 < made.cpu_seconds() < 60
    assert template.cpu_seconds() <= made.cpu_seconds()
    made.close()
    assert (template.cpu_seconds(), made.cpu_seconds()) == (0.0, 0.0)
