"""Tensor parallelism: every layer that divides is split over all workers, which sum or gather activations in between.

Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model Parallelism", 2019.
"""

from functools import partial

from paceline.footprint import Footprint, ModelFacts
from paceline.frameworks import torch_facts
from paceline.frameworks.torch_layout import scattered_reduction
from paceline.spec import RunSpec
from paceline.strategies.base import Context, Job, Knob, Strategy, spec_layers
from paceline.systems import System
from paceline.workloads.splits import Rows, tensor_footprint, why_not_split

KNOBS = (
    Knob("convolutions", "split", "each worker has some output channels, or all of them", ("split", "replicated")),
)


def footprint(spec: RunSpec, model: ModelFacts) -> Footprint:
    """A part of every split layer, and activations exchanged between them."""
    rows = Rows.of(spec, STRATEGY.knob_values(spec))
    return tensor_footprint(spec, rows, model, partial(scattered_reduction, spec))


def check(spec: RunSpec, _system: System) -> str | None:
    """Heads must divide, and something must."""
    return why_not_split(spec, STRATEGY.knob_values(spec), spec_layers)


def open_job(context: Context) -> Job:
    """All workers in one row."""
    from paceline.frameworks.torch_tensor_job import TensorJob, split_model

    return TensorJob(context, split_model(context, Rows.of(context.spec, STRATEGY.knob_values(context.spec))))


STRATEGY = Strategy(
    name="torch-tensor",
    family="model",
    framework="torch",
    synchronous=True,
    about="each layer is split over all workers, which exchange activations between layers",
    use_when="single layers are too large for one device and the devices share a very fast link",
    footprint=footprint,
    check=check,
    open_job=open_job,
    knobs=KNOBS,
    precisions=("fp32", "tf32"),
    replicas=lambda _spec: 1,
    cut_by="plan",
    is_out_of_memory=torch_facts.is_out_of_memory,
)
