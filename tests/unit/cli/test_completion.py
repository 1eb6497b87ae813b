"""Names that shells complete, found without a framework (a fixture of this folder holds that)."""

from pathlib import Path

import pytest

from paceline.cli.shell import completion
from paceline.cli.shell.completion import (
    command_to_complete,
    dataset_names,
    network_names,
    objective_names,
    stored_study_names,
    strategies_with_fields,
    strategy_names,
    study_names,
    system_names,
    workload_names,
)
from paceline.store import DEFAULT_PATH, Store


def test_the_last_of_several_strategies_is_completed_and_none_twice() -> None:
    assert strategy_names("torch-d") == ["torch-ddp", "torch-downpour", "torch-dp"]
    assert strategy_names("torch-ddp,torch-dd") == []
    assert strategy_names("fake,torch-dd") == ["fake,torch-ddp"]


def test_a_strategy_with_fields_is_left_to_the_user() -> None:
    assert strategies_with_fields("torch-dd") == ["torch-ddp"]
    assert strategies_with_fields("torch-ddp:work") == []


def test_workloads_data_sets_networks_and_objectives_are_completed() -> None:
    assert workload_names("mnist-s") == ["mnist-small"]
    assert dataset_names("mnist-5") == ["mnist-5k"]
    assert network_names("10") == ["10g", "100g"]
    assert objective_names("en") == ["energy"]


def test_a_system_keeps_the_number_in_front_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "h100-mine.toml").touch()
    assert system_names("8xh100-p") == ["8xh100-pcie"]
    assert set(system_names("h100-")) >= {"h100-nvlink", "h100-mine.toml"}


def test_a_study_is_a_built_in_one_or_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("quicker.toml", "quit.py", "quiet.txt"):
        (tmp_path / name).touch()
    assert study_names("qui") == ["quick", "quicker.toml", "quit.py"]


def test_stored_studies_are_completed_where_there_are_some(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert stored_study_names("") == []
    with Store.open(DEFAULT_PATH) as store:
        store.add_to_study("mine", ["key"])
    assert stored_study_names("m") == ["mine"]


@pytest.mark.parametrize(
    ("environment", "command"),
    [
        ({}, None),
        ({"COMP_WORDS": "paceline run --str"}, None),
        ({completion.COMPLETE: "complete_bash", "COMP_WORDS": "paceline run --str"}, "run"),
        ({completion.COMPLETE: "complete_zsh", "_TYPER_COMPLETE_ARGS": "paceline show "}, "show"),
        ({completion.COMPLETE: "complete_bash", "COMP_WORDS": "paceline"}, None),
    ],
)
def test_the_command_to_complete_is_the_second_word(
    environment: dict[str, str], command: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (completion.COMPLETE, "COMP_WORDS", "_TYPER_COMPLETE_ARGS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert command_to_complete() == command
