"""What a compiler makes of a run of operations."""

from paceline.costs.fusion import fused, unfused
from paceline.costs.operations import attention, memory, product


def test_memory_bound_operations_between_products_become_one_pass() -> None:
    one = product("bf16", 64, 64, 64)
    run = [
        memory("bf16", 1000, 2, "gelu"),
        memory("bf16", 1000, 3, "add"),
        memory("bf16", 1000, 2, "native_layer_norm"),
    ]
    before, together, after = fused([one, *run, one])
    assert before == after == one
    # Read once, written once, and what is added.
    assert together.moved_bytes == 3 * 1000 * 2
    assert together.kind == "memory"


def test_products_of_odd_sizes_are_padded() -> None:
    (padded,) = fused([product("bf16", 4096, 50_257, 768)])
    assert padded.shape == (1, 4096, 50_264, 768)


def test_products_and_what_the_host_waits_for_stay_as_they_are() -> None:
    alone = [
        product("bf16", 8, 8, 8),
        memory("bf16", 10, 2),
        product("bf16", 8, 8, 8),
        memory("bf16", 10, 2, waits=True),
    ]
    assert list(fused(alone)) == alone


def test_a_fused_run_never_moves_more_than_its_parts() -> None:
    run = [memory("fp32", 10, 1.5, "_to_copy"), memory("fp32", 10_000, 2, "relu")]
    (together,) = fused(run)
    assert together.moved_bytes <= sum(one.moved_bytes for one in run)


def test_heads_that_do_not_fill_blocks_of_a_fused_softmax_go_through_its_steps_one_by_one() -> None:
    whole, rest = (unfused(attention("bf16", 1, (heads, heads), (1024, 1024), 64, causal=True)) for heads in (4, 2))
    assert len(rest) == len(whole) + 3
    assert {operation.numbers for operation in rest if operation.kind == "memory"} == {"fp32"}
    # In single precision, half of the scores move more bytes than all of them.
    assert sum(one.moved_bytes for one in rest if one.kind == "memory") > sum(
        one.moved_bytes for one in whole if one.kind == "memory"
    )
