"""The peak of a training step that predictions start from, against the tensors that PyTorch really has alive."""

import weakref
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_iter  # noqa: E402

from paceline.contract.context import Context, Process, Rendezvous, spec_facts  # noqa: E402
from paceline.frameworks.torch.evaluation import cross_entropy  # noqa: E402
from paceline.frameworks.torch.resident_data import ResidentData  # noqa: E402
from paceline.frameworks.torch.training import build, optimizer_for  # noqa: E402
from paceline.plan import complete  # noqa: E402
from paceline.predict.memory import all_kept, beyond_kept  # noqa: E402
from paceline.spec import RunSpec  # noqa: E402

pytestmark = pytest.mark.torch

CPU = torch.device("cpu")


class Alive(TorchDispatchMode):
    """Counts the bytes of all storage that operations make, until it is freed."""

    def __init__(self, known: list[Any]) -> None:
        super().__init__()
        self.now = self.most = 0
        self._seen = {tensor.untyped_storage()._cdata for tensor in known}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for tensor in tree_iter(result):
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage()._cdata not in self._seen:
                self._watch(tensor.untyped_storage())
        self.most = max(self.most, self.now)
        return result

    def _watch(self, storage: Any) -> None:
        place, size = storage._cdata, storage.nbytes()
        self._seen.add(place)
        self.now += size
        weakref.finalize(storage, self._gone, place, size)

    def _gone(self, place: int, size: int) -> None:
        self._seen.discard(place)
        self.now -= size


@pytest.mark.parametrize(
    ("workload", "options", "batch"),
    [
        ("mnist-small", {}, 64),
        ("mnist-large", {}, 4),
        ("mlp", {}, 128),
        ("mlp", {"depth": 6, "width": 64}, 512),
        ("transformer", {}, 4),
        ("transformer", {"depth": 2, "width": 64}, 16),
    ],
)
def test_what_is_alive_at_most_is_what_the_layers_counts_say(workload: str, options: dict, batch: int) -> None:
    spec = complete(RunSpec(workload=workload, options=options, global_batch=batch, train_samples=batch, epochs=1))
    facts = spec_facts(spec)
    context = Context(spec, Process(0, 1, "worker", 0, (0,)), Rendezvous("127.0.0.1", 0))
    module = build(context, CPU)
    optimizer = optimizer_for(context, module)
    data = ResidentData.load(context.data, CPU, channels_last=spec.memory_format == "channels_last")

    def step() -> None:
        inputs, targets = data.batch(data.train, torch.arange(batch))
        optimizer.zero_grad(set_to_none=True)
        cross_entropy(module(inputs), targets).backward()
        optimizer.step()

    step()
    optimizer.zero_grad(set_to_none=True)
    with Alive([*module.parameters()]) as alive:
        step()
    expected = all_kept(facts, batch) + beyond_kept(facts, batch, {})
    assert alive.most == pytest.approx(expected, rel=0.05)
