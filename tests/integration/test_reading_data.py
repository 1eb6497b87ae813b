"""Data that are read while training goes on: mapped files, slow data sets and streams, trained by real processes."""

from pathlib import Path

import numpy as np
import pytest

from integration.conftest import Ended, Tool
from paceline.record import Record

TORCH = """
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

HERE = Path(__file__).parent


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Linear(1024, 4)

    def forward(self, pixels):
        return self.layers(pixels.float() / 255)


def build():
    return Net()


def arrays(mode):
    x, y = (np.load(HERE / name, mmap_mode=mode) for name in ("x.npy", "y.npy"))
    return x[:256], y[:256], x[256:320], y[256:320]
"""
IN_MEMORY = TORCH + "def data():\n    return tuple(np.array(array) for array in arrays('r'))\n"
# The whole file, of which little is trained on.
MAPPED = TORCH + "def data():\n    x, y = (np.load(HERE / n, mmap_mode='r') for n in ('x.npy', 'y.npy'))\n"
MAPPED += "    return x, y, x[256:320], y[256:320]\n"
SLOW = (
    TORCH
    + """
class Slow(torch.utils.data.Dataset):
    def __init__(self, x, y, seconds):
        self.x, self.y, self.seconds = x, y, seconds

    def __len__(self):
        return len(self.x)

    def __getitems__(self, rows):
        time.sleep(self.seconds)
        return [{"pixels": self.x[row], "targets": self.y[row]} for row in rows]


def collate(samples):
    pixels, targets = (torch.from_numpy(np.stack([s[name] for s in samples])) for name in ("pixels", "targets"))
    return {"pixels": pixels}, targets


def data():
    a, b, c, d = arrays("r")
    return Slow(a, b, 0.01), Slow(c, d, 0.0)
"""
)
STREAM = (
    TORCH
    + """
def train(rank, workers, batch, epoch):
    a, b, _, _ = arrays("r")
    for start in range(rank * batch, len(a), workers * batch):
        with (HERE / f"seen-{workers}-{rank}.txt").open("a") as notes:
            notes.write(f"{epoch}:{start}\\n")
        yield a[start : start + batch], b[start : start + batch]


train.samples = 256


def test(rank, workers, batch):
    _, _, c, d = arrays("r")
    return ((c[start : start + batch], d[start : start + batch]) for start in range(rank * batch, 64, workers * batch))


def data():
    return train, test
"""
)
BROKEN = """
class Broken:
    def __len__(self):
        return 9

    def __getitem__(self, row):
        raise KeyError("a column")
"""
BATCH = ("--global-batch", "32", "--epochs", "2")
SAMPLES, PIXELS = 262_144, 1024


@pytest.fixture(scope="module")
def folder(shared_tool: Tool) -> Tool:
    """A folder with a file of 256 MB of pixels, most of them black and never written, and the classes to them."""
    generator = np.random.default_rng(0)
    pixels = np.lib.format.open_memmap(shared_tool.folder / "x.npy", "w+", np.uint8, (SAMPLES, PIXELS))
    pixels[:1024] = generator.integers(0, 256, (1024, PIXELS))
    del pixels
    np.save(shared_tool.folder / "y.npy", generator.integers(0, 4, SAMPLES))
    for name, text in (("memory", IN_MEMORY), ("mapped", MAPPED), ("slow", SLOW), ("stream", STREAM)):
        shared_tool.write(f"{name}.py", text)
    return shared_tool


def run(tool: Tool, name: str, *words: str) -> Ended:
    ended = tool("run", "--model", f"{name}.py", "--db", f"{name}.db", *words)
    assert ended.code == 0, ended.said
    return ended


def losses(records: list[Record]) -> list[tuple[float | None, ...]]:
    return [record.losses for record in records if record.ok and not record.spec.instrumented]


@pytest.fixture(scope="module")
def slow(folder: Tool) -> Ended:
    """A data set that sleeps for 10 ms in each batch, on one and two workers, with and without loader processes."""
    pytest.importorskip("torch", reason="PyTorch is not installed")
    run(folder, "slow", "--strategy", "torch-ddp", "--workers", "1", "--loader-workers", "2", *BATCH)
    return run(folder, "slow", "--strategy", "torch-ddp", "--workers", "1,2", "--breakdown", *BATCH)


@pytest.mark.torch
def test_a_slow_data_set_trains_as_its_arrays_do_whoever_reads_it(folder: Tool, slow: Ended) -> None:
    run(folder, "memory", "--strategy", "torch-single", "--workers", "1", *BATCH)
    (expected,) = losses(folder.records("memory.db"))
    read = losses(folder.records("slow.db"))
    assert len(read) == 3
    for each in read:
        assert each == pytest.approx(expected, rel=1e-4)


