"""Fields and sources of data that are read while training goes on: who takes them, and what others say."""

from functools import partial

import pytest

from paceline.contract.user_model_facts import UserModelFacts
from paceline.errors import SpecError
from paceline.plan import complete, refusal, sample_count
from paceline.spec import ModelFile, RunSpec
from paceline.strategies import strategies
from paceline.typical import machine_with_everything

SHARED = ("batch", "rank", "workers")


def facts(source, framework="torch", takes=SHARED, samples=320):
    return UserModelFacts(
        framework, 10, samples, sequential=True, source=source, stream_takes=() if source == "dataset" else takes
    )


@pytest.fixture
def spec(tmp_path):
    (tmp_path / "net.py").write_text("def build(): pass\ndef data(): pass\n")
    file = ModelFile.from_text(str(tmp_path / "net.py"))

    def make(**fields):
        length = {} if "steps" in fields else {"epochs": 1}
        return complete(RunSpec(**{"model": file, "global_batch": 32, **length, **fields}))

    return make


def why_not(run, probed):
    return refusal(run, machine_with_everything(run.workers), lambda _spec: probed)


def complaint(**fields):
    with pytest.raises(ValueError) as caught:
        RunSpec(global_batch=8, steps=1, **fields)
    return str(caught.value)


def test_a_run_without_the_fields_has_the_key_it_had():
    assert RunSpec(global_batch=8, steps=1).key() == RunSpec(global_batch=8, steps=1, loader_workers=0).key()
    assert RunSpec(global_batch=8, steps=1).key() != RunSpec(global_batch=8, steps=1, loader_workers=1).key()


def test_reading_ahead_needs_processes_that_do_it():
    assert "prefetch 4 is how many batches each loader process reads ahead, and loader_workers is 0" in complaint(
        prefetch=4
    )


def test_pinned_memory_is_for_gpus():
    assert "pin_memory puts batches where a GPU can copy them from, and device cpu was asked for; leave" in complaint(
        pin_memory=True
    )


@pytest.mark.parametrize("source", ["memmap", "dataset"])
def test_samples_with_numbers_are_read_by_every_torch_strategy(spec, source):
    for name in ("torch-single", "torch-ddp", "torch-fsdp", "torch-zero", "torch-pipeline", "torch-layers"):
        run = spec(strategy=name, workers=1 if name == "torch-single" else 2)
        assert why_not(run, facts(source)) is None
    assert why_not(spec(strategy="torch-ddp", workers=2, loader_workers=2, prefetch=4), facts(source)) is None


def test_a_stream_is_read_where_each_worker_has_a_share_of_the_batch(spec):
    assert why_not(spec(strategy="torch-ddp", workers=2), facts("stream")) is None
    said = why_not(spec(strategy="torch-pipeline", workers=2), facts("stream"))
    assert said is not None and "gives a stream of batches, which torch-pipeline cannot read; use torch-" in said


def test_a_stream_that_is_not_shared_out_is_for_one_worker_alone(spec):
    alone = facts("stream", takes=("batch",))
    assert why_not(spec(strategy="torch-single"), alone) is None
    assert why_not(spec(strategy="torch-ddp", workers=2), alone) == (
        "data() of net.py:build gives a stream of batches, and the function that opens it takes no rank and no "
        "workers: all 2 workers of torch-ddp would train on the same samples; use parameters rank and workers, and "
        "give each its part"
    )


def test_a_worker_cannot_join_a_stream_in_the_middle(spec):
    run = spec(strategy="torch-downpour", workers=2, steps=10, membership="leave:2")
    said = why_not(run, facts("stream"))
    assert said is not None and "cannot go on in the middle; leave membership out" in said


def test_loader_fields_mean_nothing_for_data_in_memory(spec):
    assert why_not(spec(loader_workers=2), facts("arrays")) == (
        "loader_workers is for data that are read while torch-single trains, and these lie in memory; leave "
        "loader_workers out"
    )
    built_in = complete(RunSpec(global_batch=8, steps=1, loader_workers=2))
    said = refusal(built_in, machine_with_everything(1), lambda _spec: None)
    assert said is not None and "these lie in memory" in said


def test_a_stream_reads_ahead_as_its_own_function_does(spec):
    said = why_not(spec(loader_workers=2), facts("stream"))
    assert said is not None and "does not take loader_workers" in said and "use a parameter loader_workers" in said
    assert why_not(spec(loader_workers=2), facts("stream", takes=(*SHARED, "loader_workers"))) is None


@pytest.mark.parametrize(
    ("name", "framework"), [("tf-single", "keras"), ("jax-single", "jax"), ("torch-mesh", "torch")]
)
def test_who_reads_by_itself_refuses_loader_processes(spec, name, framework):
    said = why_not(spec(strategy=name, loader_workers=2), facts("memmap", framework))
    assert said == f"{name} reads its batches by itself; leave loader_workers out"


def test_what_a_framework_cannot_read_is_refused_with_those_that_can(spec):
    said = why_not(spec(strategy="tf-layers", workers=2), facts("memmap", "keras"))
    assert said is not None and "gives memory-mapped files, which tf-layers cannot read; use " in said
    assert said.endswith("tf-multiworker, tf-single")
    said = why_not(spec(strategy="jax-data", workers=2), facts("stream", "jax"))
    assert said == "data() of net.py:build gives a stream of batches, which jax-data cannot read; return arrays"
    said = why_not(spec(strategy="torch-ddp", workers=2), facts("tf.data"))
    assert said is not None and "gives a tf.data.Dataset, which torch-ddp cannot read" in said
    assert why_not(spec(strategy="tf-mirrored", workers=2), facts("tf.data", "keras")) is None


@pytest.mark.parametrize(("name", "framework", "fields", "words"), [
    ("tf-single", "keras", {"knobs": {"steps_per_execution": 4}}, "leave steps_per_execution out"),
    ("jax-single", "jax", {"knobs": {"steps_per_execution": 4}}, "leave steps_per_execution out"),
    ("tf-mirrored", "keras", {"knobs": {"loop": "fit"}}, "leave loop=fit out"),
    ("jax-single", "jax", {"accumulation": 2}, "leave accumulation out"),
    ("torch-single", "torch", {"execution": "graph", "device": "cuda"}, "replays steps over data on the GPU"),
])  # fmt: skip
def test_settings_that_need_data_on_the_device_are_refused(spec, name, framework, fields, words):
    said = why_not(spec(strategy=name, **fields), facts("memmap", framework))
    assert said is not None and words in said and name in said


def test_a_stream_of_unknown_length_wants_steps(spec):
    endless = partial(facts, "stream", samples=None)
    with pytest.raises(SpecError, match="does not say how many samples it has, and epochs 1 were asked for; give --st"):
        sample_count(spec(), lambda _spec: endless())
    assert sample_count(spec(steps=5), lambda _spec: endless()) == 5 * 32


def test_every_strategy_says_how_data_may_come_to_it():
    assert all("arrays" in chosen.needs.reads for chosen in strategies().values())
