"""Layouts that a search tries: few, and such as large models are trained with."""

import pytest

from paceline.contract.layout_search import LAYOUTS, MOST_STAGES, layouts_to_try
from paceline.layout import Layout
from paceline.systems.files import load_hardware

H100 = load_hardware("8xh100-nvlink")
FEW = 120


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


def test_more_micro_batches_are_tried_where_there_is_a_pipeline() -> None:
    settings = list(LAYOUTS.settings(8, H100, {}))
    assert {"layout": "tensor=4,pipeline=2", "microbatches": 8} in settings
    assert all("pipeline" in str(setting["layout"]) for setting in settings if "microbatches" in setting)
    fixed = list(LAYOUTS.settings(8, H100, {"microbatches": 4}))
    assert fixed and not any("microbatches" in setting for setting in fixed)
    assert list(LAYOUTS.settings(8, H100, {"layout": ""})) == []
