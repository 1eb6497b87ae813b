"""Training scripts for a run, in the framework's own words and without Paceline: a template per strategy."""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from paceline.data.sources import SOURCE_WORDS
from paceline.errors import SpecError
from paceline.plan import Probe, complete, refusal
from paceline.recommend.scripts.base import Script, Source
from paceline.recommend.scripts.jax_text import jax_values
from paceline.recommend.scripts.keras_text import keras_values
from paceline.recommend.scripts.layout import without_unused_imports
from paceline.recommend.scripts.table import SCRIPTS
from paceline.recommend.scripts.torch_text import torch_values
from paceline.recommend.scripts.values import values_of
from paceline.runs.probe import probe as probe_model
from paceline.spec import RunSpec
from paceline.strategies import strategy
from paceline.typical import machine_with_everything
from paceline.workloads.user_model import USER_DATA

FILE_NAME = "train.py"
# Slices of a GPU are Paceline's own doing.
DEVICES = ("cpu", "cuda")
_OF_FRAMEWORK: dict[str | None, Callable[[Source], Mapping[str, Any]]] = {
    "torch": torch_values,
    "tensorflow": keras_values,
    "jax": jax_values,
}


def scripts() -> dict[str, Script]:
    """Every script by the name of its strategy."""
    return SCRIPTS


def emit(spec: RunSpec, *, file_name: str = FILE_NAME, why: str = "", probe: Probe = probe_model) -> str:
    """A script that carries out the run; `why` is put into its docstring, to say what it was chosen for.

    A run that no machine could make, or that the script could not carry out as asked, is a `UserError`.
    """
    run = complete(spec)
    script = script_of(run.strategy)
    _check(run, script, probe)
    source = Source(run)
    values = {
        **values_of(source, script, file_name, why),
        **_OF_FRAMEWORK[strategy(run.strategy).framework](source),
        **script.values(source),
    }
    return without_unused_imports(_templates().get_template(f"{script.name}.py.j2").render(values))


def script_of(name: str) -> Script:
    """The script of a strategy, or a `SpecError` that names those that have one."""
    if name not in SCRIPTS:
        strategy(name)  # a misspelt name is told as such
        raise SpecError(f"there is no script for {name}; there are scripts for {', '.join(sorted(SCRIPTS))}")
    return SCRIPTS[name]


def _check(spec: RunSpec, script: Script, probe: Probe) -> None:
    for what, value, choices in (
        ("execution", spec.execution, script.executions),
        ("device", spec.device, DEVICES),
        ("precision", spec.precision, script.precisions),
    ):
        if value not in choices:
            raise SpecError(f"a script cannot be written for {what} {value}; use {' or '.join(choices)}")
    # The script may be for another machine than this.
    reason = refusal(spec, machine_with_everything(spec.workers), probe)
    if reason is not None:
        raise SpecError(f"a script cannot be written: {reason}")
    if spec.dataset == USER_DATA and (source := probe(spec).source) != "arrays":
        raise SpecError(
            f"a script cannot be written: data() of {spec.workload} gives {SOURCE_WORDS[source]}, and a script holds "
            f"its data in memory; return arrays, or train it with paceline run"
        )
    if spec.model is not None and (form := probe(spec).form) is not None:
        raise SpecError(
            f"a script cannot be written: {spec.workload} {form}, and scripts pass one tensor; "
            f"train it with paceline run"
        )
    for function in strategy(spec.strategy).needs.cut_by(spec) if spec.model is not None else ():
        if function in probe(spec).automatic_cuts:
            raise SpecError(
                f"a script cannot be written: only Paceline finds how to cut {spec.workload} by itself; "
                f"add a function {function} to its file"
            )
    if spec.optimizer.name == "lbfgs":
        raise SpecError("a script cannot be written for optimizer lbfgs; use adam, adamw, sgd or adagrad")
    left_out = [name for name in spec.settings if name not in script.knobs]
    if left_out:
        heeded = f"; it heeds {', '.join(script.knobs)}" if script.knobs else ""
        raise SpecError(f"the script for {script.name} cannot set {left_out[0]}; leave it out{heeded}")


@cache
def _templates() -> Any:
    import jinja2

    return jinja2.Environment(
        loader=jinja2.PackageLoader("paceline.recommend.scripts"),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
    )


__all__ = ["FILE_NAME", "Script", "emit", "script_of", "scripts"]
