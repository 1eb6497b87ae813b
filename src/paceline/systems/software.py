"""The overhead of a software stack in steps on GPUs, fitted to logged runs: no data sheet has it."""

from math import sqrt
from typing import Literal

from pydantic import Field

from paceline.costs.footprint import Block
from paceline.spec import Frozen, Recompute

# Whether scores of attention stay within one kernel, or go through memory between several.
AttentionKernel = Literal["fused", "unfused"]


class LoggedBlock(Frozen):
    """A block that several logged runs had in common, and how it differs from what fitted numbers say of it."""

    width: int
    heads: int
    sequence: int
    parameters: int
    tensor: int
    context: int
    samples: int
    recompute: Recompute
    # How many times as long it takes, for the device and for the host.
    factor: float = Field(gt=0)

    @property
    def block(self) -> Block:
        """What it is known by."""
        return Block(**{name: getattr(self, name) for name in Block._fields})


class Software(Frozen):
    """How the programs behind a log execute a step."""

    # Which log it was fitted to, how many of its runs, and how well those kept out of the fit were predicted.
    source: str = Field(min_length=8)
    attention: AttentionKernel = "fused"
    # By which share the host takes longer for a layer with each further rank that the layer is split over.
    host_share_per_split: float = Field(default=0.0, ge=0)
    # The share of a pass in which the host does not run ahead of the device, so that what takes long in one layer does
    # not make up for what is asked for slowly in the next.
    host_wait_share: float = Field(default=0.0, ge=0, le=1)
    # How many times as long the loss takes as PyTorch's own: programs go through its outputs more or less often.
    loss_factor: float = Field(default=1.0, gt=0)
    # Of each step, beside passes, transfers and update.
    step_seconds: float = Field(default=0.0, ge=0)
    # The share of gradients' transfers that may hide behind the backward pass.
    hidden_share: float = Field(default=1.0, ge=0, le=1)
    # Kernels of one shape and the next differ by more than any efficiency says; the same block takes the same again.
    blocks: tuple[LoggedBlock, ...] = ()
    # Relative standard deviation of predictions within a node and over several, from cross-validation; and of those
    # whose block no run had that was fitted to.
    deviation: float = Field(default=0.0, ge=0)
    several_nodes_deviation: float = Field(default=0.0, ge=0)
    other_blocks_deviation: float = Field(default=0.0, ge=0)
    # What rows of the log that did not say so were taken for.
    assumed: dict[str, str] = {}

    @property
    def block_factors(self) -> dict[Block, float]:
        """The factor of each logged block."""
        return {logged.block: logged.factor for logged in self.blocks}

    def deviation_of(self, nodes: int, *, logged: bool) -> float:
        """How far predictions on so many nodes are off, of blocks that were logged or of others.

        What an unknown block adds within a node, it adds to what several nodes add.
        """
        if nodes == 1:
            return self.deviation if logged else max(self.deviation, self.other_blocks_deviation)
        added = max(0.0, self.other_blocks_deviation**2 - self.deviation**2)
        return self.several_nodes_deviation if logged else sqrt(self.several_nodes_deviation**2 + added)
