"""RunSpec: what it refuses, in which words, and its identity."""

import pickle
from pathlib import Path

import pytest
from pydantic import ValidationError

from paceline.errors import SpecError
from paceline.spec import ModelFile, Optimizer, RunSpec

BATCH_AND_LENGTH = {"global_batch": 256, "epochs": 2}
MODEL = ModelFile(path=Path("net.py"), function="build", digest="0123456789abcdef")


def refusal(**fields):
    """The words in which these fields are refused."""
    with pytest.raises(SpecError) as caught:
        RunSpec.parse({**BATCH_AND_LENGTH, **fields}, "study trial")
    return str(caught.value)


def test_a_spec_cannot_be_changed():
    spec = RunSpec(**BATCH_AND_LENGTH)
    with pytest.raises(ValidationError):
        spec.workers = 2


def test_an_unknown_field_is_refused_with_the_nearest_name_and_where_it_was():
    assert refusal(wrokers=2) == "study trial: there is no field 'wrokers'; did you mean 'workers'?"


def test_an_unknown_field_of_the_optimizer_is_refused_with_the_nearest_name_there():
    assert refusal(optimizer={"momentun": 0.9}).endswith(
        "there is no field 'optimizer.momentun'; did you mean 'momentum'?"
    )


def test_an_unknown_field_like_nothing_known_gets_all_names():
    words = refusal(zzz=1)
    assert "there is no field 'zzz'; choose from " in words
    assert "workers" in words
    assert "global_batch" in words


def test_an_unknown_field_of_the_model_is_refused_with_the_nearest_name_there():
    assert "did you mean 'path'?" in refusal(model={"path": "net.py", "digest": "0", "pth": "net.py"})


def test_several_wrong_fields_are_all_named_at_once():
    words = refusal(wrokers=2, precision="fp12")
    assert "'wrokers'" in words
    assert "precision" in words


@pytest.mark.parametrize(
    "field", ["workers", "dataset_copies", "train_samples", "global_batch", "epochs", "cores_per_worker"]
)
def test_a_count_below_one_is_refused_with_the_least_allowed(field):
    assert f"{field} 0 is out of range; it must be at least 1" in refusal(**{field: 0})


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"classes": 1}, "classes 1 is out of range; it must be at least 2"),
        ({"seed": -1}, "seed -1 is out of range; it must be at least 0"),
        ({"timeout_seconds": 0}, "timeout_seconds 0 is out of range; it must be more than 0"),
        ({"optimizer": {"lr": 0}}, "optimizer.lr 0 is out of range; it must be more than 0"),
        ({"optimizer": {"momentum": 1}}, "optimizer.momentum 1 is out of range; it must be less than 1"),
    ],
)
def test_a_number_out_of_range_is_refused_with_the_range(fields, words):
    assert words in refusal(**fields)


@pytest.mark.parametrize(
    ("field", "choice"),
    [
        ("precision", "bf16-pure"),
        ("reduction", "bf16"),
        ("execution", "compiled"),
        ("memory_format", "channels_last"),
        ("device", "cuda-slice"),
        ("allocator", "tuned"),
        ("transport", "socket"),
    ],
)
def test_a_word_that_is_no_choice_is_refused_with_the_choices(field, choice):
    words = refusal(**{field: "nonsense"})
    assert f"{field} cannot be 'nonsense'; choose from " in words
    assert repr(choice) in words


def test_an_unknown_optimizer_is_refused_with_the_choices():
    assert "optimizer.name cannot be 'lion'; choose from 'adam', 'adamw', 'sgd', 'adagrad' or 'lbfgs'" in refusal(
        optimizer={"name": "lion"}
    )


@pytest.mark.parametrize("value", ["many", 2.5, None, [1]])
def test_a_worker_count_that_is_no_whole_number_is_refused_naming_field_and_value(value):
    assert f"workers {value!r} is not usable: input should be a valid integer" in refusal(workers=value)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_number_that_is_not_finite_is_refused(value):
    assert "timeout_seconds" in refusal(timeout_seconds=value)
    assert "optimizer.lr" in refusal(optimizer={"lr": value})


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_transport_without_slices_is_refused_with_what_to_do(device):
    words = refusal(device=device, transport="socket")
    assert f"transport socket goes with device cuda-slice, not {device}; leave one of them out" in words


