"""From a study and what is done to the runs to make, in fair order, and those to skip, with reasons."""

from collections import Counter

import pytest

from paceline.contract.context import spec_facts
from paceline.contract.user_model_facts import UserModelFacts
from paceline.errors import ModelError, SpecError
from paceline.plan import (
    DEFAULT_EPOCHS,
    DEFAULT_GLOBAL_BATCH,
    canonical_knobs,
    complete,
    expand_strategies,
    make_plan,
    missing_defaults,
    refusal,
    sample_count,
)
from paceline.spec import ModelFile
from paceline.strategies import strategies, strategy
from paceline.study import Study

FIXED = {"strategy": "fake", "global_batch": 256, "epochs": 1}


def no_probe(_spec):
    raise AssertionError("a built-in model needs no probe")


def torch_probe(_spec):
    return UserModelFacts(framework="torch", parameters=10, train_samples=300)


@pytest.fixture
def plan(make_system):
    """The plan of a grid of fake runs."""

    def make(done=frozenset(), repeats=1, order_seed=0, **factors):
        study = Study(name="trial", fixed=FIXED, factors=factors, repeats=repeats, order_seed=order_seed)
        return make_plan(study, done, make_system(), no_probe)

    return make


@pytest.fixture
def own_model(tmp_path):
    """A model file with this text."""

    def make(text="def build(): pass\n", name="net.py"):
        (tmp_path / name).write_text(text)
        return ModelFile.from_text(str(tmp_path / name))

    return make


def seeds(planned, repeat=0):
    return [run.spec.seed for run in planned.to_run if run.repeat == repeat]


def words(function, *arguments):
    with pytest.raises(SpecError) as caught:
        function(*arguments)
    return str(caught.value)


def test_every_run_of_the_study_is_planned_once_per_repeat(plan):
    planned = plan(repeats=3, seed=[1, 2, 3, 4])
    assert Counter((run.spec.seed, run.repeat) for run in planned.to_run) == Counter(
        (seed, repeat) for seed in (1, 2, 3, 4) for repeat in range(3)
    )
    assert len(planned.to_run) + planned.done == 12
    assert planned.study == "trial"


def test_repeats_come_one_after_the_other_so_that_a_slow_hour_hits_all_runs_alike(plan):
    assert [run.repeat for run in plan(repeats=3, seed=[1, 2]).to_run] == [0, 0, 1, 1, 2, 2]


def test_each_repeat_has_a_random_order_of_its_own(plan):
    many = list(range(20))
    planned = plan(repeats=3, seed=many)
    orders = [seeds(planned, repeat) for repeat in range(3)]
    assert all(sorted(order) == many for order in orders)
    assert len({tuple(order) for order in [*orders, many]}) == 4


def test_the_order_depends_on_the_order_seed_alone(plan):
    many = list(range(20))
    assert seeds(plan(seed=many)) == seeds(plan(seed=many))
    assert seeds(plan(seed=many, order_seed=1)) != seeds(plan(seed=many))


def test_runs_that_are_done_are_left_out_and_counted(plan):
    everything = plan(repeats=2, seed=[1, 2, 3])
    done = {(run.spec.key(), run.repeat) for run in everything.to_run[:4]}
    rest = plan(done, repeats=2, seed=[1, 2, 3])
    assert rest.to_run == everything.to_run[4:]
    assert (rest.done, len(rest.to_run)) == (4, 2)


def test_what_other_studies_did_is_not_counted(plan):
    assert plan({("0123456789abcdef", 0)}, seed=[1, 2]).done == 0


def test_a_run_done_in_one_repeat_is_still_made_in_the_others(plan):
    (key,) = plan(seed=[1]).keys
    assert [run.repeat for run in plan({(key, 0)}, repeats=3, seed=[1]).to_run] == [1, 2]


def test_a_study_knows_the_keys_of_all_its_runs_also_of_those_skipped(make_system):
    study = Study(fixed={**FIXED, "dataset": "synthetic"}, factors={"strategy": ["fake", "torch-ddp"], "seed": [1, 2]})
    planned = make_plan(study, set(), make_system(frameworks=()), no_probe)
    assert len(planned.keys) == 4
    assert {run.spec.key() for run in (*planned.to_run, *planned.skipped)} == set(planned.keys)


def test_a_skipped_run_is_listed_once_with_its_reason_and_not_counted(make_system):
    study = Study(fixed=FIXED, factors={"strategy": ["fake", "torch-ddp"]}, repeats=3)
    planned = make_plan(study, set(), make_system(frameworks=()), no_probe)
    (skipped,) = planned.skipped
    assert skipped.spec.strategy == "torch-ddp"
    assert skipped.skip_reason == "torch is not installed; install paceline[torch]"
    assert len(planned.to_run) + planned.done == 3


