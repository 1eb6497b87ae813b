"""The overhead of a software stack in steps on GPUs, fitted to logged runs: no data sheet has it."""

from typing import Literal

from pydantic import Field

from paceline.spec import Frozen

# Whether scores of attention stay within one kernel, or go through memory between several.
AttentionKernel = Literal["fused", "unfused"]


class Software(Frozen):
    """How the programs behind a log execute a step."""

    # Which log it was fitted to, how many of its runs, and how well those kept out of the fit were predicted.
    source: str = Field(min_length=8)
    attention: AttentionKernel = "fused"
    # By which share the host takes longer for a layer with each further rank that the layer is split over.
    host_share_per_split: float = Field(default=0.0, ge=0)
    # Of each step, beside passes, transfers and update.
    step_seconds: float = Field(default=0.0, ge=0)
    # The share of gradients' transfers that may hide behind the backward pass.
    hidden_share: float = Field(default=1.0, ge=0, le=1)
    # Relative standard deviation of predictions within a node and over several, from cross-validation.
    deviation: float = Field(default=0.0, ge=0)
    several_nodes_deviation: float = Field(default=0.0, ge=0)
    # What rows of the log that did not say so were taken for.
    assumed: dict[str, str] = {}
