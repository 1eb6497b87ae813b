"""Source text laid out as formatters do."""

from paceline.recommend.scripts.layout import assignment, call, prose, without_unused_imports


def test_a_call_that_fits_stays_on_its_line() -> None:
    assert call("f(", ["a", "b=1"], indent=4) == "    f(a, b=1)"


def test_a_call_that_is_too_long_has_its_arguments_on_a_line_of_their_own() -> None:
    name = "a" * 75
    assert call("a_function(", [name, "b=1"]) == f"a_function(\n    {name}, b=1\n)"


def test_arguments_that_are_too_long_for_one_line_have_one_each() -> None:
    name = "a" * 80
    assert call("f(", [name, "bbbbbbbb=1"]) == f"f(\n    {name},\n    bbbbbbbb=1,\n)"


def test_an_assignment_is_put_into_brackets_only_where_that_makes_it_fit() -> None:
    assert assignment("NAME", '"short"') == 'NAME = "short"'
    assert assignment("NAME", "x" * 83) == "NAME = (\n    " + "x" * 83 + "\n)"
    assert assignment("NAME", "x" * 99) == "NAME = " + "x" * 99


def test_prose_is_broken_between_words_only() -> None:
    assert max(len(line) for line in prose("some words " * 30).splitlines()) <= 88
    assert prose("--nproc-per-node " * 8).split() == ["--nproc-per-node"] * 8


def test_imports_that_nothing_uses_are_taken_out() -> None:
    source = "import os\nimport sys\nimport a.b as c\nfrom x import y, z\n\nprint(os, z)\n"
    assert without_unused_imports(source) == "import os\nfrom x import z\n\nprint(os, z)\n"


def test_an_import_over_several_lines_shrinks_to_one() -> None:
    source = "from x import (\n    y,\n    z,\n)\n\nprint(z)\n"
    assert without_unused_imports(source) == "from x import z\n\nprint(z)\n"
