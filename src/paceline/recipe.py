"""`Optimizer`: the optimizer of a run, its weight decay and its learning rate over time, alike in every framework.

A decay of `adamw` is decoupled from the gradient (Loshchilov and Hutter, ICLR 2019), that of the others is an L2 term.
"""

import math
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Schedule = Literal["constant", "cosine", "step"]
# Which parameters weight decay is for: all, or those of two and more dimensions, which leaves out biases and the scales
# and shifts of normalisation layers.
DecayOn = Literal["all", "matrices"]
LEAST_DIMENSIONS_OF_A_MATRIX = 2
# What PyTorch's AdamW decays by where nobody says.
ADAMW_DECAY = 0.01
Decay = Annotated[float, Field(ge=0, lt=1)]
# Fields that belong to one schedule, by that schedule.
_OF_SCHEDULE = {"final_lr": "cosine", "step_every": "step", "step_factor": "step"}
# All that decides how the learning rate changes.
SCHEDULE_FIELDS = ("schedule", "warmup_steps", *_OF_SCHEDULE)


class Optimizer(BaseModel):
    """The optimizer and its settings; the default is Adam as the first study used it."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: Literal["adam", "adamw", "sgd", "adagrad", "lbfgs"] = "adam"
    lr: float = Field(default=0.001, gt=0)
    betas: tuple[Decay, Decay] = (0.9, 0.999)
    eps: float = Field(default=1e-7, gt=0)
    weight_decay: float = Field(default=0.0, ge=0)
    weight_decay_on: DecayOn = "all"
    momentum: float = Field(default=0.0, ge=0, lt=1)
    # Pairs of steps and gradient changes that L-BFGS remembers.
    history: int = Field(default=10, ge=1)
    # How the learning rate goes on after its warm-up: as it is, down half a cosine, or down in steps.
    schedule: Schedule = "constant"
    # Steps over which the learning rate rises in equal parts to `lr`, before its schedule begins.
    warmup_steps: int = Field(default=0, ge=0)
    # Of schedule cosine: the part of `lr` that is left at the end of the run.
    final_lr: float = Field(default=0.0, ge=0, le=1)
    # Of schedule step: steps from one fall to the next, and what the rate is multiplied by.
    step_every: int | None = Field(default=None, ge=1)
    step_factor: float = Field(default=0.1, gt=0, lt=1)

    @model_validator(mode="before")
    @classmethod
    def _usual_decay_of_adamw(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("name") == "adamw":
            return {"weight_decay": ADAMW_DECAY, **values}
        return values

    @model_validator(mode="after")
    def _fields_that_go_together(self) -> Self:
        usual = type(self).model_fields
        for name, schedule in _OF_SCHEDULE.items():
            if getattr(self, name) != usual[name].default and self.schedule != schedule:
                raise ValueError(
                    f"optimizer.{name} {getattr(self, name)} goes with schedule {schedule}, and schedule is "
                    f"{self.schedule}; leave {name} out, or give schedule={schedule}"
                )
        if self.schedule == "step" and self.step_every is None:
            raise ValueError("optimizer.schedule step needs to know when; give step_every, such as step_every=1000")
        if self.weight_decay_on != "all" and not self.weight_decay:
            raise ValueError(
                f"optimizer.weight_decay_on {self.weight_decay_on} chooses what weight_decay is for, and that is 0; "
                f"give weight_decay too, such as weight_decay=0.01"
            )
        return self

    @property
    def scheduled(self) -> bool:
        """Whether the learning rate changes in the course of a run."""
        return self.schedule != "constant" or self.warmup_steps > 0

    @property
    def update_name(self) -> str:
        """The update by what it reads and writes: `adam` also of AdamW, `momentum` of SGD with a velocity."""
        return {"adamw": "adam", "sgd": "momentum" if self.momentum else "sgd"}.get(self.name, self.name)

    @property
    def recipe(self) -> dict[str, Any]:
        """What it sets of weight decay and schedule, as far as it is not as usual."""
        usual = type(self).model_fields
        names = ("weight_decay", "weight_decay_on", *SCHEDULE_FIELDS)
        return {name: getattr(self, name) for name in names if getattr(self, name) != usual[name].default}

    def decays(self, dimensions: int) -> bool:
        """Whether a parameter of so many dimensions is decayed."""
        everything = self.weight_decay_on == "all" or dimensions >= LEAST_DIMENSIONS_OF_A_MATRIX
        return bool(self.weight_decay) and everything

    def lr_factor(self, step: int, total_steps: int) -> float:
        """What `lr` is multiplied by in a step, counted from 0, of a run of so many; beyond its end as at its end."""
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        after = step - self.warmup_steps
        if self.schedule == "cosine":
            done = min(1.0, after / max(1, total_steps - self.warmup_steps))
            return self.final_lr + (1 - self.final_lr) * (1 + math.cos(math.pi * done)) / 2
        if self.schedule == "step":
            assert self.step_every is not None
            return float(self.step_factor ** (after // self.step_every))
        return 1.0

    def lr_factors(self, total_steps: int) -> list[float]:
        """The factor of each step of a run, for frameworks that trace a step once and look its factor up."""
        return [self.lr_factor(step, total_steps) for step in range(max(1, total_steps))]
