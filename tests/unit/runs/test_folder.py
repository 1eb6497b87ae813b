"""The folder of a run: what a launcher and its processes leave there for each other."""

from pathlib import Path

import pytest

from paceline.contract.context import Process, Rendezvous
from paceline.runs.folder import LOG_TAIL_BYTES, RunFolder, run_folder
from paceline.runs.wire import RankError, WorkerOrders


def test_orders_arrive_as_they_were_given(tmp_path: Path, make_spec):
    process = Process(0, 1, "worker", 0, (0, 1))
    orders = WorkerOrders(spec=make_spec(), processes=(process,), schedule=((0, 4), (1, 4)), host="::1", port=7)
    RunFolder(tmp_path).write_orders(orders)
    assert RunFolder(tmp_path).read_orders() == orders


def test_a_report_is_there_or_absent(tmp_path: Path):
    error = RankError(kind="failed", type="RuntimeError", text="out of luck", failed_at=3)
    RunFolder(tmp_path).write_report(1, error)
    assert [RunFolder(tmp_path).read_report(rank) for rank in (0, 1)] == [None, error]


def test_of_a_log_the_end_is_read(tmp_path: Path):
    folder = RunFolder(tmp_path)
    folder.log(0).write_bytes(b"x" * LOG_TAIL_BYTES + b"the end \xff")
    assert folder.log_tail(0).endswith("the end \N{REPLACEMENT CHARACTER}")
    assert len(folder.log_tail(0)) == LOG_TAIL_BYTES


def test_processes_learn_what_the_others_published(tmp_path: Path):
    first, second = (Rendezvous("127.0.0.1", 0, None, RunFolder(tmp_path)) for _ in range(2))
    second.publish("port", 1, "17")
    first.publish("port", 0, "16")
    assert first.await_values("port", range(2), 1.0) == ["16", "17"]


def test_a_process_that_publishes_nothing_is_named(tmp_path: Path):
    meeting = Rendezvous("127.0.0.1", 0, None, RunFolder(tmp_path))
    with pytest.raises(TimeoutError, match="rank 3 did not publish its port within 0 s"):
        meeting.await_values("port", [3], 0.0)


def test_a_run_folder_goes_with_its_run():
    with run_folder() as folder:
        assert folder.path.is_dir()
    assert not folder.path.exists()
