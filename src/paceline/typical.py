"""What a strategy costs on a typical run, in multiples of the small CNN, and which fields of a run it takes.

Costs are on four workers with Adam; a field is one that some strategies heed and others refuse.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, get_args

from paceline.contract.context import spec_facts
from paceline.plan import complete, refusal
from paceline.spec import (
    DEFAULT_GLOBAL_BATCH,
    BatchNorm,
    Device,
    Dropout,
    Execution,
    Precision,
    Recompute,
    Reduction,
    RunSpec,
)
from paceline.strategies import Strategy
from paceline.systems import Gpu, System, local_system
from paceline.systems.local import FRAMEWORKS

WORKERS = 4
# More memory than any GPU has, for a machine on which nothing is too large.
PLENTY_BYTES = 1 << 40
# Fields of a run that not every strategy heeds, and the values of them to ask for, beside the usual one.
FIELD_VALUES: dict[str, tuple[Any, ...]] = {
    "accumulation": (2,),
    "recompute": get_args(Recompute)[1:],
    "clip": (1.0,),
    "batch_norm": get_args(BatchNorm)[1:],
    "dropout": get_args(Dropout)[1:],
    "precision": get_args(Precision)[1:],
    "reduction": get_args(Reduction),
    "offload": (True,),
    "noise_scale": (True,),
    "checkpoint_every": (2,),
    "execution": get_args(Execution)[1:],
}


@dataclass(frozen=True)
class TypicalCost:
    """Costs of the worker that holds and sends most; the activations of a batch come on top of what is held."""

    held_over_model: float
    sent_over_model: float
    messages: float

    @property
    def held(self) -> str:
        """What is held (parameters, gradients, optimizer state) in multiples of the model, as text."""
        return f"{self.held_over_model:.2g} x"

    @property
    def sent(self) -> str:
        """Bytes and messages of one step, as text."""
        if not self.messages:
            return "nothing"
        return f"{self.sent_over_model:.2g} x in {self.messages:.3g}"


def typical_run(chosen: Strategy) -> RunSpec:
    """The run whose costs tables show."""
    return RunSpec(
        strategy=chosen.name, workers=chosen.needs.fixed_workers or WORKERS, global_batch=DEFAULT_GLOBAL_BATCH,
        epochs=1, dataset="mnist-5k", device="cpu" if "cpu" in chosen.needs.devices else chosen.needs.devices[0],
    )  # fmt: skip


def typical_cost(chosen: Strategy) -> TypicalCost:
    """The cost of a strategy on the typical run, from its footprint."""
    spec = typical_run(chosen)
    facts = spec_facts(spec)
    workers = [group for group in chosen.footprint(spec, facts).groups if group.role == "worker"]
    held = max(group.parameter_bytes + group.gradient_bytes + group.optimizer_bytes for group in workers)
    busiest = max(workers, key=lambda group: group.sent_bytes)
    return TypicalCost(
        held_over_model=held / facts.parameter_bytes,
        sent_over_model=busiest.sent_bytes / facts.parameter_bytes,
        messages=sum(message.count for message in busiest.messages),
    )


def machine_with_everything(gpus: int) -> System:
    """A machine that has all frameworks and so many GPUs: it refuses only what no machine could do."""
    each = Gpu("any", memory_bytes=PLENTY_BYTES)
    return replace(local_system(), gpus=(each,) * gpus, frameworks=dict.fromkeys(FRAMEWORKS, "any"))


def field_refusals(chosen: Strategy, device: Device) -> Iterator[tuple[str, Any, str | None]]:
    """Every field and value with the reason why the strategy refuses it for a transformer on two workers, or None."""
    workers = chosen.needs.fixed_workers or 2
    usual: dict[str, Any] = {
        "workload": "transformer", "strategy": chosen.name, "workers": workers, "device": device,
        "global_batch": DEFAULT_GLOBAL_BATCH, "steps": 1,
    }  # fmt: skip
    system = machine_with_everything(workers)
    for field, values in FIELD_VALUES.items():
        for value in values:
            spec = complete(RunSpec.model_validate({**usual, field: value}))
            yield field, value, refusal(spec, system, _no_model_of_the_users)


def _no_model_of_the_users(_spec: RunSpec) -> Any:
    raise AssertionError("a built-in model needs no look")
