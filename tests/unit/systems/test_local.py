"""This machine, found by looking and without importing any framework."""

import json
import os
import subprocess
import sys

import pytest

from paceline.systems import local_system
from paceline.systems.local import FRAMEWORKS, framework_version

LOOK = """
import json, sys
from paceline.systems import local_system
system = local_system()
print(json.dumps({"cores": system.cores, "imported": sorted({"torch", "tensorflow", "jax"} & set(sys.modules))}))
"""


def test_the_machine_has_a_processor_cores_and_memory():
    system = local_system()
    assert system.cpu
    assert system.memory_bytes > 0
    assert system.cores == tuple(sorted(os.sched_getaffinity(0)))


def test_the_machine_is_looked_at_once():
    assert local_system() is local_system()


def test_cores_are_those_that_the_process_may_use_and_no_framework_is_imported(child_environment):
    core = min(os.sched_getaffinity(0))
    looked = subprocess.run(
        [sys.executable, "-c", f"import os; os.sched_setaffinity(0, [{core}])\n{LOOK}"],
        env=child_environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(looked.stdout) == {"cores": [core], "imported": []}


def test_a_framework_that_is_not_installed_has_no_version():
    assert framework_version("no_such_framework_anywhere") is None


def test_an_installed_package_has_its_version():
    assert framework_version("pytest") == pytest.__version__


def test_a_package_that_no_distribution_provides_has_an_unknown_version(tmp_path, monkeypatch):
    (tmp_path / "homemade_framework.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    assert framework_version("homemade_framework") == "unknown"


def test_only_installed_frameworks_are_listed_each_with_its_version():
    assert local_system().frameworks == {
        name: framework_version(name) for name in FRAMEWORKS if framework_version(name)
    }
