"""Whether a run's model has anything to compute again in its backward pass, whichever framework trains it."""

from paceline.contract.context import spec_facts
from paceline.spec import RunSpec


def why_not_recomputed(spec: RunSpec) -> str | None:
    """Why nothing of a built-in model could be computed again, in words, or None."""
    if spec.recompute == "none" or spec.model is not None or any(layer.heads for layer in spec_facts(spec).layers):
        return None
    return (
        f"{spec.workload} has no transformer blocks whose activations could be computed again; "
        f"leave recompute out, or use a workload that has"
    )
