"""System files that are no text."""

from pathlib import Path

import pytest

from paceline.errors import SpecError
from paceline.systems.files import _read_file


def test_a_system_file_that_is_no_text_is_refused_in_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "system.toml"
    path.write_bytes(b'name = "x\xc9"\n')
    with pytest.raises(SpecError, match=r"cannot be read: 'utf-8' codec .*; name a system or another file"):
        _read_file(path)
