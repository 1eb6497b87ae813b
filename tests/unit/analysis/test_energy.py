"""Joules and money of one configuration."""

import pytest

from paceline.analysis.rows import SummaryOptions, summarise
from paceline.record import Energy

BY_COUNTER = Energy(source="rapl", idle_watts=10.0)


@pytest.fixture
def charged(make_record):
    """A record whose two epochs, of 2 s and 1 s, took these joules and came to these accuracies."""

    def make(joules=(60.0, 40.0), accuracies=(0.5, 0.9), energy=BY_COUNTER, **fields):
        record = make_record(**fields)
        epochs = [
            epoch.model_copy(update={"joules": one, "test_accuracy": accuracy})
            for epoch, one, accuracy in zip(record.epochs, joules, accuracies, strict=True)
        ]
        return record.model_copy(update={"epochs": tuple(epochs), "energy": energy})

    return make


def expense(*records, **options):
    (row,) = summarise(records, options=SummaryOptions(**options))
    return row.expense


def test_energy_is_that_of_the_last_epoch_with_and_without_idling(charged):
    spent = expense(charged())
    assert (spent.energy_source, spent.idle_watts) == ("rapl", 10.0)
    assert spent.joules_per_epoch == pytest.approx(40)
    assert spent.joules_per_epoch_above_idle == pytest.approx(30)
    assert spent.joules_per_1000_samples == pytest.approx(40)


def test_energy_is_the_median_over_repeats(charged):
    spent = expense(*(charged((60.0, joules), repeat=repeat) for repeat, joules in enumerate((10.0, 90.0, 40.0))))
    assert spent.joules_per_epoch == pytest.approx(40)


def test_energy_to_the_target_is_that_of_all_epochs_up_to_it(charged):
    assert expense(charged(), target_accuracy=0.9).joules_to_target == pytest.approx(100)
    assert expense(charged(), target_accuracy=0.4).joules_to_target == pytest.approx(60)
    assert expense(charged(), target_accuracy=0.95).joules_to_target is None


def test_energy_by_different_sources_is_not_mixed(charged):
    estimated = charged((1.0, 1.0), energy=Energy(source="estimated", watts_per_core=5.0), repeat=0)
    spent = expense(estimated, charged(repeat=1), charged(repeat=2))
    assert (spent.energy_source, spent.joules_per_epoch) == ("rapl", pytest.approx(40))
    assert expense(estimated).watts_per_core == 5.0


def test_a_record_without_energy_has_none_and_says_so(make_record):
    spent = expense(make_record())
    assert (spent.energy_source, spent.joules_per_epoch, spent.joules_to_target) == (None, None, None)


def test_money_is_devices_times_hours_times_price(charged):
    spent = expense(charged(workers=2), price_per_device_hour=3600.0, target_accuracy=0.9)
    assert spent.cost_per_epoch == pytest.approx(2 * 1.0)
    assert spent.cost_to_target == pytest.approx(2 * 3.0)


def test_without_a_price_or_short_of_the_target_nothing_is_charged(charged):
    assert expense(charged()).cost_per_epoch is None
    assert expense(charged(), price_per_device_hour=1.0, target_accuracy=0.99).cost_to_target is None
