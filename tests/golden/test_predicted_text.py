"""What predictions and advice look like, for systems that ship: the same on every machine."""

from collections.abc import Callable

import pytest

Printed = Callable[..., str]
Same = Callable[[str, str], None]
COMMANDS = {
    "predict": ["predict", "--workload", "mnist-large", "--system", "8xh100-nvlink", "--workers", "1,8,64",
                "--strategy", "torch-ddp,torch-pipeline", "--price-per-device-hour", "2.5"],
    "recommend-one": ["recommend", "--workload", "mnist-small", "--system", "8xh100-nvlink", "--workers", "1..8"],
    "recommend-many": ["recommend", "--workload", "transformer", "--depth", "48", "--width", "8192",
                       "--option", "heads=64", "--system", "8xh100-nvlink", "--workers", "8..1024"],
    "validate": ["validate"],
}  # fmt: skip


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("name", COMMANDS)
def test_the_answer_is_as_stored_at_this_width(printed: Printed, same_as_stored: Same, name: str, columns: int) -> None:
    text = printed(*COMMANDS[name], columns=columns)
    assert max(len(line.rstrip()) for line in text.splitlines()) <= columns
    same_as_stored(text, f"{name}-{columns}.txt")


def test_no_cell_of_a_prediction_is_cut_at_80_columns(printed: Printed) -> None:
    layouts = ["--layout", "shard=4,tensor=2", "--layout", "shard=2,tensor=2,pipeline=2"]
    model = ["predict", "--workload", "transformer", "--system", "8xh100-nvlink", "--strategy", "torch-mesh"]
    text = printed(*model, *layouts, "--tokens", "2e12", "--price-per-device-hour", "2.5", columns=80)
    assert "…" not in text
    assert all(word in text for word in ("wait-", "MFU", "memory", "fits", "J per", "cost per"))
