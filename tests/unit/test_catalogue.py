"""Folders of one kind of thing, found by listing them."""

import sys

import pytest

from paceline.catalogue import choose, discover, load_named
from paceline.errors import SpecError
from paceline.strategies import strategies, strategy


class Thing:
    """What the modules of the test's folder hold."""

    def __init__(self, name):
        self.name = name


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A package `shelf` whose modules take `Thing` from here."""
    package = tmp_path / "shelf"
    package.mkdir()
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (package / "__init__.py").write_text("")
    (package / "red_one.py").write_text("import shelf_kinds\nTHING = shelf_kinds.Thing('red-one')\n")
    (package / "blue.py").write_text("import shelf_kinds\nTHING = shelf_kinds.Thing('azure')\n")
    (package / "empty.py").write_text("")
    (package / "other.py").write_text("THING = 'a word'\n")
    (tmp_path / "shelf_kinds.py").write_text("class Thing: pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    import shelf_kinds

    shelf_kinds.Thing = Thing
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("shelf")]:
        del sys.modules[name]


def test_every_file_that_holds_such_an_object_is_found_by_the_name_it_gives_itself(folder):
    assert discover("shelf", "THING", Thing).keys() == {"red-one", "azure"}


def test_files_with_nothing_or_something_else_under_that_name_are_passed_over(folder):
    assert all(isinstance(thing, Thing) for thing in discover("shelf", "THING", Thing).values())


def test_a_new_file_is_known_with_no_other_edit(folder):
    (folder / "shelf" / "green.py").write_text("import shelf_kinds\nTHING = shelf_kinds.Thing('green')\n")
    assert "green" in discover("shelf", "THING", Thing)


def test_other_distributions_add_theirs_through_entry_points(folder):
    (folder / "outsider.py").write_text("from shelf_kinds import Thing\nTHING = Thing('from-outside')\n")
    info = folder / "outsider-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: outsider\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[shelf.things]\nfrom-outside = outsider:THING\n")
    assert "from-outside" in discover("shelf", "THING", Thing, entry_points="shelf.things")
    assert "from-outside" not in discover("shelf", "THING", Thing)
    del sys.modules["outsider"]


def test_a_thing_is_found_directly_when_its_file_is_named_after_it(folder):
    assert load_named("shelf", "THING", Thing, "red-one").name == "red-one"
    assert "shelf.blue" not in sys.modules


@pytest.mark.parametrize("name", ["blue", "azure", "red_one", "empty", "other", "absent", "", "../x", "a b"])
def test_what_is_not_found_directly_is_none(folder, name):
    assert load_named("shelf", "THING", Thing, name) is None


@pytest.mark.parametrize("name", ["torch.ddp", "fake.x"])
def test_a_name_with_a_dot_is_refused_like_any_other(name):
    with pytest.raises(SpecError, match="there is no strategy"):
        strategy(name)


def test_choosing_gives_the_named_object():
    assert choose("a", {"a": 1, "b": 2}, "letter") == 1


def test_choosing_what_is_not_there_is_refused_with_what_was_asked_and_the_nearest_name():
    with pytest.raises(SpecError) as caught:
        choose("torch-dpp", {"torch-ddp": 1, "fake": 2}, "strategy")
    assert str(caught.value) == "there is no strategy 'torch-dpp'; did you mean 'torch-ddp'?"


@pytest.mark.parametrize("name", sorted(strategies()))
def test_every_strategy_is_found_by_its_own_name_and_says_what_it_is_and_when_to_use_it(name):
    found = strategy(name)
    assert found.name == name
    assert found.about
    assert found.use_when
