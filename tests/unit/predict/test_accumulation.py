"""Every strategy that accumulates gradients is predicted to compute each of its passes."""

import pytest

from paceline.predict.question import Question
from paceline.strategies import strategies
from paceline.systems.files import load_hardware

ACCUMULATING = [one.name for one in strategies().values() if "accumulation" in one.needs.heeds]


def computed(system: str, name: str, passes: int) -> float:
    question = Question(load_hardware(system), workload="gpt", accumulation=passes, global_batches=(32 * passes,))
    (spec,) = question.specs(name, workers=(1 if name.endswith("-single") else 4,))
    if (why_not := question.why_not(spec)) is not None:
        pytest.skip(why_not)
    return question.predictor.predict(spec).parts.compute


@pytest.mark.parametrize("system", ["v100-nvlink", "cpu-2-cores"])
@pytest.mark.parametrize("name", ACCUMULATING)
def test_four_passes_compute_nearly_four_times_what_one_does(name: str, system: str) -> None:
    assert computed(system, name, 4) > 3.5 * computed(system, name, 1)