def test_runs_that_come_to_the_same_are_made_once(make_system):
    study = Study(fixed=FIXED, factors={"knobs": {"bucket_mb": [1.0, 25.0]}, "strategy": ["fake", "torch-ddp"]})
    planned = make_plan(study, set(), make_system(), no_probe)
    assert sorted(run.spec.strategy for run in planned.to_run) == ["fake", "torch-ddp", "torch-ddp"]


def test_a_batch_that_does_not_divide_is_refused_with_the_multiple_to_use(plan):
    study = Study(fixed={**FIXED, "global_batch": 30, "workers": 4})
    assert words(make_plan, study, set(), None, no_probe) == (
        "global_batch 30 does not divide over 4 workers; use a multiple of 4"
    )


def test_a_batch_larger_than_the_data_is_refused_with_both_numbers_and_the_ways_out(make_spec, make_system):
    spec = complete(make_spec(global_batch=6000))
    message = words(refusal, spec, make_system(), no_probe)
    assert message.startswith("global_batch 6000 is larger than the 5000 training samples of mnist-5k; ")
    assert "use a smaller batch or more data (dataset_copies, train_samples)" in message


def test_copies_of_the_data_make_room_for_a_larger_batch(make_spec, make_system):
    assert refusal(complete(make_spec(global_batch=6000, dataset_copies=2)), make_system(), no_probe) is None


def test_a_framework_that_is_not_installed_is_a_reason_to_skip_with_how_to_get_it(make_spec, make_system):
    spec = complete(make_spec(strategy="torch-ddp"))
    assert refusal(spec, make_system(frameworks=("jax",)), no_probe) == (
        "torch is not installed; install paceline[torch]"
    )


def test_a_strategy_with_a_fixed_worker_count_is_skipped_with_any_other(make_spec, make_system):
    spec = complete(make_spec(strategy="torch-single", workers=2))
    assert refusal(spec, make_system(), no_probe) == "torch-single always has 1 worker; 2 were asked for"


def test_too_few_gpus_are_a_reason_to_skip_with_both_numbers(make_spec, make_system):
    spec = complete(make_spec(strategy="torch-ddp", workers=4, device="cuda"))
    assert refusal(spec, make_system(gpus=2), no_probe) == "4 workers need as many GPUs and this machine has 2"
    assert refusal(spec, make_system(gpus=4), no_probe) is None


def test_a_machine_without_a_gpu_is_a_reason_to_skip(make_spec, make_system):
    spec = complete(make_spec(strategy="torch-ddp", device="cuda"))
    assert refusal(spec, make_system(), no_probe) == "device cuda was asked for and this machine has no CUDA device"


@pytest.mark.parametrize(
    ("field", "value", "offered"),
    [("device", "cuda", "cpu"), ("precision", "bf16", "fp32"), ("execution", "graph", "eager")],
)
def test_what_a_strategy_does_not_offer_is_a_reason_to_skip_with_what_it_does(
    make_spec, make_system, field, value, offered
):
    assert refusal(complete(make_spec(**{field: value})), make_system(gpus=1), no_probe) == (
        f"fake does not run with {field} {value}; it offers {offered}"
    )


def test_a_precision_that_only_gpus_have_is_a_reason_to_skip_on_cores(make_spec, make_system):
    spec = complete(make_spec(strategy="torch-single", precision="tf32"))
    assert "tf32" in strategy("torch-single").needs.precisions
    assert "it exists on CUDA devices only; use fp32 or bf16" in str(refusal(spec, make_system(), no_probe))


def test_a_run_that_can_be_made_here_has_no_reason_against_it(make_spec, make_system):
    assert refusal(complete(make_spec(strategy="torch-ddp", workers=2)), make_system(), no_probe) is None


def test_a_model_of_another_framework_is_refused_before_anything_starts(make_spec, make_system, own_model):
    spec = complete(make_spec(strategy="torch-ddp", model=own_model(), dataset="mnist-5k"))
    keras = UserModelFacts(framework="keras", parameters=1, train_samples=1)
    assert words(refusal, spec, make_system(), lambda _spec: keras).startswith(
        "net.py:build returns a Keras model, and torch-ddp trains a torch.nn.Module; return that from net.py, "
        "or use a strategy for what it returns ("
    )
    assert refusal(spec, make_system(), torch_probe) is None