def test_the_usual_transport_leaves_the_keys_of_stored_runs_as_they_were():
    sliced = {**BATCH_AND_LENGTH, "device": "cuda-slice", "slices": 4}
    keys = {transport: RunSpec(**sliced, transport=transport).key() for transport in ("auto", "socket")}
    assert keys["auto"] == RunSpec(**sliced).key() != keys["socket"]


@pytest.mark.parametrize("shape", [(), (0, 28, 28), (-1,)])
def test_a_shape_without_positive_sizes_is_refused(shape):
    assert "input_shape" in refusal(input_shape=shape)


@pytest.mark.parametrize("batches", [{}, {"global_batch": 256, "local_batch": 64}])
def test_neither_or_both_batches_are_refused_with_the_meaning_of_each(batches):
    with pytest.raises(SpecError) as caught:
        RunSpec.parse({"epochs": 2, **batches}, "study trial")
    assert str(caught.value) == (
        "study trial: give exactly one of global_batch (strong scaling: fixed for all workers together) "
        "and local_batch (weak scaling: fixed for each worker)"
    )


@pytest.mark.parametrize("lengths", [{}, {"epochs": 2, "steps": 10}])
def test_neither_or_both_of_epochs_and_steps_are_refused(lengths):
    with pytest.raises(SpecError, match="study trial: give exactly one of epochs and steps"):
        RunSpec.parse({"global_batch": 256, **lengths}, "study trial")


def test_a_fixed_global_batch_is_strong_scaling():
    spec = RunSpec(global_batch=256, workers=4, epochs=1)
    assert spec.scaling == "strong"
    assert spec.samples_per_step == 256


def test_a_fixed_local_batch_is_weak_scaling_and_grows_with_the_workers():
    spec = RunSpec(local_batch=256, workers=4, epochs=1)
    assert spec.scaling == "weak"
    assert spec.samples_per_step == 1024


def test_the_key_of_a_known_spec_never_changes():
    spec = RunSpec(
        workload="mnist-large",
        dataset="mnist",
        strategy="torch-ddp",
        knobs={"bucket_mb": 1.0},
        workers=2,
        global_batch=256,
        epochs=2,
        optimizer=Optimizer(name="sgd", lr=0.1),
    )
    assert spec.key() == "aaa362fb0232ac72"
    assert RunSpec(global_batch=32, epochs=1).key() == "3698aaf1a0cea040"


def test_equal_specs_have_equal_keys():
    spec = RunSpec(**BATCH_AND_LENGTH, knobs={"a": 1, "b": 2.5})
    assert spec.key() == RunSpec(**BATCH_AND_LENGTH, knobs={"b": 2.5, "a": 1}).key()
    assert spec.key() == RunSpec.model_validate_json(spec.model_dump_json()).key()


def test_saying_a_default_aloud_leaves_the_key_as_it_is():
    spec = RunSpec(**BATCH_AND_LENGTH)
    assert spec.key() == RunSpec(**BATCH_AND_LENGTH, workers=1, seed=0, optimizer={"lr": 0.001}, knobs={}).key()


@pytest.mark.parametrize(
    "changed",
    [
        {"workload": "mlp"},
        {"model": MODEL},
        {"options": {"depth": 2}},
        {"dataset": "mnist"},
        {"dataset_copies": 2},
        {"train_samples": 100},
        {"input_shape": (3, 8, 8)},
        {"classes": 3},
        {"strategy": "torch-ddp"},
        {"knobs": {"bucket_mb": 1.0}},
        {"workers": 2},
        {"global_batch": 512},
        {"global_batch": None, "local_batch": 256},
        {"epochs": 3},
        {"epochs": None, "steps": 2},
        {"seed": 1},
        {"optimizer": {"name": "sgd"}},
        {"optimizer": {"lr": 0.01}},
        {"optimizer": {"betas": (0.8, 0.999)}},
        {"optimizer": {"eps": 1e-8}},
        {"optimizer": {"weight_decay": 0.1}},
        {"optimizer": {"momentum": 0.9}},
        {"precision": "bf16"},
        {"reduction": "bf16"},
        {"offload": True},
        {"execution": "compiled"},
        {"memory_format": "contiguous"},
        {"device": "cuda"},
        {"cores_per_worker": 2},
        {"allocator": "default"},
        {"device": "cuda-slice", "transport": "socket"},
    ],
    ids=str,
)
def test_every_field_that_decides_what_a_run_does_changes_the_key(changed):
    assert RunSpec(**{**BATCH_AND_LENGTH, **changed}).key() != RunSpec(**BATCH_AND_LENGTH).key()


