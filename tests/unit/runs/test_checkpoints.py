"""The saver: when it saves, what it leaves out of the time of steps, and that a wrong load is found out."""

from pathlib import Path
from typing import Any

import pytest

from paceline.runs.folder import RunFolder, checkpoint_folder, process_space
from paceline.runs.measure import train
from paceline.runs.pauses.checkpoints import Saver
from paceline.spec import RunSpec

STEP, SAVE, LOAD = 10_000_000, 70_000_000, 30_000_000


class Clockwork:
    """A job whose steps, saves and loads take exact times on a clock of its own."""

    stride = 1

    def __init__(self, *, forgets: bool = False) -> None:
        self.now, self.state, self.saved, self.forgets = 0, 0, 0, forgets
        self.aligned = 0

    def clock(self) -> int:
        return self.now

    def align(self) -> None:
        self.aligned += 1

    def start_epoch(self, epoch: int) -> None: ...

    def step(self, first: int, count: int) -> None:
        self.now += STEP * count
        self.state += count

    def wait(self) -> None: ...

    def losses(self) -> list[float]:
        return []

    def evaluate(self) -> None: ...

    def details(self) -> dict[str, Any]:
        return {}

    def checkpoint(self) -> "Clockwork":
        return self

    def save(self, _folder: Path) -> int:
        self.now += SAVE
        self.saved = self.state
        return 123

    def load(self, _folder: Path) -> None:
        self.now += LOAD
        self.state = self.state if self.forgets else self.saved

    def digest(self) -> str:
        return str(self.state)

    def erase(self) -> None:
        self.state = -1


def test_saving_is_in_no_epoch_and_is_told_apart(tmp_path: Path) -> None:
    job: Any = Clockwork()
    measured = train(job, [(0, 5), (1, 5)], 8, lambda _event: None, Saver(job, 4, tmp_path))
    for epoch in measured.epochs:
        steps = [after - before for before, after in zip(epoch.stamps, epoch.stamps[1:], strict=False)]
        assert steps == [STEP] * 5
        assert epoch.ended - epoch.stamps[0] == 5 * STEP
        assert epoch.paused == SAVE
    assert measured.checkpoint is not None
    # After steps 4 and 8 of the run, whatever epoch they are in, and at the end.
    assert [save.step for save in measured.checkpoint.saves] == [4, 8, 10]
    assert {save.seconds for save in measured.checkpoint.saves} == {SAVE / 1e9}
    assert measured.checkpoint.load_seconds == LOAD / 1e9
    assert job.state == 10


def test_several_steps_in_a_call_save_once(tmp_path: Path) -> None:
    job: Any = Clockwork()
    saver = Saver(job, 4, tmp_path)
    assert [saver.after_steps(count) for count in (3, 3, 1, 9)] == [0, SAVE, 0, SAVE]


def test_a_load_that_does_nothing_is_found_out(tmp_path: Path) -> None:
    job: Any = Clockwork(forgets=True)
    with pytest.raises(RuntimeError, match="the checkpoint that was loaded is not what was saved"):
        train(job, [(0, 2)], 8, lambda _event: None, Saver(job, 1, tmp_path))


def test_a_folder_of_the_users_gets_a_folder_of_the_runs_that_is_removed(tmp_path: Path) -> None:
    target = tmp_path / "disk" / "saves"
    spec = RunSpec(global_batch=8, steps=4, checkpoint_every=2, checkpoint_to=str(target))
    orphan = target / f"paceline-checkpoints-999999999-{process_space()}-x"
    orphan.mkdir(parents=True)
    # Of another machine that saves on the same disk.
    (target / "paceline-checkpoints-999999999-00000000-x").mkdir()
    (target / "the users own").touch()
    with checkpoint_folder(spec, RunFolder(tmp_path)) as folder:
        assert folder is not None and folder.parent == target
        (folder / "rank-0.pt").write_bytes(b"x")
    assert {path.name for path in target.iterdir()} == {"the users own", "paceline-checkpoints-999999999-00000000-x"}


def test_runs_without_checkpoints_have_no_folder_for_them(tmp_path: Path) -> None:
    with checkpoint_folder(RunSpec(global_batch=8, steps=4), RunFolder(tmp_path)) as folder:
        assert folder is None