@pytest.mark.torch
def test_a_slow_loader_is_named_with_its_share_in_every_step(folder: Tool, slow: Ended) -> None:
    records = [record for record in folder.records("slow.db") if not record.spec.loader_workers]
    timed = [record for record in records if not record.spec.instrumented]
    assert [sorted(record.input_seconds) for record in timed] == [[0], [0, 1]]
    for record in timed:
        assert all(min(waits) >= 0.01 and len(waits) == 16 for waits in record.input_seconds.values())
        assert {finding.code for finding in record.findings} >= {"input_bound"}
    instrumented = [part for record in records for part in record.breakdown]
    assert len(instrumented) == 3 and all(part.input >= 0.01 for part in instrumented)
    assert "reading data, not the strategy, sets the pace" in slow.said
    explained = folder("explain", "--db", "slow.db").said
    assert "Reading data, not the strategy, sets the pace: waiting for the batch takes" in explained
    assert "for each worker would keep up (--loader-workers" in explained


@pytest.mark.torch
def test_loader_processes_read_what_is_seen_as_their_own_time(folder: Tool, slow: Ended) -> None:
    (record,) = [record for record in folder.records("slow.db") if record.spec.loader_workers]
    loading = record.ranks[0].loading
    assert loading is not None and loading.processes == 2
    assert loading.read_seconds is not None and loading.read_seconds >= 0.01


@pytest.mark.torch
def test_advice_names_a_loader_that_an_earlier_run_waited_for(folder: Tool, slow: Ended) -> None:
    said = folder("recommend", "--model", "slow.py", "--db", "slow.db", "--workers", "1,2", "--strategy",
                  "torch-single,torch-ddp", "--global-batch", "32").said  # fmt: skip
    assert "Reading data, not the strategy, would set the pace: with one process for each worker, " in said
    refused = folder("recommend", "--model", "slow.py", "--db", "slow.db", "--workers", "1", "--strategy",
                     "torch-single", "--global-batch", "32", "--emit", "script")  # fmt: skip
    assert refused.code == 2
    assert "a script cannot be written: data() of slow.py:build gives a data set of samples" in refused.said


@pytest.mark.torch
def test_a_mapped_file_is_not_held_by_any_worker(folder: Tool) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    run(folder, "mapped", "--strategy", "torch-ddp", "--workers", "2", "--global-batch", "32", "--steps", "20")
    (record,) = folder.records("mapped.db")
    for rank in record.ranks:
        assert rank.memory is not None and rank.loading is not None
        assert rank.memory.peak_bytes - rank.memory.baseline_bytes < SAMPLES * PIXELS / 2


@pytest.mark.torch
def test_each_worker_reads_its_own_part_of_a_stream_whose_order_is_said_to_be_its_own(folder: Tool) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    said = run(folder, "stream", "--strategy", "torch-ddp", "--workers", "2", *BATCH).said
    parts = [(folder.folder / f"seen-2-{rank}.txt").read_text().split() for rank in (0, 1)]
    assert parts[0] == [f"{epoch}:{start}" for epoch in (0, 1) for start in range(0, 256, 32)]
    assert parts[1] == [f"{epoch}:{start}" for epoch in (0, 1) for start in range(16, 256, 32)]
    assert "order of its own" in said and "compare times and not losses" in said
    (record,) = folder.records("stream.db")
    assert record.epochs[-1].test_loss is not None and record.epochs[0].samples == 256


@pytest.mark.torch
@pytest.mark.parametrize(("returned", "words"), [
    ("torch.utils.data.DataLoader([1, 2]), [1]", "returns a DataLoader for train, of which each worker needs one of"),
    ("train, lambda shards: []", "wants a parameter shards, which nobody has; it may take rank, workers, batch"),
    ("Broken(), Broken()", "data() of wrong.py:build fails with KeyError: 'a column' (wrong.py, line"),
    ("'/nowhere/at/all'", "data() of wrong.py:build returns /nowhere/at/all, which is not there; return a folder"),
    (
        "lambda batch: torch.utils.data.DataLoader(Broken(), batch, num_workers=1), lambda batch: []",
        "data() of wrong.py:build fails with KeyError: 'a column', in a process of a DataLoader",
    ),
])  # fmt: skip
def test_wrong_sources_are_refused_before_anything_starts(tool: Tool, returned: str, words: str) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    tool.write("wrong.py", f"{TORCH}{BROKEN}\ntrain = lambda batch: []\ndef data():\n    return {returned}\n")
    ended = tool("run", "--model", "wrong.py", *BATCH)
    assert ended.code == 2 and words in ended.said
    assert not (tool.folder / "paceline.db").exists()


