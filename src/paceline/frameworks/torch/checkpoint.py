"""What a PyTorch process saves of a training: the tensors that it holds, of which shards are its own part."""

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from paceline.frameworks.durable_files import forget, write_durably
from paceline.frameworks.torch.optimizer import scheduler_of

# Numbers beside the tensors: the object that has one, and the attribute.
Numbers = list[tuple[Any, str]]


class TorchCheckpoint:
    """A process's tensors of model and optimizer in one file; a shard is saved by the rank that holds it."""

    def __init__(
        self,
        name: str,
        module: nn.Module | None,
        optimizer: torch.optim.Optimizer | None,
        beside: dict[str, Tensor] | None = None,
        numbers: Numbers | None = None,
    ) -> None:
        # `module` is None where another process saves the model; `beside` is what a strategy keeps outside of both.
        self._name, self._module, self._beside, self.numbers = name, module, beside or {}, numbers or []
        # An optimizer that shares its work among ranks keeps its state in the one within it.
        self._optimizer = getattr(optimizer, "optim", optimizer)

    def save(self, folder: Path) -> int:
        """Writes the tensors with PyTorch's own serialisation."""
        state = {
            "model": {name: local_part(tensor) for name, tensor in self._model().items()},
            "optimizer": tree_map_only(Tensor, local_part, self._optimizer_state()),
            "beside": self._beside,
            "numbers": {name: getattr(holder, name) for holder, name in self.numbers},
            "scheduler": self._scheduler_state(),
        }
        return write_durably(self._file(folder), lambda file: torch.save(state, file))

    def load(self, folder: Path) -> None:
        """Reads the file from the disk and copies it into the tensors that are held."""
        forget([self._file(folder)])
        state = torch.load(self._file(folder), map_location="cpu", weights_only=True)
        for name, tensor in self._model().items():
            detached_part(tensor).copy_(state["model"][name])
        for name, tensor in self._beside.items():
            tensor.copy_(state["beside"][name])
        for holder, name in self.numbers:
            setattr(holder, name, state["numbers"][name])
        if self._optimizer is not None:
            self._load_optimizer(state["optimizer"])
        if (scheduler := scheduler_of(self._optimizer)) is not None:
            scheduler.load_state_dict(state["scheduler"])

    def _load_optimizer(self, saved: dict[int, dict[str, Any]]) -> None:
        assert self._optimizer is not None
        if not self._optimizer.state:
            # A new process, whose optimizer has made no step.
            groups = self._optimizer.state_dict()["param_groups"]
            self._optimizer.load_state_dict({"state": saved, "param_groups": groups})
            return
        for number, held in self._optimizer_state().items():
            for name, value in saved[number].items():
                if isinstance(value, Tensor) and isinstance(held.get(name), Tensor):
                    detached_part(held[name]).copy_(value)
                else:
                    held[name] = value

    def digest(self) -> str:
        """A hash of every byte, with names and sizes."""
        digest = hashlib.blake2b(digest_size=16)
        for name, value in self._values():
            digest.update(f"{name} ".encode())
            if isinstance(value, Tensor):
                flat = local_part(value).detach().cpu().contiguous().reshape(-1)
                digest.update(f"{flat.dtype} {tuple(value.shape)} ".encode())
                digest.update(memoryview(flat.view(torch.uint8).numpy()))
            else:
                digest.update(repr(value).encode())
        return digest.hexdigest()

    def erase(self) -> None:
        """Sets all of it to zero."""
        for _, value in self._values():
            if isinstance(value, Tensor):
                detached_part(value).zero_()
        for holder, name in self.numbers:
            setattr(holder, name, 0)

    def _file(self, folder: Path) -> Path:
        return folder / f"{self._name}.pt"

    def _model(self) -> dict[str, Tensor]:
        state = self._module.state_dict() if self._module is not None else {}
        return {name: value for name, value in state.items() if isinstance(value, Tensor)}

    def _optimizer_state(self) -> dict[int, dict[str, Any]]:
        """The state of each parameter, by the parameter's number in the optimizer."""
        if self._optimizer is None:
            return {}
        parameters = [parameter for group in self._optimizer.param_groups for parameter in group["params"]]
        return {
            number: self._optimizer.state[parameter]
            for number, parameter in enumerate(parameters)
            if parameter in self._optimizer.state
        }

    def _values(self) -> Iterator[tuple[str, Any]]:
        """Everything that is saved, by name; lists of tensors, as L-BFGS has them, one by one."""
        yield from self._model().items()
        for number, held in self._optimizer_state().items():
            for name, value in held.items():
                members = value if isinstance(value, list) else [value]
                yield from ((f"{number}.{name}.{place}", member) for place, member in enumerate(members))
        yield from self._beside.items()
        yield from ((name, getattr(holder, name)) for holder, name in self.numbers)
        yield from (("scheduler", state) for state in [self._scheduler_state()] if state)

    def _scheduler_state(self) -> dict[str, Any]:
        scheduler = scheduler_of(self._optimizer)
        return scheduler.state_dict() if scheduler is not None else {}


def local_part(tensor: Tensor) -> Tensor:
    """The tensor, or of one that is divided over ranks the part that is here."""
    to_local: Callable[[], Tensor] | None = getattr(tensor, "to_local", None)
    return tensor if to_local is None else to_local()


def detached_part(tensor: Tensor) -> Tensor:
    """The same memory as `local_part`, for changes that no gradient follows."""
    return local_part(tensor.detach())


def is_first_replica(module: nn.Module) -> bool:
    """Whether this rank is in the first of several groups that hold the same shards."""
    meshes = [parameter.device_mesh for parameter in module.parameters() if hasattr(parameter, "device_mesh")]
    replicated = [mesh for mesh in meshes if "replicate" in (mesh.mesh_dim_names or ())]
    return all(mesh.get_local_rank("replicate") == 0 for mesh in replicated[:1])
