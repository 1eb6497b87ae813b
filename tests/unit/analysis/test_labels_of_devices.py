"""What a title says of the devices."""

import pytest

from paceline.analysis.labels import setting_title
from paceline.spec import RunSpec

RUN = {
    "strategy": "torch-ddp",
    "workload": "mnist-small",
    "dataset": "mnist",
    "workers": 2,
    "global_batch": 64,
    "epochs": 2,
}
PLAIN = "mnist-small on mnist · strong scaling, global batch 64 · 2 epochs"


@pytest.mark.parametrize(
    ("fields", "title"),
    [
        ({}, PLAIN),
        ({"device": "cuda"}, f"{PLAIN} · GPUs"),
        ({"device": "cuda-slice", "slices": 4}, f"{PLAIN} · slices of 1/4 of a GPU"),
    ],
)
def test_a_title_says_on_what_other_than_cores_a_run_was_made(fields, title):
    assert setting_title(RunSpec(**RUN, **fields)) == title
