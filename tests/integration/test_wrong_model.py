"""A model file of the user's that does not do what is asked of it: refused before any run, with the line to mend."""

from collections.abc import Iterator

import pytest

from integration.conftest import SCRIPT, Tool
from interpreters import Interpreter

GOOD = """
from torch import nn

def build():
    return nn.Sequential(nn.Flatten(), nn.Linear(48, 10))
"""
# As PyTorch itself does in some backward passes of channels-last images.
CRASHES = """
import os
import torch
from torch import nn

class Crashing(nn.Sequential):
    def forward(self, x):
        if not x.is_contiguous():
            os.kill(os.getpid(), 11)
        return super().forward(x)

def build():
    return Crashing(nn.Flatten(), nn.Linear(48, 10))
"""
SHAPE = ("--input-shape", "3x4x4", "--classes", "10")
# What needs no framework to be seen.
AT_A_GLANCE = {
    "bad syntax": ("def build(:\n    pass\n", SHAPE, "is not valid Python: invalid syntax"),
    "no such function": (GOOD.replace("build", "make").replace("from torch import nn", "import torch.nn as nn"),
                         SHAPE, "mine.py has no function 'build'; choose from make"),
    "no data": (GOOD, (), "mine.py:build says nothing about its data; add a function data() to mine.py"),
    "bad shape": (GOOD, ("--input-shape", "3x0x4", "--classes", "10"), "'3x0x4' is not a shape"),
}  # fmt: skip
WHEN_BUILT = {
    "raises on import": (
        "import torch\nraise OSError('weights are missing')\ndef build():\n    pass\n",
        SHAPE,
        "fails with OSError: weights are missing (mine.py, line 2); mend it and run again",
    ),
    "imports what is absent": (
        "import absent_package\ndef build():\n    pass\n",
        SHAPE,
        "ModuleNotFoundError: No module named 'absent_package'",
    ),
    "raises when built": (
        "def build():\n    return 1 / 0\n",
        SHAPE,
        "mine.py:build fails with ZeroDivisionError: division by zero (mine.py, line 2)",
    ),
    "asks to exit": ("import sys\nsys.exit('enough')\ndef build():\n    pass\n", SHAPE, "SystemExit: enough"),
    "ends its process": ("import os\nos._exit(7)\ndef build():\n    pass\n", SHAPE, "ended its process (exit code 7)"),
    "crashes on channels-last images": (
        CRASHES,
        SHAPE,
        "makes its framework crash (signal 11) when images are channels-last, and not otherwise; use memory_format "
        "contiguous",
    ),
    "returns no module": (
        "def build():\n    return [1, 2]\n",
        SHAPE,
        "mine.py:build returned list, not a torch.nn.Module, a Keras model or a Flax module or a pair of functions "
        "(init, apply); return the model itself",
    ),
    "returns a part of a module of Flax": (
        "class State: __module__ = 'flax.nnx.statelib'\nclass Mine(State): pass\ndef build():\n    return Mine()\n",
        SHAPE,
        "return the module of Flax itself, NNX or Linen",
    ),
    "has nothing to train": (
        "from torch import nn\ndef build():\n    return nn.Flatten()\n",
        SHAPE,
        "without trainable parameters; there is nothing to train",
    ),
    "other shape": (
        GOOD, ("--input-shape", "3x5x5", "--classes", "10"), "mine.py:build does not take inputs of shape 3x5x5"
    ),
    "more classes": (
        GOOD, ("--input-shape", "3x4x4", "--classes", "12"), "does not fit its targets"
    ),
    "bytes where it takes floats": (
        GOOD + "\nimport numpy\ndef data():\n    a, b = numpy.zeros((8, 3, 4, 4), 'uint8'), numpy.zeros(8, int)\n"
        "    return a, b, a, b\n",
        (),
        "data() gives uint8, which reaches the model as it is: cast it in the model's forward, such as images.float()",
    ),
    "names that it does not take": (
        GOOD + "\nimport numpy\ndef data():\n    a = {'pixels': numpy.zeros((8, 48), 'float32')}\n"
        "    return a, numpy.zeros(8, int), a, numpy.zeros(8, int)\n",
        (),
        "mine.py:build does not take inputs of shape pixels 48 float32: TypeError: ",
    ),
    "a metric that fails": (
        GOOD + "\ndef metric(outputs, targets):\n    return outputs.logits\n",
        SHAPE,
        "metric() of mine.py:build fails with AttributeError: 'Tensor' object has no attribute 'logits' "
        "(mine.py, line 8)",
    ),
    "an optimizer that fails": (
        GOOD + "\ndef optimizer(parameters):\n    return torch.optim.SGD(parameters)\n",
        SHAPE,
        "optimizer() of mine.py:build fails with NameError: name 'torch' is not defined (mine.py, line 8)",
    ),
    "an optimizer that is none": (
        GOOD + "\ndef optimizer(parameters):\n    return 0.1\n",
        SHAPE,
        "optimizer(parameters) of mine.py:build returned float, not a torch.optim.Optimizer; return the optimizer",
    ),
    "an optimizer of other parameters": (
        GOOD + "\nimport torch\ndef optimizer(parameters):\n    return torch.optim.SGD(nn.Linear(1, 1).parameters())\n",
        SHAPE,
        "optimizer(parameters) of mine.py:build updates none of the model's parameters; make it of those that it is",
    ),
    "a loss that fails": (
        GOOD + "\ndef loss(outputs, targets):\n    return outputs.logits\n",
        SHAPE,
        "loss() of mine.py:build fails with AttributeError: 'Tensor' object has no attribute 'logits' (mine.py, line",
    ),
    "a loss that is no tensor": (
        GOOD + "\ndef loss(outputs, targets):\n    return outputs.mean().item()\n",
        SHAPE,
        "loss() of mine.py:build is float, from which no gradient can come; return a tensor",
    ),
    "a loss of each sample": (
        GOOD + "\ndef loss(outputs, targets):\n    return outputs.mean(1)\n",
        SHAPE,
        "loss() of mine.py:build has shape (2,); return one number, such as its mean",
    ),
    "a loss without a gradient": (
        GOOD + "\ndef loss(outputs, targets):\n    return outputs.detach().mean()\n",
        SHAPE,
        "loss() of mine.py:build has no gradient for any parameter: something between them and it cut it off",
    ),
    "outputs without logits": (
        GOOD.replace("return nn.Sequential(", "return Net(") + "\nclass Net(nn.Sequential):\n"
        "    def forward(self, x):\n        return {'scores': super().forward(x)}\n",
        SHAPE,
        "mine.py:build returns a dict of scores, in which there is neither a loss nor logits; return a tensor",
    ),
    "numbers as targets without a loss": (
        GOOD + "\nimport numpy\ndef data():\n    x, y = numpy.zeros((8, 48), 'float32'), numpy.zeros(8)\n"
        "    return x, y, x, y\n",
        (),
        "give a function loss(outputs, targets) in the file: cross-entropy, which is the usual one, takes classes",
    ),
    "a class below zero": (
        GOOD + "\nimport numpy\ndef data():\n    x, y = numpy.zeros((8, 48), 'float32'), numpy.arange(8) - 1\n"
        "    return x, y, x, y\n",
        (),
        "Target -1 is out of bounds; return an output for each class, with classes from 0 on, or give a function loss",
    ),
    "a model that works only a few times": (
        GOOD.replace("return nn.Sequential(", "return Net(") + "\nclass Net(nn.Sequential):\n    passes = 0\n"
        "    def forward(self, x):\n        self.passes += 1\n        assert self.passes < 4, 'worn out'\n"
        "        return super().forward(x)\n",
        SHAPE,
        "mine.py:build fails with AssertionError: worn out (mine.py, line 11); mend it and run again",
    ),
    "an update that fails": (
        GOOD + "\nimport torch\nclass Bad(torch.optim.SGD):\n    def step(self, closure=None):\n"
        "        raise ValueError('no step')\ndef optimizer(parameters):\n    return Bad(parameters, lr=0.1)\n",
        SHAPE,
        "the first update of mine.py:build fails with ValueError: no step (mine.py, line 10)",
    ),
    "test data of another shape": (
        GOOD + "\nimport numpy\ndef data():\n    y = numpy.zeros(8, int)\n    shape = (8, 3, 4, 4)\n"
        "    return numpy.zeros(shape, 'float32'), y, numpy.zeros((8, 3, 5, 5), 'float32'), y\n",
        (),
        "evaluating mine.py:build on its test data fails with RuntimeError: ",
    ),
    "a model that cannot be evaluated": (
        GOOD.replace("return nn.Sequential(", "return Net(") + "\nclass Net(nn.Sequential):\n"
        "    def forward(self, x):\n        assert self.training, 'only trains'\n        return super().forward(x)\n",
        SHAPE,
        "evaluating mine.py:build on its test data fails with AssertionError: only trains (mine.py, line 9)",
    ),
    "data of wrong form": (
        GOOD + "\ndef data():\n    return 1, 2\n", (), "data() of mine.py:build must return four arrays"
    ),
}  # fmt: skip


