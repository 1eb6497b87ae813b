"""`paceline recommend`: what it prints below its ranking."""

from paceline.cli.recommend import group_left_out


def test_strategies_that_are_left_out_for_the_same_reason_share_a_line() -> None:
    excluded = {
        "jax-data": "x16: jax-data is one process and cannot reach over 2 nodes",
        "torch-ddp": "x16: a worker would hold 99 GB and has 80 GB",
        "torch-dp": "x16: torch-dp is one process and cannot reach over 2 nodes",
    }
    assert group_left_out(excluded) == [
        ("jax-data, torch-dp", "x16: each is one process and cannot reach over 2 nodes"),
        ("torch-ddp", "x16: a worker would hold 99 GB and has 80 GB"),
    ]


def test_a_single_strategy_that_is_left_out_is_named_in_its_reason() -> None:
    excluded = {"tf-ps": "x8: tf-ps does not run with device cuda; it offers cpu"}
    assert group_left_out(excluded) == [("tf-ps", "x8: tf-ps does not run with device cuda; it offers cpu")]
