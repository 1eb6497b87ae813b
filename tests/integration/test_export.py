"""`paceline export` as users start it."""

import polars
import pytest

from integration.conftest import Tool


@pytest.fixture(scope="module")
def tool_with_runs(shared_tool: Tool) -> Tool:
    words = ("--strategy", "fake", "--workers", "1,2", "--steps", "4", "--global-batch", "100")
    assert shared_tool("run", *words).code == 0
    return shared_tool


@pytest.mark.parametrize("kind", ["csv", "parquet", "json", "tensorboard"])
def test_a_kind_is_written_where_nothing_was_said_and_the_place_is_printed(tool_with_runs: Tool, kind: str) -> None:
    ended = tool_with_runs("export", "--to", kind)
    place = "paceline-tensorboard" if kind == "tensorboard" else f"paceline.{kind}"
    assert ended.code == 0
    assert ended.out.splitlines()[0] == f"{kind}: {place}"
    assert (tool_with_runs.folder / place).exists()


def test_a_table_of_steps_has_every_step_of_every_rank(tool_with_runs: Tool) -> None:
    assert tool_with_runs("export", "--to", "csv", "--of", "steps", "--out", "out/steps.csv").code == 0
    assert polars.read_csv(tool_with_runs.folder / "out/steps.csv").height == 4 + 2 * 4


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--to", "xml"), "there is no export 'xml'; choose from csv, json, mlflow, parquet, tensorboard, wandb"),
        (("--to", "csv", "--of", "run"), "there is no table of results 'run'; did you mean 'runs'?"),
        (("--to", "json", "--of", "runs"), "--of runs chooses a table, and json holds every level at once"),
        (("--to", "csv", "--study", "other"), "study 'other' has no runs in paceline.db; there are command-line"),
        (("--to", "csv", "--db", "no.db"), "there is no results file no.db"),
    ],
)
def test_wrong_input_is_one_sentence_and_exit_code_2(tool_with_runs: Tool, words: tuple[str, ...], said: str) -> None:
    ended = tool_with_runs("export", *words)
    assert ended.code == 2
    assert said in ended.said
