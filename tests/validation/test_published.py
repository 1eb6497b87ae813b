"""Predictions against numbers that others published."""

import pytest

from paceline.predict.published.scaling import published_rows, summarise_published

ROWS = {row.name: row for row in published_rows()}


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if not row.stand_in and "server" not in name])
def test_scaling_of_collectives_is_foreseen_within_a_tenth(name: str) -> None:
    assert abs(ROWS[name].error) <= 0.10


def test_servers_are_foreseen_to_scale_badly_and_one_huge_variable_to_ruin_them() -> None:
    inception, resnet, vgg = (ROWS[f"parameter server, {model}, 16 GPUs"] for model in (
        "Inception V3", "ResNet-101", "VGG-16"))  # fmt: skip
    assert inception.predicted > resnet.predicted > 4 * vgg.predicted
    assert abs(inception.error) <= 0.10 and abs(resnet.error) <= 0.10
    # Less than two GPUs' worth out of sixteen; 0.6 were seen.
    assert vgg.predicted * 16 < 2


@pytest.mark.parametrize("gpus", ["8 A100", "8 V100"])
def test_what_feeding_gpus_takes_is_not_foreseen(gpus: str) -> None:
    row = ROWS[f"NVIDIA ResNet-50, {gpus}, mixed precision"]
    assert row.stand_in and 0.05 <= row.error <= 0.20


def test_the_order_of_published_numbers_is_kept() -> None:
    total = summarise_published(list(ROWS.values()))
    assert total.rows >= 12
    assert total.order_kept >= 0.9


def test_every_number_has_a_source() -> None:
    assert all(len(row.source) > 10 for row in ROWS.values())
