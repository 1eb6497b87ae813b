"""Steps of a script that says nothing: PyTorch's optimizers are observed from the moment that they are imported."""

import sys
from collections.abc import Callable, Sequence
from functools import wraps
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from paceline.callbacks.steps import StepLog

OPTIMIZERS, SCALERS = "torch.optim.optimizer", "torch.amp.grad_scaler"
# What is done with a module once it is there.
Hooking = Callable[[Any], None]


class OptimizerSteps:
    """Counts a step whenever the leading optimizer makes one.

    Several optimizers may take turns, as in adversarial training or where one wraps another: the first one leads, so
    that a turn of all counts once. One that steps twice in a row takes the lead, as after a change of optimizers.
    """

    def __init__(self, log: StepLog) -> None:
        self._log = log
        self._leader = self._last = self._calls = 0

    def after_step(self, optimizer: object, _arguments: Any, _options: Any) -> None:
        """Notes a step; the first of all has no beginning and begins the epoch."""
        number = id(optimizer)
        self._calls += 1
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

    def count_skipped(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """`GradScaler.step`, which counts also where it leaves the optimizer out because gradients overflowed.

        The samples of such a step were trained on, and a script that counts its batches counts them too.
        """

        @wraps(step)
        def scaled_step(scaler: Any, optimizer: Any, *arguments: Any, **named: Any) -> Any:
            before = self._calls
            value = step(scaler, optimizer, *arguments, **named)
            if self._calls == before and scaler.is_enabled():
                self._log.skipped_steps += 1
                self.after_step(optimizer, arguments, named)
            return value

        return scaled_step

    @property
    def hookings(self) -> dict[str, Hooking]:
        """What observes steps, by the module that it is put into."""

        def hook_optimizers(module: Any) -> None:
            module.register_optimizer_step_post_hook(self.after_step)

        def hook_scalers(module: Any) -> None:
            module.GradScaler.step = self.count_skipped(module.GradScaler.step)

        return {OPTIMIZERS: hook_optimizers, SCALERS: hook_scalers}


class ModuleFinder(MetaPathFinder):
    """Stands in the way of the first import of some modules, to put something into each right after it."""

    def __init__(self, hookings: dict[str, Hooking]) -> None:
        self._hookings = dict(hookings)

    def find_spec(
        self, fullname: str, _path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module as others find it, with a loader that hooks it; other modules are left alone."""
        hooking = self._hookings.pop(fullname, None)
        if hooking is None:
            return None
        if not self._hookings:
            sys.meta_path.remove(self)
        spec = find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _HookingLoader(spec.loader, hooking)
        return spec


class _HookingLoader(Loader):
    """Loads a module as another loader does, and hooks it."""

    def __init__(self, loader: Loader, hooking: Hooking) -> None:
        self._loader, self._hooking = loader, hooking

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        self._hooking(module)


def observe_optimizers(log: StepLog) -> None:
    """Notes every step of PyTorch's optimizers in this process, now or once the script imports PyTorch."""
    missing = dict[str, Hooking]()
    for name, hooking in OptimizerSteps(log).hookings.items():
        if name in sys.modules:
            hooking(sys.modules[name])
        else:
            missing[name] = hooking
    if missing:
        sys.meta_path.insert(0, ModuleFinder(missing))