KERAS = """
from pathlib import Path
import keras
import numpy as np

HERE = Path(__file__).parent


def build():
    return keras.Sequential([keras.Input((1024,)), keras.layers.Rescaling(1 / 255), keras.layers.Dense(4)])


def arrays():
    x, y = (np.load(HERE / name, mmap_mode="r") for name in ("x.npy", "y.npy"))
    return x[:256].astype(np.float32), y[:256], x[256:320].astype(np.float32), y[256:320]
"""
KERAS_STREAM = (
    KERAS
    + """
def data():
    import tensorflow as tf

    a, b, c, d = arrays()
    return tuple(tf.data.Dataset.from_tensor_slices(part).repeat(1) for part in ((a, b), (c, d)))
"""
)
KERAS_SAMPLES = (
    KERAS
    + """
class Samples:
    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, row):
        return self.x[row], self.y[row]


def data():
    a, b, c, d = arrays()
    return Samples(a, b), Samples(c, d)
"""
)
# The same samples with two inputs, of which the model needs one.
KERAS_NAMED = KERAS_SAMPLES.replace("return self.x[row], self", 'return {"x": self.x[row], "more": self.x[row]}, self')
KERAS_NAMED += """

def build():
    x, more = keras.Input((1024,), name="x"), keras.Input((1024,), name="more")
    return keras.Model({"x": x, "more": more}, keras.layers.Dense(4)(x / 255 + 0 * more))
"""


def keras_losses(folder: Tool, name: str, text: str) -> list[tuple[float | None, ...]]:
    folder.write(f"{name}.py", text)
    run(folder, name, "--strategy", "tf-mirrored", "--workers", "2", *BATCH)
    return losses(folder.records(f"{name}.db"))


@pytest.mark.tensorflow
@pytest.mark.parametrize("text", [KERAS_NAMED, pytest.param(KERAS_SAMPLES, marks=pytest.mark.soak)], ids=["named", ""])
def test_tensorflow_reads_samples_as_it_takes_arrays(folder: Tool, text: str) -> None:
    pytest.importorskip("keras", reason="Keras is not installed")
    (arrays,) = keras_losses(folder, "keras_memory", KERAS + "\ndef data():\n    return arrays()\n")
    (samples,) = keras_losses(folder, "keras_samples", text)
    assert samples == pytest.approx(arrays, rel=1e-4)


@pytest.mark.tensorflow
def test_tensorflow_reads_its_own_data_sets(folder: Tool) -> None:
    pytest.importorskip("keras", reason="Keras is not installed")
    keras_losses(folder, "keras_stream", KERAS_STREAM)
    (stream,) = folder.records("keras_stream.db")
    assert "order_of_its_own" in {finding.code for finding in stream.findings} and stream.epochs[0].samples == 256


JAX = """
from pathlib import Path
import jax
import numpy as np

HERE = Path(__file__).parent


def build():
    init = lambda key: {{"w": jax.random.normal(key, (1024, 4)) / 32}}
    return init, lambda p, x: (x.astype("float32") / 255) @ p["w"]


def data():
    x, y = (np.load(HERE / name, mmap_mode={mode!r}) for name in ("x.npy", "y.npy"))
    return x[:256], y[:256], x[256:320], y[256:320]
"""


@pytest.mark.jax
def test_jax_reads_mapped_files_as_it_takes_arrays(folder: Tool) -> None:
    pytest.importorskip("jax", reason="JAX is not installed")
    for name, mode in (("jax_memory", None), ("jax_mapped", "r")):
        folder.write(f"{name}.py", JAX.format(mode=mode))
        run(folder, name, "--strategy", "jax-data", "--workers", "2", *BATCH)
    (arrays,), (mapped,) = (losses(folder.records(f"jax_{name}.db")) for name in ("memory", "mapped"))
    assert mapped == pytest.approx(arrays, rel=1e-5)
    assert folder.records("jax_mapped.db")[0].ranks[0].loading is not None


def test_a_hugging_face_folder_is_read_where_the_library_is_there(folder: Tool, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    from paceline.workloads.user_sources import loaded_data

    rows = datasets.Dataset.from_dict({"x": [[1.0, 2.0], [3.0, 4.0]], "label": [0, 1]})
    datasets.DatasetDict({"train": rows, "test": rows}).save_to_disk(tmp_path / "rows")
    data = loaded_data(tmp_path / "rows", None, "net.py:build")
    assert data is not None and data.train_samples == 2
    assert data.trial.train_inputs["labels"].tolist() == [0, 1]
