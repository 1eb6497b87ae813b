"""`paceline serve` as users start it: a study through its form, stopped, and what is left when the server goes."""

import json
import os
import re
import signal
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from integration.conftest import PATIENCE_SECONDS, Started, Tool, wait_until

# A run that takes its time for real, so that there is something to stop.
LONG = {"strategy": "fake", "steps": "2000", "workers": "1", "knob": "real_time=true\nstep_ms=50"}
SHORT = {"strategy": "fake", "steps": "4", "workers": "1,2", "global_batch": "100"}


@dataclass
class Server:
    """A running server and its address."""

    tool: Tool
    started: Started
    address: str
    # With the cookie that the printed link gave.
    opener: urllib.request.OpenerDirector

    def get(self, path: str = "/") -> str:
        with self.opener.open(self.address + path, timeout=PATIENCE_SECONDS) as answer:
            return str(answer.read().decode())

    def post(self, path: str, fields: dict[str, str]) -> str:
        found = re.search(r'data-secret="([^"]+)"', self.get())
        assert found is not None
        body = urllib.parse.urlencode({"secret": found[1], **fields}).encode()
        with self.opener.open(self.address + path, body, timeout=PATIENCE_SECONDS) as answer:
            return str(answer.read().decode())

    def jobs(self) -> list[dict[str, object]]:
        """What the stream of events says first."""
        with self.opener.open(self.address + "/events", timeout=PATIENCE_SECONDS) as stream:
            line = next(line for line in stream if line.startswith(b"data: "))
        found: list[dict[str, object]] = json.loads(line.removeprefix(b"data: "))["jobs"]
        return found

    def wait_for(self, state: str, number: int = 1) -> None:
        wait_until(lambda: self.jobs()[number - 1]["state"] == state, f"study {number} is {state}: {self.jobs()}")


@pytest.fixture
def server(tool: Tool) -> Iterator[Server]:
    yield from _open_server(tool)


@pytest.fixture(scope="module")
def shared_server(shared_tool: Tool) -> Iterator[Server]:
    """For tests that leave it as it is."""
    yield from _open_server(shared_tool)


def _open_server(tool: Tool) -> Iterator[Server]:
    started = tool.start("serve", "--port", "0")
    address, token = _printed_link(started)
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    with opener.open(f"{address}/?token={token}", timeout=PATIENCE_SECONDS) as answer:
        assert answer.url == f"{address}/"
    yield Server(tool, started, address, opener)
    if started.process.poll() is None:
        started.process.terminate()
        started.process.wait(timeout=PATIENCE_SECONDS)


def _printed_link(started: Started) -> tuple[str, str]:
    """The address that was printed, and the token in it."""
    wait_until(lambda: "token=" in started.out.read_text() or started.process.poll() is not None, "an address")
    found = re.search(r"(http://[^/]+:\d+)/\?token=(\S{20,})", started.out.read_text())
    assert found is not None
    return found[1], found[2]


def test_a_study_of_the_form_runs_as_the_command_would_and_its_results_appear(server: Server) -> None:
    server.post("/start", SHORT)
    server.wait_for("done")
    (job,) = server.jobs()
    assert job["command"] == "paceline run --strategy=fake --workers=1,2 --global-batch=100 --steps=4"
    assert (job["finished"], job["total"], len(server.tool.records())) == (2, 2, 2)
    assert "Fastest here: fake with 2 workers" in server.get("/results")


def test_wrong_input_is_told_with_the_words_of_the_terminal(shared_server: Server) -> None:
    shared_server.post("/start", {"strategy": "fake", "workers": "4", "global_batch": "30"})
    shared_server.wait_for("refused")
    (job,) = shared_server.jobs()
    assert "global_batch 30 does not divide over 4 workers; use a multiple of 4" in str(job["messages"])
    assert job["form"] == "/start?strategy=fake&workers=4&global_batch=30"