def test_the_samples_of_a_users_own_data_come_from_the_probe(make_spec, make_system, own_model):
    spec = complete(make_spec(model=own_model("def build(): pass\ndef data(): pass\n"), global_batch=400))
    assert sample_count(spec, torch_probe) == 300
    assert words(refusal, spec, make_system(), torch_probe).startswith(
        "global_batch 400 is larger than the 300 training samples of own"
    )


def test_a_users_own_model_is_not_looked_at_without_its_framework(make_spec, make_system, own_model):
    def failing_probe(_spec):
        raise ModelError("No module named 'torch'")

    spec = complete(make_spec(strategy="torch-ddp", model=own_model("def build(): pass\ndef data(): pass\n")))
    assert "torch is not installed" in refusal(spec, make_system(frameworks=()), failing_probe)


@pytest.mark.parametrize(
    ("given", "added"),
    [
        ({}, {"global_batch": DEFAULT_GLOBAL_BATCH, "epochs": DEFAULT_EPOCHS}),
        ({"local_batch": 8}, {"epochs": DEFAULT_EPOCHS}),
        ({"steps": 8}, {"global_batch": DEFAULT_GLOBAL_BATCH}),
        ({"global_batch": 8, "epochs": 1}, {}),
    ],
)
def test_batch_and_length_have_defaults_where_nothing_was_said(given, added):
    assert missing_defaults(given) == added


def test_a_pattern_stands_for_all_strategies_that_match_it():
    assert expand_strategies(["torch-*"]) == [name for name in strategies() if name.startswith("torch-")]
    assert expand_strategies(["*"]) == list(strategies())


def test_patterns_and_names_keep_their_order_and_come_once():
    chosen = expand_strategies(["fake", "torch-ddp", "torch-*", "f?ke"])
    assert chosen[:2] == ["fake", "torch-ddp"]
    assert len(chosen) == len(set(chosen))


def test_a_plain_name_is_left_as_it_is_for_the_plan_to_judge():
    assert expand_strategies(["no-such-strategy"]) == ["no-such-strategy"]


def test_a_pattern_that_matches_nothing_is_refused_with_a_hint():
    assert words(expand_strategies, ["torhc-*"]).startswith("no strategy matches 'torhc-*'; ")


def test_a_strategy_that_is_not_there_is_refused_with_the_nearest_name(make_spec):
    assert words(complete, make_spec(strategy="torch-singel")) == (
        "there is no strategy 'torch-singel'; did you mean 'torch-single'?"
    )


def test_a_completed_run_names_its_data(make_spec):
    assert complete(make_spec()).dataset == "mnist-5k"
    assert complete(make_spec(workload="transformer")).dataset == "tokens"
    assert complete(make_spec(dataset="mnist")).dataset == "mnist"
    assert complete(make_spec(input_shape=(3, 8, 8))).dataset == "synthetic"


def test_a_transformer_may_be_given_the_length_of_its_sequences(make_spec):
    assert complete(make_spec(workload="transformer", input_shape=(32,))).dataset == "tokens"


def test_completing_twice_changes_nothing(make_spec):
    once = complete(make_spec(knobs={"step_ms": 5}, workload="mlp", options={"depth": 2}))
    assert complete(once) == once


def test_saying_a_default_knob_or_option_aloud_makes_the_same_run(make_spec):
    plain = complete(make_spec(workload="mlp"))
    assert complete(make_spec(workload="mlp", options={"depth": 4}, knobs={"step_ms": 10})).key() == plain.key()
    assert complete(make_spec(workload="mlp", dataset="mnist-5k")).key() == plain.key()


def test_another_option_makes_another_run(make_spec):
    assert complete(make_spec(workload="mlp", options={"depth": 5})).options == {"depth": 5}


def test_data_that_a_workload_cannot_train_on_are_refused_with_those_it_can(make_spec):
    assert words(complete, make_spec(workload="transformer", dataset="mnist")) == (
        "workload transformer cannot train on 'mnist'; choose from text, tokens"
    )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"input_shape": (3, 8, 8)}, "input_shape (3, 8, 8) was asked for, but mnist-5k has (1, 28, 28)"),
        ({"classes": 7}, "classes 7 was asked for, but mnist-5k has 10"),
    ],
)
def test_a_shape_that_the_data_do_not_have_is_refused_with_the_one_they_have(make_spec, fields, message):
    said = words(complete, make_spec(dataset="mnist-5k", **fields))
    assert said == f"{message}; leave it out or use synthetic"


