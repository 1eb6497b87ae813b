"""Each reported number has a name, a unit and a direction."""

import pytest

from paceline.metrics import EPOCH_TIME, LOSS, METRICS, THROUGHPUT


def test_the_best_of_a_metric_where_higher_is_better_is_the_largest():
    assert THROUGHPUT.best([3.0, 9.0, 5.0]) == 9.0


def test_the_best_of_a_metric_where_lower_is_better_is_the_smallest():
    assert EPOCH_TIME.best([3.0, 9.0, 5.0]) == 3.0
    assert LOSS.best([0.2, 0.1]) == 0.1


@pytest.mark.parametrize("name", sorted(METRICS))
def test_every_metric_is_found_by_its_own_name_and_says_its_label_unit_and_direction(name):
    metric = METRICS[name]
    assert metric.name == name
    assert metric.label
    assert metric.unit
    assert metric.better in ("higher", "lower")


@pytest.mark.parametrize("name", sorted(name for name, metric in METRICS.items() if metric.unit in ("s", "B")))
def test_every_metric_in_seconds_or_bytes_is_better_when_lower(name):
    assert METRICS[name].better == "lower"


@pytest.mark.parametrize("name", sorted(name for name, metric in METRICS.items() if metric.unit == "1/s"))
def test_every_rate_is_better_when_higher(name):
    assert METRICS[name].better == "higher"


def test_a_metric_cannot_be_changed():
    with pytest.raises(AttributeError):
        THROUGHPUT.better = "lower"
