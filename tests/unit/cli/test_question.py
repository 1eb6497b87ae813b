"""Options of `calibrate`, `predict` and `recommend` as a question, and what is refused."""

from typing import Any

import pytest

from paceline.cli.options import QuestionOptions
from paceline.cli.question import make_question
from paceline.errors import UserError


def ask(workers: str = "1..4", system: str = "8xh100-nvlink", **options: Any) -> Any:
    return make_question(QuestionOptions(workers=workers, system=system, **options))


def test_words_become_values() -> None:
    asked = ask(workload="transformer", depth=48, option=["heads=64"], strategy="torch-ddp,torch-fs*",
                knob=["bucket_mb=1"], input_shape="2048", global_batch="64,128")  # fmt: skip
    assert asked.workers == (1, 2, 3, 4)
    assert asked.options == {"depth": 48, "heads": 64}
    assert asked.strategies == ("torch-ddp", "torch-fsdp")
    assert asked.knobs == {"bucket_mb": 1}
    assert asked.batches == [("global_batch", 64), ("global_batch", 128)]
    assert asked.base.precision == "bf16"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"workers": "0..4"}, "--workers 0..4 has a count below 1"),
        ({"workers": "8..1"}, "runs backwards"),
        ({"precision": "fp8"}, "--precision 'fp8' is unknown"),
        ({"workload": "mnist-smal"}, "did you mean 'mnist-small'?"),
        ({"strategy": "torch-dpp"}, "there is no strategy 'torch-dpp'"),
        ({"global_batch": "0"}, "--global-batch 0 has a size below 1"),
        ({"option": ["depth"]}, "--option 'depth' is not understood"),
        ({"system": "h300"}, "there is no system 'h300'"),
        ({"model": "absent.py:build"}, "there is no file"),
        ({"knob": ["buckets=1"]}, "no strategy has a knob 'buckets'"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        asked = ask(**given)
        list(asked.specs(asked.names()[0]))
    assert message in str(caught.value)