@pytest.mark.parametrize("field", ["timeout_seconds", "collective_timeout_seconds"])
def test_how_long_a_run_may_take_leaves_the_key_as_it_is(field):
    assert RunSpec(**BATCH_AND_LENGTH, **{field: 7.0}).key() == RunSpec(**BATCH_AND_LENGTH).key()


def test_the_place_of_a_model_file_leaves_the_key_as_it_is(tmp_path):
    files = [tmp_path / "here" / "net.py", tmp_path / "there" / "other.py"]
    for file in files:
        file.parent.mkdir()
        file.write_text("def build(): return 1\n")
    one, other = (RunSpec(**BATCH_AND_LENGTH, model=ModelFile.from_text(str(file))) for file in files)
    assert one.key() == other.key()


def test_the_text_of_a_model_file_changes_the_key(tmp_path):
    file = tmp_path / "net.py"
    file.write_text("def build(): return 1\n")
    before = RunSpec(**BATCH_AND_LENGTH, model=ModelFile.from_text(str(file))).key()
    file.write_text("def build(): return 2\n")
    assert RunSpec(**BATCH_AND_LENGTH, model=ModelFile.from_text(str(file))).key() != before


@pytest.mark.parametrize("deep", [False, True])
def test_a_changed_copy_never_has_the_key_of_another_run(deep: bool) -> None:
    first = RunSpec(**BATCH_AND_LENGTH)
    first.key()
    # A copy of a copy may well come to lie where the first was.
    second = first.model_copy(deep=deep)
    del first
    changed = [second.model_copy(update={"seed": seed}, deep=deep) for seed in range(1, 50)]
    assert len({spec.key() for spec in changed}) == 49
    assert second.key() not in {spec.key() for spec in changed}
    assert pickle.loads(pickle.dumps(changed[0])).model_copy(update={"seed": 77}).key() != changed[0].key()


def test_the_function_of_a_model_file_changes_the_key():
    small, large = (MODEL.model_copy(update={"function": name}) for name in ("small", "large"))
    assert RunSpec(**BATCH_AND_LENGTH, model=small).key() != RunSpec(**BATCH_AND_LENGTH, model=large).key()


def test_a_model_is_named_by_its_file_and_function_and_build_may_be_left_out(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text("def build(): return 1\n")
    plain, named = ModelFile.from_text("net.py"), ModelFile.from_text("net.py:large")
    assert plain.path == tmp_path.resolve() / "net.py"
    assert (plain.function, plain.label) == ("build", "net.py:build")
    assert (named.function, named.label) == ("large", "net.py:large")


def test_a_model_file_that_is_not_there_is_refused_with_the_place_looked_at_and_an_example(tmp_path):
    with pytest.raises(SpecError) as caught:
        ModelFile.from_text(f"{tmp_path}/nte.py:build")
    message = str(caught.value)
    assert message.startswith(f"--model {tmp_path}/nte.py:build: there is no file {tmp_path.resolve()}/nte.py")
    assert "give the path of a Python file, such as my.py:build" in message


def test_a_folder_is_no_model_file(tmp_path):
    with pytest.raises(SpecError, match="there is no file"):
        ModelFile.from_text(str(tmp_path))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"target_accuracy": 1.5}, "target_accuracy 1.5 is out of range; it must be at most 1"),
        ({"optimizer": {"schedule": "cosine", "final_lr": 2}}, "final_lr 2 is out of range; it must be at most 1"),
    ],
)
def test_shares_above_one_are_refused_in_a_sentence(fields, words):
    with pytest.raises(SpecError, match=words):
        RunSpec.parse({"global_batch": 8, "steps": 1, **fields}, "test")
