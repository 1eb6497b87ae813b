"""Files on their way to an agent and back."""

import pytest

from paceline.runs.agent.files import PART_BYTES, file_parts, keep_part
from paceline.runs.agent.messages import FilePart
from paceline.source_files import files_by_place


@pytest.mark.parametrize("size", [0, 5, PART_BYTES, PART_BYTES + 1])
def test_a_file_arrives_as_it_left(tmp_path, size):
    source = tmp_path / "source"
    source.write_bytes(bytes(index % 251 for index in range(size)))
    parts = list(file_parts(source, "folder/copy"))
    assert [part.last for part in parts] == [False] * (len(parts) - 1) + [True]
    for part in parts:
        file = keep_part(FilePart.model_validate_json(part.model_dump_json()), tmp_path / "agent")
    assert file.read_bytes() == source.read_bytes()


@pytest.mark.parametrize("name", ["../out", "/etc/passwd", "inside/../../out"])
def test_no_file_leaves_the_folder_of_the_agent(tmp_path, name):
    (tmp_path / "agent").mkdir()
    with pytest.raises(ValueError, match="would not be in the folder"):
        keep_part(FilePart(name=name, data=b"", first=True, last=True), tmp_path / "agent")


def test_a_model_brings_the_modules_that_it_imports_and_nothing_else(tmp_path):
    texts = {
        "mine.py": "import os, torch\nimport layers\nfrom parts.blocks import Block\nfrom parts import head",
        "layers.py": "from more import depth",
        "more.py": "def broken(:",
        "unused.py": "",
        "parts/__init__.py": "",
        "parts/blocks.py": "from . import sizes\nfrom .deep.inner import x",
        "parts/sizes.py": "",
        "parts/head.py": "from ..outside import nothing",
        "parts/unused.py": "",
        "parts/deep/inner.py": "",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    places = files_by_place(tmp_path / "mine.py")
    assert {place: tmp_path / place for place in places} == places
    assert sorted(places) == [
        "layers.py", "mine.py", "more.py", "parts/__init__.py", "parts/blocks.py", "parts/deep/inner.py",
        "parts/head.py", "parts/sizes.py",
    ]  # fmt: skip
