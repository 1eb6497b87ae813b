"""What a strategy costs on a typical run, in multiples of the model: the small CNN on four workers with Adam."""

from dataclasses import dataclass

from paceline.contract.context import spec_facts
from paceline.spec import DEFAULT_GLOBAL_BATCH, RunSpec
from paceline.strategies import Strategy

WORKERS = 4


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