def test_the_shape_that_the_data_have_may_be_said(make_spec):
    assert complete(make_spec(dataset="mnist-5k", input_shape=(1, 28, 28), classes=10)).dataset == "mnist-5k"


def test_a_users_own_model_names_the_workload_and_brings_its_data(make_spec, own_model):
    spec = complete(make_spec(model=own_model("def build(): pass\ndef data(): pass\n")))
    assert (spec.workload, spec.dataset) == ("net.py:build", "own")


def test_a_users_own_model_may_be_trained_on_other_data(make_spec, own_model):
    assert complete(make_spec(model=own_model(), dataset="mnist-5k")).dataset == "mnist-5k"
    assert complete(make_spec(model=own_model(), input_shape=(3, 8, 8), classes=4)).dataset == "synthetic"


def test_a_users_own_model_without_data_is_refused_with_every_way_out(make_spec, own_model):
    assert words(complete, make_spec(model=own_model())) == (
        "net.py:build says nothing about its data; add a function data() to net.py, or give --dataset, "
        "or --input-shape with --classes for synthetic data"
    )


def test_a_data_set_that_is_not_there_is_refused_with_the_nearest_name(make_spec, own_model):
    assert words(complete, make_spec(model=own_model(), dataset="mnist-5")) == (
        "there is no data set 'mnist-5'; did you mean 'mnist-5k'?"
    )


def test_a_model_file_under_another_name_is_the_same_run(make_spec, own_model):
    one, other = (complete(make_spec(model=own_model(name=name), dataset="mnist-5k")) for name in ("a.py", "b.py"))
    assert one.key() == other.key()


def test_knobs_of_other_strategies_are_dropped():
    assert canonical_knobs(strategy("fake"), {"bucket_mb": 1.0, "step_ms": 2.0}) == {"step_ms": 2.0}


def test_knobs_with_their_default_are_dropped():
    assert canonical_knobs(strategy("fake"), {"step_ms": 10.0, "fault": "none", "jitter": 0.5}) == {"jitter": 0.5}


def test_a_whole_number_will_do_where_a_real_one_is_wanted():
    knobs = canonical_knobs(strategy("torch-ddp"), {"bucket_mb": 1})
    assert knobs == {"bucket_mb": 1.0}
    assert type(knobs["bucket_mb"]) is float


def test_knobs_come_in_one_order_whatever_way_they_were_given():
    given = {"step_ms": 2.0, "jitter": 0.5}
    assert list(canonical_knobs(strategy("fake"), given)) == list(
        canonical_knobs(strategy("fake"), dict(reversed(given.items())))
    )


def test_a_knob_that_no_strategy_has_is_refused_with_the_nearest_name():
    assert words(canonical_knobs, strategy("fake"), {"bucket_bm": 1.0}) == (
        "no strategy has a knob 'bucket_bm'; did you mean 'bucket_mb'?"
    )


@pytest.mark.parametrize(
    ("name", "value", "example"), [("step_ms", "long", "10.0"), ("fault_step", 1.5, "1"), ("real_time", 1, "False")]
)
def test_a_knob_of_the_wrong_kind_is_refused_with_an_example(name, value, example):
    assert words(canonical_knobs, strategy("fake"), {name: value}) == (
        f"knob {name} of fake cannot be {value!r}; give such as {example}"
    )


def test_a_knob_that_is_no_choice_is_refused_with_the_choices():
    message = words(canonical_knobs, strategy("fake"), {"fault": "flood"})
    assert message.startswith("knob fault of fake cannot be 'flood'; choose from none, fail, ")


def test_the_facts_of_a_run_are_those_of_its_model_on_its_data(make_spec):
    assert spec_facts(complete(make_spec())).parameters == 402_442
    assert spec_facts(complete(make_spec(workload="mnist-large"))).parameters == 4_104_202


def test_the_facts_follow_the_shape_and_the_classes_asked_for(make_spec):
    spec = complete(make_spec(workload="mlp", input_shape=(3, 2, 2), classes=5, options={"depth": 1, "width": 7}))
    assert spec_facts(spec).parameters == (12 * 7 + 7) + (7 * 5 + 5)


def test_the_facts_of_a_model_on_data_without_a_fixed_shape_come_from_a_look_at_them(make_spec):
    spec = complete(make_spec(workload="transformer", options={"depth": 1, "width": 8, "heads": 2}))
    block = 12 * 8 * 8 + 13 * 8
    assert spec_facts(spec).parameters == (256 + 64) * 8 + block + 2 * 8 + (8 * 256 + 256)
