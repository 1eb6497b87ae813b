"""Which files a user's program is, and what its identity covers; nothing of it is run."""

import sys

import pytest

from paceline.source_files import files_by_place, identity, source_files
from paceline.spec import KEY_LENGTH, ModelFile, ScriptFile

TEXTS = {
    "mine.py": "import os, json\nimport layers\n\ndef build():\n    from late import depth\n",
    "layers.py": "from parts import blocks\n",
    "late.py": "raise RuntimeError('nothing of it is run')\n",
    "unused.py": "",
    "parts/__init__.py": "",
    "parts/blocks.py": "from . import sizes\nimport numpy\n",
    "parts/sizes.py": "WIDTH = 3\n",
}


@pytest.fixture
def program(tmp_path):
    folder = tmp_path / "here"
    for name, text in TEXTS.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder / "mine.py"


def test_the_modules_of_the_user_are_found_in_turn_and_nothing_that_is_installed(program):
    assert set(source_files(program)) == {"", "layers", "late", "parts", "parts.blocks", "parts.sizes"}


@pytest.mark.parametrize("name", ["mine.py", "layers.py", "late.py", "parts/__init__.py", "parts/sizes.py"])
def test_the_identity_changes_with_each_of_them(program, name):
    before = identity(program, KEY_LENGTH)
    file = program.parent / name
    file.write_text(file.read_text() + "# changed\n")
    assert identity(program, KEY_LENGTH) != before


def test_the_identity_does_not_change_with_other_files_or_with_the_place(program, tmp_path):
    before = identity(program, KEY_LENGTH)
    (program.parent / "unused.py").write_text("changed = True")
    moved = program.parent.rename(tmp_path / "there") / "mine.py"
    assert identity(moved, KEY_LENGTH) == before


def test_modules_on_the_path_of_python_are_the_users_too_unless_they_are_installed(program, tmp_path, monkeypatch):
    own, installed = tmp_path / "own", tmp_path / "lib" / "site-packages"
    for folder, module in ((own, "of_the_user_elsewhere"), (installed, "of_another_project")):
        folder.mkdir(parents=True)
        (folder / f"{module}.py").write_text("")
        monkeypatch.syspath_prepend(str(folder))
    program.write_text("import of_the_user_elsewhere, of_another_project, paceline\n")
    assert set(source_files(program)) == {"", "of_the_user_elsewhere"}
    assert "of_the_user_elsewhere" not in sys.modules


def test_copied_to_their_places_its_files_are_the_same_program_wherever_they_lay(program, tmp_path, monkeypatch):
    elsewhere, copied = tmp_path / "elsewhere", tmp_path / "copied"
    for name in ("project/__init__.py", "project/deep/sizes.py", "single.py"):
        (elsewhere / name).parent.mkdir(parents=True, exist_ok=True)
        (elsewhere / name).write_text("")
    monkeypatch.syspath_prepend(str(elsewhere))
    program.write_text(f"{program.read_text()}\nimport project.deep.sizes, single\n")
    places = files_by_place(program)
    assert {*places} == {*TEXTS, "project/__init__.py", "project/deep/sizes.py", "single.py"} - {"unused.py"}
    monkeypatch.undo()
    for place, file in places.items():
        (copied / place).parent.mkdir(parents=True, exist_ok=True)
        (copied / place).write_bytes(file.read_bytes())
    assert identity(copied / "mine.py", KEY_LENGTH) == _identity_with(elsewhere, program, monkeypatch)


def _identity_with(folder, program, monkeypatch):
    monkeypatch.syspath_prepend(str(folder))
    return identity(program, KEY_LENGTH)


def test_a_module_that_appears_later_is_seen(program):
    program.write_text("import later\n")
    before = identity(program, KEY_LENGTH)
    (program.parent / "later.py").write_text("")
    assert identity(program, KEY_LENGTH) != before


@pytest.mark.parametrize("text", ["def broken(:\n", "\0", "import .nonsense\n"])
def test_a_file_that_is_no_python_is_itself_alone(program, text):
    program.write_text(text)
    assert set(source_files(program)) == {""}


def test_a_model_and_a_script_are_known_by_all_their_files(program):
    models, scripts = [], []
    for text in ("WIDTH = 3\n", "WIDTH = 4\n"):
        (program.parent / "parts" / "sizes.py").write_text(text)
        models.append(ModelFile.from_text(str(program)).digest)
        scripts.append(ScriptFile.from_text(str(program)).digest)
    assert len(set(models)) == len(set(scripts)) == 2


def test_the_structure_of_a_model_is_part_of_its_runs_identity(program, make_spec):
    model = ModelFile.from_text(str(program))
    specs = [make_spec(model=model.model_copy(update={"structure": text})) for text in ("", "a", "b")]
    assert len({spec.key() for spec in specs}) == 3
    assert {spec.without_structure().key() for spec in specs} == {specs[0].key()}


def test_a_record_of_a_model_as_it_was_known_before_stays_readable_and_never_answers_for_a_new_run(program, make_spec):
    import hashlib

    digest = hashlib.sha256(program.read_bytes()).hexdigest()[:KEY_LENGTH]
    before = ModelFile.model_validate({"path": str(program), "function": "build", "digest": digest})
    assert make_spec(model=before).key() != make_spec(model=ModelFile.from_text(str(program))).key()
