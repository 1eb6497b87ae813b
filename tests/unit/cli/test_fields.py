"""Options of the command line as fields of a study."""

import pytest

from paceline.cli.fields import parse_pairs, study_fields
from paceline.cli.run_options import RunOptions
from paceline.errors import UserError


def fields(**options):
    return study_fields(RunOptions(**options))


def test_only_what_was_given_becomes_a_field():
    assert fields(dataset=None, workers=None, epochs=None) == {}
    assert fields(epochs=2, db="some.db", fresh=True) == {"epochs": 2}


def test_commas_make_lists():
    assert fields(precision="fp32, bf16", workers="1,2..4") == {
        "precision": ["fp32", "bf16"], "workers": [1, 2, 3, 4],
    }  # fmt: skip


def test_each_layout_is_an_option_of_its_own_because_it_has_commas():
    told = fields(layout=["shard=4", "shard=2,tensor=2"], accumulation="1,4", recompute="none,full", clip=1.0)
    assert told == {
        "layout": ["shard=4", "shard=2,tensor=2"], "accumulation": [1, 4], "recompute": ["none", "full"], "clip": 1.0,
    }  # fmt: skip


def test_precisions_of_reductions_and_offloading_are_factors_too():
    assert fields(reduction="fp32,bf16", offload="true, false") == {
        "reduction": ["fp32", "bf16"], "offload": [True, False],
    }  # fmt: skip


def test_shapes_and_times_are_parsed():
    assert fields(input_shape="3x32x32", timeout="2m") == {"input_shape": (3, 32, 32), "timeout_seconds": 120.0}


def test_a_word_for_a_number_is_refused_with_the_option():
    with pytest.raises(UserError, match="--global-batch 'many' has 'many', which is not a whole number"):
        fields(global_batch="many")


def test_patterns_of_strategies_are_expanded():
    assert "torch-ddp" in fields(strategy="torch-*")["strategy"]


def test_pairs_keep_the_type_of_their_values():
    assert parse_pairs(["a=1", "b=2.5", "c=true", "d=word", "e=1,25"], "--knob") == {
        "a": [1], "b": [2.5], "c": [True], "d": ["word"], "e": [1, 25],
    }  # fmt: skip


def test_a_pair_without_equals_is_refused_with_an_example():
    with pytest.raises(UserError, match=r"--knob 'bucket' is not understood; write name=value"):
        parse_pairs(["bucket"], "--knob")
