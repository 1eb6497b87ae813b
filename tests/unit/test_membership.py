"""Departures and arrivals as they are written, and what of them is refused."""

import json
from typing import Any

import pytest

from paceline.errors import SpecError
from paceline.plan import complete, refusal
from paceline.runs.probe import probe
from paceline.spec import RunSpec
from paceline.systems import System

FIELDS: dict[str, Any] = {"strategy": "torch-ddp", "workers": 2, "global_batch": 64, "steps": 100}


def made(**fields: Any) -> RunSpec:
    return complete(RunSpec.parse({**FIELDS, **fields}, "test"))


def test_changes_are_read_and_written_alike() -> None:
    spec = made(membership="leave:20, join:40,leave:60", checkpoint_every=10)
    assert [(change.kind, change.step) for change in spec.membership.changes] == [  # type: ignore[union-attr]
        ("leave", 20), ("join", 40), ("leave", 60),
    ]  # fmt: skip
    assert spec.model_dump(mode="json")["membership"] == "leave:20,join:40,leave:60"
    assert RunSpec.model_validate(json.loads(spec.model_dump_json())) == spec


def test_a_run_with_changes_is_another_run() -> None:
    assert made().key() != made(membership="leave:20").key()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("go:20", "has 'go:20', which is no change of members; write such as leave:20,join:40"),
        ("leave", "has 'leave', which is no change of members"),
        ("leave:40,join:20", "must name steps of at least 1, each later than the one before"),
        ("leave:0", "must name steps of at least 1"),
        ("join:20", "must begin with leave, and a join follows each leave"),
        ("leave:10,leave:20", "must begin with leave, and a join follows each leave"),
        ("leave:20,join:100", "needs steps beyond its last change; give steps of more than 100"),
    ],
)
def test_changes_that_cannot_be_are_refused_in_words(text: str, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        made(membership=text)


def test_changes_need_steps_in_place_of_epochs() -> None:
    with pytest.raises(SpecError, match="give steps of more than 20 in place of epochs"):
        made(membership="leave:20", steps=None, epochs=2)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (
            {"strategy": "torch-fsdp"},
            "torch-fsdp ends when one of its workers does, and nobody can join it; leave membership out, or use "
            "tf-ps, torch-ddp, torch-downpour",
        ),
        ({"workers": 1, "checkpoint_every": 10}, "membership leave:20 of torch-ddp leaves nobody of 1 worker"),
        ({"machines": "a,b", "checkpoint_every": 10}, "on cores of this machine only, and machines a,b were asked for"),
        ({}, "torch-ddp starts all its workers anew when one leaves or joins, and would begin again; give "
             "checkpoint_every"),
    ],
)  # fmt: skip
def test_what_cannot_change_its_members_says_so(fields: dict[str, Any], words: str, make_system: Any) -> None:
    system: System = make_system()
    assert words in (refusal(made(membership="leave:20", **fields), system, probe) or "")


def test_strategies_that_need_no_checkpoint_to_go_on_make_none() -> None:
    served = made(strategy="torch-downpour", membership="leave:20", checkpoint_every=10)
    assert served.checkpoint_every is None
    assert made(strategy="torch-ddp", membership="leave:20", checkpoint_every=10).checkpoint_every == 10


def test_a_folder_for_checkpoints_goes_with_checkpoints() -> None:
    with pytest.raises(SpecError, match="checkpoint_to /x is where checkpoints go, and none is asked for"):
        made(checkpoint_to="/x")
