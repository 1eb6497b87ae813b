"""What a JAX process saves of a training: the parts of its arrays that lie on its devices, as NumPy arrays.

Of a part that several devices hold, the first of them saves it, so that a whole model is saved once and a divided one
by every process that has parts of it.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from paceline.frameworks.durable_files import forget, write_durably

Tree = Any


class JaxCheckpoint:
    """A process's parts of a tree of arrays in one file. JAX cannot change an array, so loading makes new ones."""

    def __init__(self, name: str, get: Callable[[], Tree], put: Callable[[Tree], None]) -> None:
        self._name, self._get, self._put = name, get, put

    def save(self, folder: Path) -> int:
        """Writes all parts as bytes: NumPy's format does not know every type that JAX has."""
        parts: dict[str, Any] = {name: np.frombuffer(part.tobytes(), np.uint8) for name, part in self._parts().items()}

        def write(file: Path) -> None:
            with file.open("wb") as opened:
                np.savez(opened, **parts)

        return write_durably(self._file(folder), write)

    def load(self, folder: Path) -> None:
        """Reads the file from the disk and puts every part where its predecessor is."""
        forget([self._file(folder)])
        with np.load(self._file(folder)) as saved:
            self._replace(lambda name, part: np.frombuffer(saved[name].tobytes(), part.dtype).reshape(part.shape))

    def digest(self) -> str:
        """A hash of every byte, with names, shapes and types."""
        digest = hashlib.blake2b(digest_size=16)
        for name, part in self._parts().items():
            digest.update(f"{name} {part.dtype} {part.shape} ".encode())
            digest.update(part.tobytes())
        return digest.hexdigest()

    def erase(self) -> None:
        """Puts zeros in the place of all parts that this process saves."""
        self._replace(lambda _name, part: np.zeros_like(part))

    def _parts(self) -> dict[str, np.ndarray]:
        """Parts by the number of their array and their place in it."""
        return {
            f"{number}-{_place(shard)}": np.asarray(shard.data)
            for number, leaf in enumerate(jax.tree.leaves(self._get()))
            for shard in leaf.addressable_shards
            if shard.replica_id == 0
        }

    def _replace(self, value: Callable[[str, np.ndarray], np.ndarray]) -> None:
        """Gives every array new parts; devices that hold the same part get the same one."""
        leaves, structure = jax.tree.flatten(self._get())
        saved = self._parts()
        replaced = []
        for number, leaf in enumerate(leaves):
            parts = []
            for shard in leaf.addressable_shards:
                name = f"{number}-{_place(shard)}"
                new = value(name, saved[name]) if name in saved else shard.data
                parts.append(jax.device_put(new, shard.device))
            replaced.append(jax.make_array_from_single_device_arrays(leaf.shape, leaf.sharding, parts))
        self._put(jax.tree.unflatten(structure, replaced))

    def _file(self, folder: Path) -> Path:
        return folder / f"{self._name}.npz"


def _place(shard: Any) -> str:
    """The first index of a part along each side of its array."""
    return "-".join(str(side.start or 0) for side in shard.index)
