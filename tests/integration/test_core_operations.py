"""Operations that are timed on a core, as calibrating asks for them."""

import pytest

torch = pytest.importorskip("torch")

from paceline.calibrate.core_cases import CORE_NAMES, core_cases  # noqa: E402
from paceline.calibrate.gpu.cases import MEMORY_NAMES  # noqa: E402
from paceline.calibrate.torch_gauge import operation_timings  # noqa: E402
from paceline.costs.operations import Operation  # noqa: E402


def test_this_pytorch_refuses_none_of_the_kinds_and_names() -> None:
    smallest: dict[tuple[object, ...], Operation] = {}
    for case in sorted(core_cases(), key=lambda case: case.moved_bytes):
        smallest.setdefault((case.kind, case.backward, case.sums_rows, case.name), case)
    timed = operation_timings(list(smallest.values()))
    assert {row.operation for row in timed} == set(smallest.values())
    assert all(row.seconds > 0 for row in timed)
    names = {row.operation.name for row in timed if row.operation.kind == "memory"}
    assert names >= {*MEMORY_NAMES, *CORE_NAMES} - {"_to_copy"}


def test_cases_are_small_enough_for_a_core() -> None:
    cases = core_cases()
    assert 400 < len(cases) < 800
    assert sum(case.flops for case in cases) < 1e11
