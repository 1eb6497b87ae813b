"""Layouts that a search tries: such as large models are trained with."""

import pytest

from paceline.contract.layout_search import LAYOUTS, MOST_STAGES, layouts_to_try
from paceline.layout import Layout
from paceline.systems.files import load_hardware

H100 = load_hardware("8xh100-nvlink")
# All of them are screened, at ten thousand settings in a second and more.
FEW = 1000


@pytest.mark.parametrize("workers", [2, 6, 8, 12, 64, 96, 1024, 16384])
def test_each_has_as_many_devices_and_layers_are_split_within_a_node(workers: int) -> None:
    tried = [Layout.from_text(text) for text in layouts_to_try(workers, H100)]
    assert 0 < len(tried) <= FEW and len(set(tried)) == len(tried)
    for layout in tried:
        assert layout.workers == workers
        assert H100.node_devices % layout.tensor == 0
        assert layout.pipeline <= MOST_STAGES
    # The default of the strategy is predicted anyway.
    assert Layout(shard=workers) not in tried


def test_composed_layouts_are_among_them() -> None:
    tried = layouts_to_try(1024, H100)
    assert "shard=32,tensor=8,pipeline=4" in tried
    assert "replicate=128,shard=8" in tried
    assert "replicate=32,tensor=8,pipeline=4" in tried


def test_sequences_are_divided_over_few_devices_and_a_fixed_layout_is_not_searched() -> None:
    tried = [Layout.from_text(text) for text in layouts_to_try(1024, H100)]
    assert {layout.context for layout in tried} == {1, 2, 4, 8, 16}
    assert list(LAYOUTS.settings(8, H100, {"layout": ""})) == []
