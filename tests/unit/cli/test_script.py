"""`paceline script` with options as users give them."""

from pathlib import Path

import pytest

from paceline.cli.script import script
from paceline.errors import SpecError, UserError


def test_it_prints_the_script(capsys: pytest.CaptureFixture[str]) -> None:
    script(strategy="jax-data", workers=2, optimizer=["name=sgd", "lr=0.5"])
    printed = capsys.readouterr().out
    assert printed.startswith('"""Trains mnist-small on mnist-5k with jax-data.\n')
    assert "LEARNING_RATE = 0.5" in printed


def test_it_writes_the_script_and_its_docstring_names_the_file(tmp_path: Path) -> None:
    script(strategy="torch-ddp", workers=4, out=tmp_path / "mine.py")
    assert "torchrun --standalone --nproc-per-node 4 mine.py" in (tmp_path / "mine.py").read_text()


def test_the_folder_of_mnist_is_the_one_that_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PACELINE_DATA", "")
    for part in ("train", "t10k"):
        for kind in ("images-idx3", "labels-idx1"):
            (tmp_path / f"{part}-{kind}-ubyte.gz").touch()
    script(strategy="torch-single", dataset="mnist", data_dir=tmp_path)
    assert str(tmp_path) in capsys.readouterr().out


def test_a_setting_with_several_values_is_refused() -> None:
    with pytest.raises(SpecError) as caught:
        script(strategy="torch-ddp", knob=["bucket_mb=1,25"])
    assert str(caught.value) == "--knob bucket_mb has 2 values and a script is for one run; give one of them"


def test_a_place_that_cannot_be_written_to_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        script(strategy="torch-ddp", workers=2, out=tmp_path)
    assert str(caught.value) == (
        f"the script cannot be written to {tmp_path}: Is a directory; choose another place with --out"
    )


def test_a_layout_says_how_many_workers_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    script(strategy="torch-mesh", workload="transformer", layout="shard=2,tensor=2", global_batch=16, clip=1.0)
    printed = capsys.readouterr().out
    assert "--nproc-per-node 4 train.py" in printed and "CLIP = 1.0" in printed


def test_a_layout_of_other_workers_is_refused() -> None:
    with pytest.raises(SpecError) as caught:
        script(strategy="torch-mesh", workload="transformer", layout="shard=2,tensor=2", workers=8)
    assert "layout shard=2,tensor=2 is of 4 workers and 8 were asked for" in str(caught.value)
