"""Each number that strategies are ranked by has a name, a unit and a direction."""

import pytest

from paceline.recommend import objectives as metrics
from paceline.recommend.objectives import THROUGHPUT, Metric

METRICS = {metric.name: metric for metric in vars(metrics).values() if isinstance(metric, Metric)}


@pytest.mark.parametrize("name", sorted(METRICS))
def test_every_metric_says_its_label_unit_and_direction(name):
    metric = METRICS[name]
    assert metric.label
    assert metric.unit
    assert metric.better in ("higher", "lower")


@pytest.mark.parametrize("name", sorted(name for name, metric in METRICS.items() if metric.unit in ("s", "B", "J")))
def test_every_metric_in_seconds_bytes_or_joules_is_better_when_lower(name):
    assert METRICS[name].better == "lower"


@pytest.mark.parametrize("name", sorted(name for name, metric in METRICS.items() if metric.unit == "1/s"))
def test_every_rate_is_better_when_higher(name):
    assert METRICS[name].better == "higher"


def test_a_metric_cannot_be_changed():
    with pytest.raises(AttributeError):
        THROUGHPUT.better = "lower"
