"""Rows of a log as runs: columns, units, layouts, and what is said of rows that are wrong."""

from pathlib import Path

import pytest

from paceline.errors import SpecError
from paceline.predict.logged import Log, read_log

COLUMNS = "source,gpus,global_batch,micro_batch,width,heads,depth,sequence,tensor,data,pipeline,step_ms"
ROW = "cluster,8,16,1,1024,16,12,512,2,2,2,200.5"


def log_of(folder: Path, *rows: str, columns: str = COLUMNS, **assumed: str) -> Log:
    path = folder / "runs.csv"
    path.write_text("\n".join((columns, *rows)) + "\n")
    return read_log(path, assumed)


def test_a_row_becomes_the_run_that_it_was(tmp_path: Path) -> None:
    (run,) = log_of(tmp_path, ROW).runs
    spec = run.spec
    assert (run.name, run.source, run.step_seconds) == ("row 2", "cluster", pytest.approx(0.2005))
    assert spec.layout is not None and spec.layout.text == "replicate=2,tensor=2,pipeline=2"
    assert spec.knobs == {"balance": "blocks", "microbatches": 8}
    assert (spec.recompute, spec.precision, spec.reduction, run.microbatch) == ("full", "bf16", "bf16", 1)
    blocks = [layer for layer in run.model.layers if layer.heads]
    assert len(blocks) == 12 and blocks[0].output_elements == 512 * 1024


def test_without_a_pipeline_micro_batches_are_accumulated(tmp_path: Path) -> None:
    (run,) = log_of(tmp_path, "a,8,16,2,1024,16,12,512,2,4,1,200").runs
    assert (run.spec.accumulation, run.spec.knobs, run.microbatch) == (2, {}, 2)


def test_seconds_copies_and_optional_columns_are_read(tmp_path: Path) -> None:
    columns = (
        "gpus,global_batch,micro_batch,width,heads,depth,sequence,step_seconds,workload,kv_heads,ffn,recompute,note"
    )
    (run,) = log_of(tmp_path, "4,16,1,1024,16,4,512,1.5,llama,4,2048,none,fast", columns=columns).runs
    assert run.step_seconds == 1.5
    assert run.spec.layout is not None and run.spec.layout.replicate == 4
    assert run.spec.recompute == "none"
    block = next(layer for layer in run.model.layers if layer.heads)
    assert dict(block.arrays)["up_kernel"] == (1024, 2048) and block.kv_heads == 4


def test_what_rows_do_not_say_can_be_assumed(tmp_path: Path) -> None:
    (run,) = log_of(tmp_path, ROW, recompute="none", vocabulary="1000").runs
    assert run.spec.recompute == "none" and run.spec.options["vocabulary"] == 1000


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("gpus,width,step_ms", "lacks heads, depth, sequence, global_batch, micro_batch"),
        (COLUMNS.replace("step_ms", "time"), "lacks step_ms (or step_seconds)"),
        (COLUMNS + ",recompte", "column 'recompte' that is not known; did you mean 'recompute'?"),
    ],
)
def test_missing_and_misspelt_columns_are_named(tmp_path: Path, columns: str, message: str) -> None:
    with pytest.raises(SpecError) as error:
        log_of(tmp_path, ROW, columns=columns)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("a,8,16,1,1024,16,12,512,2,2,4,200", "layout replicate=2,tensor=2,pipeline=4 is of 16 GPUs and gpus says 8"),
        ("a,8,17,1,1024,16,12,512,2,2,2,200", "global_batch 17 is no whole number of micro-batches of 1 on 2 copies"),
        ("a,8,16,1,1024,15,12,512,2,2,2,200", "heads 15 cannot be divided by 2"),
        ("a,8,16,1,1024,16,13,512,2,2,2,200", "depth 13 cannot be divided into 2 equal stages"),
        ("a,8,16,1,1024,16,12,512,2,2,2,fast", "step_ms must be a number of milliseconds"),
        ("a,8,16,1,1024,16,12,512,2,2,2,0", "step_seconds 0.0 is out of range; it must be more than 0"),
        ("a,8,16,1,wide,16,12,512,2,2,2,200", "width 'wide' is not usable"),
    ],
)
def test_a_wrong_row_is_left_out_with_its_number_and_reason(tmp_path: Path, row: str, reason: str) -> None:
    log = log_of(tmp_path, ROW, row)
    assert [run.name for run in log.runs] == ["row 2"]
    assert reason in log.refused["row 3"]


def test_a_file_without_a_usable_row_or_that_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"has no run that can be used.*row 2"):
        log_of(tmp_path, ROW.replace("200.5", "-1"))
    with pytest.raises(SpecError, match=r"absent.csv cannot be read"):
        read_log(tmp_path / "absent.csv")
    with pytest.raises(SpecError, match="'depth' cannot be assumed for all rows"):
        log_of(tmp_path, ROW, depth="2")
