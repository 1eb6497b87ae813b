"""What the tool lists and opens: the studies that come with it, and a finished report in the browser."""

from pathlib import Path

import pytest

from integration.conftest import Tool
from paceline.study import built_in_studies


def test_every_built_in_study_is_listed_with_its_scales(tool: Tool) -> None:
    ended = tool("run", "--list")
    assert ended.code == 0
    for name in built_in_studies():
        assert name in ended.out
    for scale in ("tiny", "small", "full"):
        assert scale in ended.out


def test_a_report_is_opened_in_the_browser_that_the_user_names(
    tool: Tool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    browser, seen = tmp_path / "browser", tmp_path / "seen.txt"
    browser.write_text(f'#!/bin/sh\necho "$1" > {seen}\n')
    browser.chmod(0o755)
    monkeypatch.setenv("BROWSER", f"{browser} %s")
    assert tool("run", "--strategy", "fake", "--workers", "1", "--steps", "4", "--global-batch", "100").code == 0
    assert tool("report", "--open").code == 0
    assert seen.read_text().strip() == (tool.folder / "paceline-report.html").resolve().as_uri()