def assert_refused(tool: Tool, text: str, words: tuple[str, ...], sentence: str) -> None:
    tool.write("mine.py", text)
    ended = tool("run", "--model", "mine.py:build", "--steps", "2", "--global-batch", "8", "--strategy",
                 "torch-single", *words)  # fmt: skip
    assert ended.code == 2, ended.said
    assert ended.err.startswith("paceline: ")
    assert sentence in ended.said
    assert "Traceback" not in ended.err
    assert [name for name in tool.listing() if name != "__pycache__"] == ["mine.py"]


@pytest.mark.parametrize("case", AT_A_GLANCE)
def test_a_model_file_that_is_wrong_at_a_glance_is_refused(tool: Tool, case: str) -> None:
    assert_refused(tool, *AT_A_GLANCE[case])


@pytest.fixture
def looking_tool(tool: Tool, imported: Interpreter, interpreters: dict[str, Interpreter]) -> Iterator[Tool]:
    """The command line, which looks at a model in a process forked from one that has imported PyTorch."""
    tool.script = imported.command(SCRIPT, interpreters["torch"].python)
    yield tool
    imported.command(SCRIPT)


@pytest.mark.torch
@pytest.mark.parametrize("case", WHEN_BUILT)
def test_a_model_that_is_wrong_when_built_is_refused_before_any_run(looking_tool: Tool, case: str) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    assert_refused(looking_tool, *WHEN_BUILT[case])


@pytest.mark.torch
def test_a_wrong_model_is_refused_by_a_tool_that_imports_all_by_itself(tool: Tool) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    tool.script = SCRIPT
    assert_refused(tool, *WHEN_BUILT["other shape"])
