"""A look at a model that writes where it should not, leaves processes behind or ends: an answer or a sentence."""

import os

import psutil
import pytest

from integration.conftest import wait_until
from paceline.errors import ModelError
from paceline.plan import complete
from paceline.runs import probe
from paceline.spec import ModelFile, RunSpec

pytestmark = pytest.mark.torch
pytest.importorskip("torch", reason="PyTorch is not installed")

MODEL = """
import os
import sys
from torch import nn
{before}
def build():
    {inside}
    return nn.Sequential(nn.Flatten(), nn.Linear(12, {outputs}))
"""


def spec_of(folder, before="", inside="pass", outputs="10"):
    """A run of a model with some lines of its own."""
    path = folder / "mine.py"
    path.write_text(MODEL.format(before=before, inside=inside, outputs=outputs))
    fields = {"strategy": "torch-single", "global_batch": 4, "steps": 1, "input_shape": (3, 2, 2), "classes": 10}
    return complete(RunSpec(model=ModelFile.from_text(str(path)), **fields))


@pytest.fixture
def look(tmp_path, probing_without_imports):
    """A look at a model, by a process that has PyTorch already."""
    return lambda *lines, **more: probe._probe_in_new_process(spec_of(tmp_path, *lines, **more))


HOSTILE = """
import subprocess
print("null", flush=True)
for number in range(1, 64):
    try: os.write(number, b"null\\n{}\\n")
    except OSError: pass
with open(PID, "w") as file:
    file.write(str(subprocess.Popen(["sleep", "1000"], close_fds=False).pid))
os.closerange(3, 64)
"""


def test_a_model_may_write_to_all_descriptors_close_them_and_leave_processes_that_hold_them(tmp_path):
    pid = tmp_path / "pid"
    # In a new process: one that is forked for a test talks over descriptors itself.
    code, reply, _ = probe._ask(spec_of(tmp_path, HOSTILE.replace("PID", repr(str(pid)))), tmp_path)
    assert code == 0
    assert reply.facts.parameters == 130
    # It was not waited for, and it was ended.
    number = int(pid.read_text())
    wait_until(lambda: not psutil.pid_exists(number) or psutil.Process(number).status() == "zombie", "its end")


@pytest.mark.parametrize("code", [0, 7])
def test_a_model_that_ends_its_process_is_told_in_a_sentence(look, code):
    with pytest.raises(ModelError, match=rf"mine.py:build ended its process \(exit code {code}\)"):
        look(inside=f"print('null', flush=True); os._exit({code})")


def test_the_structure_changes_with_what_the_model_is_and_not_with_how_often_it_is_looked_at(look, monkeypatch):
    outputs = "int(os.environ.get('OUTPUTS', 10))"
    first, again = look(outputs=outputs), look(outputs=outputs)
    assert first.structure == again.structure != ""
    monkeypatch.setitem(os.environ, "OUTPUTS", "12")
    assert look(outputs=outputs).structure != first.structure


def test_a_model_too_large_for_the_machine_is_looked_at_without_its_numbers(look):
    facts = look(outputs="30_000_000_000")
    assert facts.parameters == 13 * 30_000_000_000
    assert facts.model.parameters == facts.parameters
    assert facts.structure


def test_a_large_model_that_reads_its_numbers_is_refused_with_the_reason(look):
    with pytest.raises(ModelError, match=r"more than 1.07 GB of parameters, is looked at without its numbers") as told:
        look("import torch", "torch.zeros(1).item()", outputs="300_000_000")
    assert "leave loading weights out of the function" in str(told.value)
