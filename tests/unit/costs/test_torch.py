"""How PyTorch cuts a model's arrays over ranks and what its collectives send, in numbers."""

from typing import Any

import pytest

from paceline.costs.footprint import ModelFacts
from paceline.costs.layers import LayerFacts
from paceline.costs.messages import scattered_reduction
from paceline.costs.torch import Array, arrays_of, broadcast, greedy_partition
from paceline.spec import RunSpec


def test_an_array_is_cut_by_rows_and_the_last_ranks_may_have_none() -> None:
    array = Array(rows=10, row=3)
    assert [array.shard(4, rank) for rank in range(4)] == [9, 9, 9, 3]
    assert [Array(2, 3).shard(4, rank) for rank in range(4)] == [3, 3, 0, 0]
    assert array.padded(4) == 36
    assert array.padded(1) == array.size == 30


def test_kernels_are_cut_by_their_outputs_and_other_arrays_by_their_first_dimension() -> None:
    layer = LayerFacts("conv", 76, 0, 0, 2, (("kernel", (3, 3, 2, 4)), ("bias", (4,)), ("tokens", (5, 7))))
    assert arrays_of([layer]) == [Array(4, 18), Array(4, 1), Array(5, 7)]


def test_the_largest_parameters_are_dealt_out_first_and_to_the_emptiest_rank() -> None:
    sizes = (1, 8, 5, 4, 3)
    model = ModelFacts((LayerFacts("all", 21, 0, 0, 5, tuple((f"array{size}", (size,)) for size in sizes)),))
    assert [[array.size for array in part] for part in greedy_partition(model, 3)] == [[8], [5, 1], [4, 3]]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("ranks", range(1, 10))
def test_a_broadcast_reaches_every_rank_once(ranks: int, device: Any) -> None:
    spec = RunSpec(workers=ranks, global_batch=64, epochs=1, device=device)
    parts = [message for place in range(ranks) for message in broadcast(spec, "parameters", 100.0, ranks, place)]
    assert sum(part.sent_bytes for part in parts) == sum(part.received_bytes for part in parts) == 100.0 * (ranks - 1)


def test_gloo_sends_as_much_for_a_reduce_scatter_as_for_an_all_reduce() -> None:
    specs = [RunSpec(workers=4, global_batch=64, epochs=1, device=device) for device in ("cpu", "cuda")]
    assert [scattered_reduction(spec, "gradients", 400.0, 4)[0].sent_bytes for spec in specs] == [600.0, 300.0]
