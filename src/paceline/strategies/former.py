"""Names that strategies had: what was run under them is a layout of another strategy now.

Stored runs keep the name under which they were made; a run that is asked for by such a name is made as the layout.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from paceline.errors import SpecError
from paceline.layout import Layout
from paceline.spec import RunSpec, Scalar


@dataclass(frozen=True)
class FormerName:
    """Workers in groups: a knob said how many are in each, and each group divided the model in one way."""

    knob: str
    # Dimensions of the layout: within a group, and between groups.
    within: str
    between: str
    # All knobs with what they were by default.
    knobs: Mapping[str, Scalar]
    strategy: str = "torch-mesh"

    @property
    def advice(self) -> str:
        """What to ask for instead."""
        groups = f"{self.between}=G,{self.within}=N"
        return f"use strategy {self.strategy} with a layout {groups} of G groups of N workers"


_OF_PARTS: dict[str, Scalar] = {"tensor": 2, "convolutions": "split"}
_OF_STAGES: dict[str, Scalar] = {"stages": 2, "schedule": "gpipe", "microbatches": 4, "balance": "counted"}
FORMER_NAMES = {
    "torch-ddp-tensor": FormerName("tensor", "tensor", "replicate", _OF_PARTS),
    "torch-fsdp-tensor": FormerName("tensor", "tensor", "shard", _OF_PARTS),
    "torch-ddp-pipeline": FormerName("stages", "pipeline", "replicate", _OF_STAGES),
}
FORMER_KNOBS = frozenset(knob for former in FORMER_NAMES.values() for knob in former.knobs)


def by_present_name(spec: RunSpec) -> RunSpec:
    """The run as it is made now; others as they are."""
    former = FORMER_NAMES.get(spec.strategy)
    if former is None:
        return spec
    if spec.layout is not None:
        raise SpecError(f"{spec.strategy} is a layout itself now and takes none; {former.advice}")
    # Knobs of other strategies of a study are passed over, and misspelt ones told as such, as of any strategy.
    chosen = {name: value for name, value in spec.knobs.items() if name in former.knobs or name not in FORMER_KNOBS}
    knobs = {**former.knobs, **chosen}
    size = knobs.pop(former.knob)
    if not isinstance(size, int) or size < 1 or spec.workers % size:
        raise SpecError(
            f"{spec.strategy} with {former.knob}={size} needs a multiple of {size} workers and the run has "
            f"{spec.workers}; change the workers, or knob {former.knob}"
        )
    if size == 1 and former.within == "pipeline":
        knobs = {}
    layout = Layout.model_validate({former.between: spec.workers // size, former.within: size})
    return spec.model_copy(update={"strategy": former.strategy, "knobs": knobs, "layout": layout})
