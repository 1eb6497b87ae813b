"""`Membership`: which workers leave a run and join it at which steps, written as `leave:20,join:40`."""

import re
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, model_serializer, model_validator

_CHANGE = re.compile(r"(leave|join):(\d+)")


class Change(BaseModel):
    """One departure or arrival, and the step that the training has reached when it happens."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["leave", "join"]
    step: int


class Membership(BaseModel):
    """Departures and arrivals in turn, each at a later step than the one before. A departure is a sudden death."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    changes: tuple[Change, ...]

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        words = [word.strip() for word in value.split(",")]
        matches = [_CHANGE.fullmatch(word) for word in words]
        wrong = next((word for word, match in zip(words, matches, strict=True) if match is None), None)
        if wrong is not None:
            raise ValueError(
                f"membership {value!r} has {wrong!r}, which is no change of members; write such as leave:20,join:40"
            )
        return {"changes": [{"kind": match[1], "step": int(match[2])} for match in matches if match]}

    @model_validator(mode="after")
    def _in_turn(self) -> Self:
        steps = [change.step for change in self.changes]
        if not steps or steps[0] < 1 or steps != sorted(set(steps)):
            raise ValueError(
                f"membership {self.text!r} must name steps of at least 1, each later than the one before; "
                f"write such as leave:20,join:40"
            )
        if [change.kind for change in self.changes] != ["leave", "join"] * (len(steps) // 2) + ["leave"] * (
            len(steps) % 2
        ):
            raise ValueError(
                f"membership {self.text!r} must begin with leave, and a join follows each leave, because a worker "
                f"joins in the place of the one that left; write such as leave:20,join:40"
            )
        return self

    @model_serializer
    def _as_text(self) -> str:
        return self.text

    @property
    def text(self) -> str:
        """The changes as they are written."""
        return ",".join(f"{change.kind}:{change.step}" for change in self.changes)

    @property
    def last_step(self) -> int:
        """The step of the last change."""
        return self.changes[-1].step

    def __str__(self) -> str:
        return self.text
