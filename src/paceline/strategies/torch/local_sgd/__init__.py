"""Local SGD: workers train on their own and average their models every few steps.

Lin et al., "Don't Use Large Mini-Batches, Use Local SGD", ICLR 2020 (post-local SGD: the first steps are synchronous).
With outer momentum it is DiLoCo: Douillard et al., 2023, which takes 0.7 and 0.9 for the outer step.
"""

from dataclasses import replace

from paceline.contract.context import Context
from paceline.contract.job import Job
from paceline.contract.strategy import Knob, Strategy, Testing
from paceline.contract.traits import Traits
from paceline.costs.footprint import Footprint, ModelFacts, optimizer_bytes, trainer
from paceline.costs.messages import all_reduce
from paceline.costs.precision import autocast_numbers, parameter_width
from paceline.costs.recompute import activation_bytes, step_flops
from paceline.frameworks.torch import declared
from paceline.spec import RunSpec
from paceline.systems import System

# Steps between averagings that no run reaches.
NEVER = 10**9


def check(spec: RunSpec, system: System) -> str | None:
    """Knobs out of range."""
    knobs = STRATEGY.knob_values(spec)
    if int(knobs["every"]) < 1 or int(knobs["warmup_steps"]) < 0:
        return "every must be at least 1 and warmup_steps at least 0"
    if not 0 <= float(knobs["outer_momentum"]) < 1 or float(knobs["outer_lr"]) <= 0:
        return "outer_momentum must be at least 0 and less than 1, and outer_lr more than 0"
    return declared.check_step(spec, system)


def footprint(spec: RunSpec, model: ModelFacts) -> Footprint:
    """The model goes around once in `every` steps: messages are those of an average step, the warm-up aside."""
    width = parameter_width(spec)
    size, knobs = model.parameters * width, STRATEGY.knob_values(spec)
    outer = 2 * size if knobs["outer_momentum"] else 0
    local = spec.samples_per_step // spec.workers
    worker = trainer(
        spec,
        model,
        all_reduce("models", size, spec.workers, count=1 / int(knobs["every"])),
        # Beside the gradients, the row of numbers in which models and gradients are averaged.
        gradient_bytes=2 * size,
        optimizer_bytes=optimizer_bytes(spec.optimizer, model.parameters, model.tensors, width) + outer,
        flops=step_flops(model, spec.recompute, local),
        activation_bytes=activation_bytes(
            model, spec.recompute, local / spec.accumulation, numbers=autocast_numbers(spec)
        ),
    )
    return Footprint((worker,))


def staleness(spec: RunSpec) -> float:
    """Between two averagings a worker misses 0, 1, 2 and so on steps of each other; their mean."""
    return (int(STRATEGY.knob_values(spec)["every"]) - 1) / 2 * (spec.workers - 1)


def open_job(context: Context) -> Job:
    """The plain loop, with averaging after the update."""
    from paceline.frameworks.torch.group import join_group
    from paceline.frameworks.torch.precision import compute_in_half
    from paceline.frameworks.torch.recompute import recompute
    from paceline.frameworks.torch.training import build, optimizer_for, torch_device
    from paceline.strategies.torch.local_sgd.job import LocalSgdJob

    device, knobs = torch_device(context), STRATEGY.knob_values(context.spec)
    join_group(context)
    module = build(context, device)
    compute_in_half(context.spec, module)
    recompute(context, module)
    return LocalSgdJob(
        context,
        module,
        device,
        optimizer_for(context, module),
        every=int(knobs["every"]),
        warmup_steps=int(knobs["warmup_steps"]),
        outer=(float(knobs["outer_lr"]), float(knobs["outer_momentum"])),
    )


STRATEGY = Strategy(
    name="torch-local-sgd",
    family="data",
    framework="torch",
    synchronous=False,
    about="workers train on their own and average their models every few steps",
    use_when="the link is slow and training can bear models that drift apart for some steps",
    footprint=footprint,
    open_job=open_job,
    knobs=(
        Knob("every", 8, "steps between two averagings of the models"),
        Knob("warmup_steps", 8, "first steps, in which gradients are averaged as in data parallel training"),
        Knob("outer_momentum", 0.0, "Nesterov momentum of the averaged movement, 0.9 in DiLoCo; 0 is plain averaging"),
        Knob("outer_lr", 0.7, "how much of the averaged movement is taken; of effect with outer_momentum only"),
    ),
    # Clipped are the gradients that a worker goes on with: its own, and in the warm-up the mean.
    needs=replace(declared.NEEDS, heeds=declared.STEP_FIELDS, check=check),
    traits=Traits(
        saved_by="all",
        calibrated_like=("torch-ddp", "torch-zero", "torch-fsdp"),
        staleness=staleness,
        independent_with={"every": NEVER, "warmup_steps": 0},
    ),
    testing=Testing(must_reach_loss=0.6),
)
