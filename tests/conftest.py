"""What all tests share: programs that XLA compiled once, frameworks imported once, and the order of files."""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from interpreters import Interpreter
from paceline.runs import probe
from paceline.runs.starters import ForkServers, fork_servers
from paceline.spec import RunSpec
from paceline.strategies import strategy
from soak_cases import is_soak, stale

# Where JAX keeps what XLA compiled: most of a short run is compiling the same few programs again.
COMPILED = {
    "JAX_COMPILATION_CACHE_DIR": "",
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}
MADE_HERE = pytest.StashKey[str]()
# Where processes that run tests leave, for the one that hands them out, which tests belong together.
GROUPS = "PACELINE_TEST_GROUPS"
# The longest first, so that none of them is left over at the end for one process alone.
LONGEST = (
    "test_loss_follows_one_worker.py", "test_emitted_scripts.py", "test_torch_mesh.py", "test_jax_placement.py",
    "test_footprints_are_true.py", "test_torch_runs.py", "test_torch_data_parallel_knobs.py", "test_own_model.py",
    "test_torch_mesh_bytes.py", "test_web_app.py", "test_serve.py", "test_report_in_browser.py", "test_statuses.py",
    "test_traced_steps.py", "test_wrong_input.py", "test_going_on.py", "test_torch_servers.py",
    "test_torch_model_parallel.py", "test_interrupts.py",
)  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    """One folder for all processes of a session: those that run tests beside this one inherit its variables."""
    if GROUPS not in os.environ:
        config.stash[MADE_HERE] = tempfile.mkdtemp(prefix="paceline-tests-")
        os.environ[GROUPS] = str(Path(config.stash[MADE_HERE]) / "groups.json")
        if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
            os.environ.update({**COMPILED, "JAX_COMPILATION_CACHE_DIR": config.stash[MADE_HERE]})


def pytest_unconfigure(config: pytest.Config) -> None:
    """Compiled programs are of this session only."""
    if MADE_HERE in config.stash:
        shutil.rmtree(config.stash[MADE_HERE], ignore_errors=True)
        del os.environ[GROUPS]
        if os.environ["JAX_COMPILATION_CACHE_DIR"] == config.stash[MADE_HERE]:
            for name in COMPILED:
                del os.environ[name]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks what `soak_cases.py` names, and puts files in the order in which processes are to take them up."""
    tests: dict[str, list[str]] = {}
    for item in items:
        file = f"{item.path.parent.name}/{item.path.name}"
        tests.setdefault(file, []).append(item.name)
        if is_soak(file, item.name):
            item.add_marker(pytest.mark.soak)
    forgotten = [] if any("::" in argument for argument in config.args) else stale(tests)
    if forgotten:
        raise pytest.UsageError(f"lines of tests/soak_cases.py that match no test: {', '.join(forgotten)}")
    items.sort(key=_place)
    if hasattr(config, "workerinput"):
        _leave_groups(items)


def _leave_groups(items: list[pytest.Item]) -> None:
    """Says which tests one process runs after each other; every process says the same."""
    groups = Path(os.environ[GROUPS])
    written = groups.with_name(f"groups-{os.getpid()}.json")
    written.write_text(json.dumps({item.nodeid: _group(item) for item in items}))
    written.replace(groups)


def _group(item: pytest.Item) -> str:
    """Contract tests of one of these frameworks belong together, as it is imported once; all others file by file.

    Tests of a file share what it set up.
    """
    frameworks = ("tensorflow", "jax") if item.path.parent.name == "contract" else ()
    return next((name for name in frameworks if item.get_closest_marker(name)), str(item.path))


class GroupScheduling(LoadScopeScheduling):
    """Hands out whole groups. xdist's own way to group tests has no effect from pytest 9.2 on."""

    def schedule(self) -> None:
        self._groups: dict[str, str] = json.loads(Path(os.environ[GROUPS]).read_text())
        super().schedule()

    def _split_scope(self, nodeid: str) -> str:
        return self._groups[nodeid]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> GroupScheduling:
    return GroupScheduling(config, log)


def _place(item: pytest.Item) -> tuple[bool, int]:
    """TensorFlow's first, which take longest in all; then files by how long they take."""
    name = item.path.name
    alone = item.get_closest_marker("tensorflow") is None
    return alone, LONGEST.index(name) if name in LONGEST else len(LONGEST)


@pytest.fixture(scope="session")
def forking() -> Iterator[ForkServers]:
    """Processes with their framework imported, for tests of many short runs."""
    with fork_servers() as started:
        yield started


@pytest.fixture(scope="session")
def interpreters() -> Iterator[dict[str, Interpreter]]:
    """By framework: a Python that has it imported."""
    opened = Interpreters()
    yield opened
    for interpreter in opened.values():
        interpreter.close()


class Interpreters(dict[str, Interpreter]):
    """Each is started when first asked for."""

    MODULES = {
        "torch": (
            "torch", "torch.distributed.fsdp", "torch.distributed.optim", "torch.distributed.pipelining",
            "torch.distributed.tensor.parallel", "torch.distributed.checkpoint.state_dict",
        ),
        "tensorflow": ("tensorflow", "keras"),
        "jax": ("jax", "jax.numpy", "keras"),
    }  # fmt: skip

    def __missing__(self, framework: str) -> Interpreter:
        environment = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        environment["KERAS_BACKEND"] = "jax" if framework == "jax" else "tensorflow"
        self[framework] = Interpreter(*self.MODULES[framework], environment=environment)
        return self[framework]


@pytest.fixture(scope="session")
def probing_without_imports(interpreters: dict[str, Interpreter]) -> Iterator[None]:
    """Looks at models of users are taken in processes forked from an interpreter that has the framework."""
    ask = probe._probe_in_new_process

    def forked(spec: RunSpec) -> object:
        python = interpreters[strategy(spec.strategy).framework or "torch"].python
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(probe, "sys", SimpleNamespace(executable=str(python)))
            return ask(spec)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(probe, "_probe_in_new_process", forked)
        yield