def test_a_plan_is_shown_without_running_anything(shared_server: Server) -> None:
    said = shared_server.post("/start/plan", SHORT)
    assert "2 runs to make" in said
    assert shared_server.tool.listing() == []
    assert "2 runs to make" in shared_server.post("/start/plan", {**SHORT, "measure": "1"})
    assert "did you mean &#39;fake&#39;?" in shared_server.post("/start/plan", {"strategy": "fkae"})


def test_studies_wait_for_each_other_and_can_be_stopped_running_or_waiting(server: Server) -> None:
    for _ in range(2):
        server.post("/start", LONG)
    wait_until(server.tool.running_workers, "a worker")
    assert [job["state"] for job in server.jobs()] == ["running", "waiting"]
    assert "a study is running, and a plan would disturb its times" in server.post("/start/plan", SHORT)
    server.post("/stop/2", {})
    server.post("/stop/1", {})
    server.wait_for("stopped", 1)
    server.wait_for("stopped", 2)
    assert server.tool.running_workers() == []
    assert [str(record.status) for record in server.tool.records()] == ["interrupted"]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_ending_the_server_stops_its_study_and_stores_that(server: Server, how: signal.Signals) -> None:
    server.post("/start", LONG)
    wait_until(server.tool.running_workers, "a worker")
    server.started.process.send_signal(how)
    assert server.started.end().code == 0
    assert server.tool.running_workers() == []
    assert [str(record.status) for record in server.tool.records()] == ["interrupted"]


def test_a_server_that_is_killed_leaves_no_worker_behind(server: Server) -> None:
    server.post("/start", LONG)
    wait_until(server.tool.running_workers, "a worker")
    os.kill(server.started.process.pid, signal.SIGKILL)
    wait_until(lambda: not server.tool.running_workers() and not server.tool.left_folders(), "the end of its study")


def test_an_open_stream_does_not_keep_the_server_from_ending(server: Server) -> None:
    with server.opener.open(server.address + "/events", timeout=PATIENCE_SECONDS) as stream:
        stream.readline()
        server.started.process.send_signal(signal.SIGINT)
        ended = server.started.end()
    assert (ended.code, "ended" in ended.err, "Traceback" in ended.err) == (0, True, False)


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_whoever_reaches_the_port_without_the_token_of_the_link_gets_a_sentence(tool: Tool, host: str) -> None:
    started = tool.start("serve", "--host", host, "--port", "0")
    address, _ = _printed_link(started)
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"http://127.0.0.1:{address.rsplit(':')[-1]}/start", timeout=PATIENCE_SECONDS)
    with refused.value as answer:
        assert answer.code == 403
        assert "open the whole link that paceline serve printed" in answer.read().decode()
    started.process.send_signal(signal.SIGINT)
    assert started.end().code == 0


def test_a_port_that_is_taken_is_said(shared_server: Server) -> None:
    port = shared_server.address.rsplit(":", 1)[1]
    ended = shared_server.tool("serve", "--port", port)
    assert ended.code == 2
    assert f"127.0.0.1:{port} cannot be listened on: Address already in use; choose another" in ended.said


def test_a_file_that_is_no_results_file_is_refused_at_once(tool: Tool) -> None:
    tool.write("other.db", "something else entirely")
    ended = tool("serve", "--db", "other.db", "--port", "0")
    assert ended.code == 2
    assert "is not a sound results file" in ended.said


def test_progress_for_programs_is_one_object_per_line(tool: Tool) -> None:
    ended = tool("run", "--strategy", "fake", "--steps", "4", "--workers", "2", "--progress", "json")
    events = [json.loads(line) for line in ended.err.splitlines()]
    often = ("progress", "losses", "use", "log")
    assert [event["event"] for event in events if event["event"] not in often] == ["planned", "started", "ended"]
    assert next(event for event in events if event["event"] == "losses")["steps"] == 4
    assert events[-1]["status"] == "ok"
    wrong = tool("run", "--strategy", "fake", "--progress", "xml")
    assert wrong.code == 2
    assert "there is no form of progress 'xml'; choose from bar, json" in wrong.said
