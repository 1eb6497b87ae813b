"""Advice that is tried: the best candidates run for real and are ranked by what they did."""

import json

from integration.conftest import Tool


def test_the_best_candidates_are_run_and_ranked_again(tool: Tool) -> None:
    ended = tool("recommend", "--strategy", "fake", "--workers", "1,2", "--measure", "2", "--json")
    assert ended.code == 0, ended.err
    told = json.loads(ended.out)
    measured = {one["workers"]: one["measured"] for one in told["ranked"]}
    # The fake strategy's clock is exact: two workers are twice as fast, but for what they send.
    assert 1.5 < measured[2] / measured[1] <= 2
    assert told["pick"]["workers"] == 2
    assert all(one["records"] for one in told["ranked"])


def test_the_advice_is_said_before_anything_is_run(tool: Tool) -> None:
    ended = tool("recommend", "--strategy", "fake", "--workers", "1,2", "--measure", "2", "--quick")
    assert ended.code == 0, ended.err
    before, after = ended.out.split("Use fake on 2 workers")[1:]
    assert "samples/s predicted" in before and "samples/s measured" in after
    assert "running the best 2 here (Ctrl-C keeps what is done)" in ended.err
    assert "How sure: not sure, 1 run of each cannot tell chance from effect." in after


def test_predictions_as_json_have_intervals_and_parts(tool: Tool) -> None:
    ended = tool("predict", "--system", "8xh100-nvlink", "--workers", "8", "--json")
    assert ended.code == 0, ended.err
    (one,) = json.loads(ended.out)
    assert one["kind"] == "predicted"
    assert one["step_seconds"]["low"] < one["step_seconds"]["value"] < one["step_seconds"]["high"]
    assert set(one["parts"]) >= {"compute", "exposed", "bubble", "waiting"}


def test_published_numbers_are_told_as_json(tool: Tool) -> None:
    ended = tool("validate", "--json")
    assert ended.code == 0, ended.err
    told = json.loads(ended.out)
    assert told["measured"] == []
    assert len(told["published"]) >= 10
