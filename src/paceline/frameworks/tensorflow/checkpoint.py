"""What a TensorFlow process saves of a training: all variables, by `tf.train.Checkpoint`."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

from paceline.frameworks.durable_files import forget, sync

PREFIX = "checkpoint"


class TfCheckpoint:
    """The variables of model and optimizer in TensorFlow's own format, one set of files for each process that saves."""

    def __init__(self, name: str, variables: Sequence[tf.Variable]) -> None:
        self._name, self._variables = name, list(variables)
        self._checkpoint = tf.train.Checkpoint(variables=self._variables)

    def save(self, folder: Path) -> int:
        """Writes the variables; TensorFlow renames its files when they are whole."""
        prefix = self._prefix(folder)
        prefix.parent.mkdir(exist_ok=True)
        self._checkpoint.write(str(prefix))
        files = self._files(folder)
        sync(files)
        return sum(file.stat().st_size for file in files)

    def load(self, folder: Path) -> None:
        """Reads the files from the disk into the variables."""
        forget(self._files(folder))
        self._checkpoint.read(str(self._prefix(folder))).assert_consumed()

    def digest(self) -> str:
        """A hash of every byte, with shapes and types."""
        digest = hashlib.blake2b(digest_size=16)
        for variable in self._variables:
            for array in self.arrays(variable):
                digest.update(f"{array.dtype} {array.shape} ".encode())
                digest.update(array.tobytes())
        return digest.hexdigest()

    def erase(self) -> None:
        """Sets all variables to zero."""
        for variable in self._variables:
            variable.assign(tf.zeros_like(tf.convert_to_tensor(variable)))

    def arrays(self, variable: tf.Variable) -> list[np.ndarray]:
        """The values of a variable; one whose parts are on several devices has several."""
        return [tf.convert_to_tensor(variable).numpy()]

    def _prefix(self, folder: Path) -> Path:
        return folder / self._name / PREFIX

    def _files(self, folder: Path) -> list[Path]:
        return sorted(self._prefix(folder).parent.glob(f"{PREFIX}.*"))
