"""Steps of a script that says nothing: PyTorch's optimizers are observed from the moment that they are imported."""

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from paceline.callbacks.steps import StepLog

MODULE = "torch.optim.optimizer"


class OptimizerSteps:
    """Counts a step whenever the leading optimizer makes one.

    Several optimizers may take turns, as in adversarial training or where one wraps another: the first one leads, so
    that a turn of all counts once. One that steps twice in a row takes the lead, as after a change of optimizers.
    """

    def __init__(self, log: StepLog) -> None:
        self._log = log
        self._leader = self._last = 0

    def after_step(self, optimizer: object, _arguments: Any, _options: Any) -> None:
        """Notes a step; the first of all has no beginning and begins the epoch."""
        number = id(optimizer)
        leads = not self._leader or number in (self._leader, self._last)
        self._last = number
        if not leads:
            self._log.followed_steps += 1
            return
        self._leader = number
        self._log.optimizer_steps += 1
        if "optimizer" in self._log.epochs:
            self._log.end_step("optimizer")
        else:
            self._log.begin_epoch("optimizer")


class OptimizerFinder(MetaPathFinder):
    """Stands in the way of one import of PyTorch, to register a hook right after it."""

    def __init__(self, log: StepLog) -> None:
        self._steps = OptimizerSteps(log)

    def find_spec(
        self, fullname: str, _path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module as others find it, with a loader that registers the hook; other modules are left alone."""
        if fullname != MODULE:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _HookingLoader(spec.loader, self._steps)
        return spec


class _HookingLoader(Loader):
    """Loads a module as another loader does, and registers the hook in it."""

    def __init__(self, loader: Loader, steps: OptimizerSteps) -> None:
        self._loader, self._steps = loader, steps

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        module.register_optimizer_step_post_hook(self._steps.after_step)


def observe_optimizers(log: StepLog) -> None:
    """Notes every step of PyTorch's optimizers in this process, now or once the script imports PyTorch."""
    module = sys.modules.get(MODULE)
    if module is None:
        sys.meta_path.insert(0, OptimizerFinder(log))
    else:
        module.register_optimizer_step_post_hook(OptimizerSteps(log).after_step)
