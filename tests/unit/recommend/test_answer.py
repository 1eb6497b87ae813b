"""Ranked answers: what is picked, what ties, what is left out and why."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from paceline.analysis.batches.critical import CriticalBatch
from paceline.errors import SpecError
from paceline.execute import Listener
from paceline.predict.question import Question
from paceline.recommend.answer import TIE, Measurement, recommend, tie_of, with_measurements
from paceline.recommend.candidates import worker_counts
from paceline.recommend.lighter import predict_fitting
from paceline.recommend.objectives import OBJECTIVES, objective
from paceline.recommend.reasons import break_even, explain, facts_about
from paceline.recommend.trials import try_best
from paceline.record import Epoch, Record
from paceline.store import Store
from paceline.systems.files import load_hardware


def question(**fields: object) -> Question:
    values = {"hardware": load_hardware("8xh100-nvlink"), "workload": "mnist-small", "workers": (1, 2, 4, 8),
              "strategies": ("torch-single", "torch-ddp", "torch-fsdp", "torch-layers", "torch-local-sgd")}  # fmt: skip
    return Question(**{**values, **fields})


LARGE = {"workload": "transformer", "options": {"depth": 12, "width": 2048}}


def test_one_worker_is_recommended_plainly_where_more_do_not_pay() -> None:
    answer = recommend(question())
    assert answer.pick is not None and answer.pick.spec.workers == 1
    said = " ".join(explain(answer))
    assert "One worker is enough" in said
    assert "would pay from a global batch of about" in said


def test_more_workers_are_recommended_where_they_pay() -> None:
    answer = recommend(question(**LARGE, global_batches=(1024,), precision="tf32"))
    assert answer.pick is not None
    assert (answer.pick.spec.strategy, answer.pick.spec.workers) == ("torch-ddp", 8)
    assert "times one worker" in " ".join(explain(answer))


def test_the_ranking_is_by_the_objective_and_ties_are_near_the_best() -> None:
    answer = recommend(question(**LARGE, global_batches=(256,)))
    sure = [one for one in answer.ranked if one.caveat is None]
    values = [one.value.value for one in sure]
    assert values == sorted(values, reverse=True)
    for one in sure:
        assert one.tied == (one.behind <= tie_of(answer, sure[0]))
    assert tie_of(answer, sure[0]) >= TIE
    assert sure[0].behind == 0


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_objective_picks_the_best_or_one_that_ties_with_it(name: str) -> None:
    answer = recommend(question(**LARGE, global_batches=(256,), price_per_device_hour=2.0), name)
    assert answer.pick is not None and answer.pick.tied
    assert answer.objective.text(answer.pick.best_known)


def test_energy_and_cost_want_as_few_devices_as_possible() -> None:
    for name in ("energy", "cost"):
        answer = recommend(question(), name)
        assert answer.pick is not None and answer.pick.spec.workers == 1


def test_an_asynchronous_strategy_is_never_picked_but_told() -> None:
    slow = load_hardware("8xh100-nvlink", "1g").model_copy(update={"node_devices": 1})
    answer = recommend(question(hardware=slow, **LARGE, global_batches=(1024,), workers=(8,)))
    assert answer.pick is not None and answer.pick.spec.strategy != "torch-local-sgd"
    assert any("improves the model less" in sentence for sentence in explain(answer))


def test_what_cannot_run_or_does_not_fit_is_left_out_with_its_reason() -> None:
    answer = recommend(question(workload="transformer", options={"depth": 48, "width": 8192}, workers=(64,)))
    assert "a worker would hold" in answer.excluded["torch-ddp"]
    assert "always has 1 worker" in answer.excluded["torch-single"]
    assert "layers" in answer.excluded["torch-layers"]


def test_nothing_to_recommend_is_said() -> None:
    answer = recommend(question(strategies=("torch-single",), workers=(4,)))
    assert answer.pick is None
    said = explain(answer)
    assert said[0] == "Nothing that was asked about can run: see the reasons below."
    assert said[1].startswith("What would fit: another strategy (")


def test_a_larger_batch_costs_epochs_beyond_the_critical_one() -> None:
    asked = question(**LARGE, global_batches=(64, 4096), samples=8192, workers=(8,), strategies=("torch-ddp",))
    free = recommend(asked, "time-to-accuracy")
    dear = recommend(asked, "time-to-accuracy", critical_batch=64)
    assert free.pick is not None and free.pick.spec.samples_per_step == 4096
    by_batch = {one.spec.samples_per_step: one.value.value for one in dear.ranked}
    plain = {one.spec.samples_per_step: one.value.value for one in free.ranked}
    assert by_batch[64] == pytest.approx(2 * plain[64])
    assert by_batch[4096] == pytest.approx(65 * plain[4096])


def test_time_to_accuracy_promises_no_accuracy_without_a_critical_batch() -> None:
    asked = question(**LARGE, global_batches=(64,), workers=(8,), strategies=("torch-ddp",))
    plain = explain(recommend(asked, "time-to-accuracy"))[0]
    assert "least time for an epoch, and no more than that" in plain and "--critical-batch" in plain
    assert "until the model is good enough" in explain(recommend(asked, "time-to-accuracy", critical_batch=64))[0]


def test_the_batch_is_chosen_around_the_critical_one_where_nobody_names_one() -> None:
    asked = question(**LARGE, workers=(1, 8), strategies=("torch-single", "torch-ddp"))
    small, large = (recommend(asked, "time-to-accuracy", critical_batch=critical) for critical in (64, 1024))
    assert small.pick is not None and large.pick is not None
    assert small.pick.spec.samples_per_step < large.pick.spec.samples_per_step
    assert {one.spec.samples_per_step for one in small.ranked} <= {16, 32, 64, 128, 256}
    # The best batch stands for its strategy and number of workers.
    assert len({(one.spec.strategy, one.spec.workers) for one in small.ranked}) == len(small.ranked)
    assert "per epoch of progress predicted" in explain(small)[0]
    # No batch is larger than the data.
    beyond = recommend(asked, "time-to-accuracy", critical_batch=16384)
    assert {one.spec.samples_per_step for one in beyond.ranked} <= {4096}


def test_a_larger_batch_that_brings_less_progress_is_no_change_for_the_better() -> None:
    asked = question(workload="mnist-small", global_batches=(64,), workers=(1,), strategies=("torch-single",))
    plain, known = (" ".join(explain(recommend(asked, "time-to-accuracy", (), critical))) for critical in (None, 1.0))
    assert "twice the batch would make it" in plain
    assert "twice the batch would make it" not in known


def test_what_is_known_of_the_critical_batch_is_said_and_its_interval_is_counted_in() -> None:
    asked = question(**LARGE, global_batches=(512,), workers=(8,), strategies=("torch-ddp",))
    known = recommend(asked, "time-to-accuracy", critical_batch=CriticalBatch(256, 128, 512, "from 9 stored runs"))
    plain = recommend(asked, "time-to-accuracy")
    assert known.pick is not None and plain.pick is not None
    assert known.pick.value.value == pytest.approx(3 * plain.pick.value.value)
    assert known.pick.value.low == pytest.approx(2 * plain.pick.value.low)
    assert known.pick.value.high == pytest.approx(5 * plain.pick.value.high)
    said = " ".join(explain(known))
    assert "A batch of 512 needs 3 times (2 to 5) the least samples" in said
    assert "about 256 samples (90 %: 128 to 512), from 9 stored runs" in said
    assert "Learning rate: 0.00141, warmed up" in said
    assert "No accuracy is promised" in explain(plain)[0]


def test_what_was_measured_is_ranked_by_what_it_did() -> None:
    answer = recommend(question(**LARGE, global_batches=(256,), strategies=("torch-single", "torch-ddp")))
    slowest = answer.ranked[-1]
    best = answer.ranked[0]
    measured = [(slowest.spec, Measurement((1e9,), 1e9, 7, False)), (best.spec, Measurement((1.0,), 1.0, 8, False))]
    again = with_measurements(answer, measured, runs=4)
    assert again.pick is not None and again.pick.spec == slowest.spec
    assert again.pick.records[-1] == 7
    assert "measured" in explain(again)[0]


def test_ties_on_this_machine_can_be_told_apart_by_running_them() -> None:
    fields = {"strategies": ("torch-ddp", "torch-zero"), "workers": (2,), "global_batches": (8192,)}
    asked = question(hardware=load_hardware("cpu-2-cores"), samples=60_000, **fields)
    answer = recommend(asked)
    tied = [one for one in answer.ranked if one.tied]
    assert len(tied) == 2
    assert "--measure 2 would run them here and tell them apart." in explain(answer)


def test_earlier_runs_of_the_pick_are_named(make_record: Callable[..., Record]) -> None:
    asked = question()
    (spec,) = asked.specs("torch-single", {}, (1,))
    epoch = Epoch(number=0, seconds=2.0, steps=10, samples=2560, cpu_seconds=1.0, train_loss=1.0)
    answer = recommend(asked, records=[make_record(spec=spec, id=12, epochs=(epoch,))])
    assert "Measured in run 12: 1,280 samples/s." in explain(answer)


def test_wide_ranges_of_workers_are_looked_at_in_powers_of_two() -> None:
    assert worker_counts(range(1, 9)) == tuple(range(1, 9))
    assert worker_counts(range(3, 1001)) == (3, 4, 8, 16, 32, 64, 128, 256, 512, 1000)


def test_the_batch_grows_with_the_workers_unless_it_is_given() -> None:
    assert question(workers=(1, 8)).batches == [("global_batch", 256)]
    assert question(workers=(8, 1024)).batches == [("global_batch", 1024)]
    assert question(local_batches=(4,)).batches == [("local_batch", 4)]


def test_the_break_even_is_where_two_workers_become_faster() -> None:
    asked = question()
    answer = recommend(asked)
    assert answer.pick is not None
    batch = int(break_even(asked, answer.pick).split("about ")[1].split(" ")[0].replace(",", ""))
    for size, pays in ((batch, True), (batch // 2, False)):
        (spec,) = asked.specs("torch-ddp", {}, (2,), [("global_batch", size)])
        speedup = asked.predictor.predict(spec).speedup
        assert speedup is not None and (speedup > 1 + TIE) == pays


def test_facts_have_their_source_in_brackets() -> None:
    for name in ("torch-ddp", "torch-fsdp", "torch-single", "tf-ps"):
        assert facts_about(name) and all(fact.endswith(").") for fact in facts_about(name))


def test_facts_of_small_models_are_not_told_of_large_ones() -> None:
    assert len(facts_about("torch-fsdp", 8_000_000_000)) == len(facts_about("torch-fsdp", 400_000)) - 1


def test_an_unknown_objective_is_refused_with_the_nearest() -> None:
    with pytest.raises(SpecError, match="there is no objective 'troughput'; did you mean 'throughput'"):
        objective("troughput")


def test_an_answer_can_be_ranked_again() -> None:
    answer = recommend(question())
    assert replace(answer, measured_runs=1).pick == answer.pick


def test_only_times_can_be_tried(tmp_path: Path) -> None:
    answer = recommend(question(), "energy")
    with Store.open(tmp_path / "runs.db") as store, pytest.raises(SpecError, match="--measure ranks by time"):
        try_best(answer, 1, store, Listener())


def test_a_precision_that_was_asked_for_and_is_not_offered_is_left_out_with_the_reason() -> None:
    names = ("torch-single", "jax-data")
    asked, usual = (recommend(question(strategies=names, precision=kind)) for kind in ("fp16", None))
    assert {one.spec.strategy for one in asked.ranked} == {"torch-single"}
    assert {one.spec.strategy for one in usual.ranked} == set(names)


LLAMA = {"workload": "llama", "options": {"size": "8b"}, "hardware": load_hardware("h100-nvlink")}


def test_an_answer_about_tokens_has_their_rate_utilisation_days_energy_and_money() -> None:
    asked = question(**LLAMA, workers=(64,), strategies=("torch-fsdp",), tokens=1e12, price_per_device_hour=2.5)
    said = " ".join(explain(recommend(asked)))
    assert "tokens/s on each device" in said and "of its peak in bf16 (MFU)" in said
    assert "1,000 billion tokens take" in said and "days" in said and "MWh" in said and "at 2.5 per device-hour" in said
    assert "The batch is 2.1 million tokens" in said
    assert "It is bound by computation" in said


def test_tokens_of_a_model_without_sequences_are_refused() -> None:
    with pytest.raises(SpecError, match="--tokens is about sequences"):
        recommend(question(tokens=1e9))


def test_the_batch_of_a_model_of_tokens_is_that_of_its_size() -> None:
    for size, samples in (("1b", 128), ("8b", 256), ("70b", 512), ("405b", 2048)):
        asked = question(**{**LLAMA, "options": {"size": size}}, workers=(8, 1024))
        assert asked.batches == [("global_batch", samples)]


def test_what_would_change_an_answer_is_said() -> None:
    slow = load_hardware("h100-nvlink", "10g")
    asked = question(**{**LLAMA, "hardware": slow}, workers=(64,), strategies=("torch-fsdp",), global_batches=(64,))
    said = " ".join(explain(recommend(asked)))
    assert "What would change it: " in said and "a link twice as fast between nodes would make it" in said
    assert "parameters between workers" in said


def test_where_nothing_fits_more_devices_and_larger_ones_are_named() -> None:
    asked = question(**{**LLAMA, "options": {"size": "70b"}}, workers=(8,), strategies=("torch-zero",))
    nothing = recommend(asked)
    assert nothing.pick is None
    said = explain(nothing)[1]
    assert said.startswith("What would fit: ") and "another strategy (torch-fsdp x8" in said


def test_shards_wait_in_the_hosts_memory_where_nothing_fits_otherwise() -> None:
    asked = question(**{**LLAMA, "options": {"size": "70b"}}, workers=(8,), global_batches=(16,))
    answer = recommend(asked)
    assert answer.pick is not None and answer.pick.spec.offload
    assert answer.pick.prediction.fits and answer.pick.prediction.parts.offloaded > 0
    said = " ".join(explain(answer))
    # Of 70 billion parameters: themselves, their gradients and both means of Adam, of four bytes each.
    assert "wait in the host's memory (offload), 1.13 TB of the 2 TB that are taken for a machine" in said
    assert "copies to the host and its update (offload)" in said
    roomy = recommend(asked.but_with(workers=(64,), global_batches=(64,)))
    assert roomy.pick is not None and not any(candidate.spec.offload for candidate in roomy.ranked)


def test_no_more_waits_in_the_hosts_memory_than_it_has() -> None:
    asked = question(**{**LLAMA, "options": {"size": "405b"}}, workers=(8,), strategies=("torch-fsdp", "torch-mesh"))
    answer = recommend(asked)
    assert answer.pick is None
    assert "with offload 6.49 TB would wait in the host's memory, which is 2 TB" in answer.excluded["torch-fsdp"]
    # Without a word on the host, layouts that fit are listed, but none with several copies of what waits.
    hosted = recommend(asked.but_with(hardware=asked.hardware.model_copy(update={"host_memory_bytes": None})))
    layouts = [candidate.spec.layout for candidate in hosted.ranked]
    assert layouts and all(layout is None or layout.replicate == 1 for layout in layouts)


def test_offload_comes_before_training_in_another_way() -> None:
    asked = question(
        workload="gpt", options={"size": "1.5b"}, hardware=load_hardware("rtx4090-pcie"), workers=(1,),
        strategies=("torch-single", "torch-fsdp", "torch-downpour"),
    )  # fmt: skip
    answer = recommend(asked)
    assert answer.pick is not None and answer.pick.spec.offload and answer.pick.caveat is None
    assert "torch-downpour" in [candidate.spec.strategy for candidate in answer.ranked]
    # One worker sends nothing.
    assert "It sends" not in " ".join(explain(answer))


def test_one_worker_trains_without_a_strategy_where_that_is_as_good() -> None:
    answer = recommend(question(workload="bert", hardware=load_hardware("l4-pcie"), workers=(1,)))
    assert {candidate.spec.strategy for candidate in answer.ranked} <= {"torch-single", "jax-single", "tf-single"}


def test_what_would_change_an_answer_is_told_by_its_objective() -> None:
    asked = question(
        workload="bert", options={"size": "large"}, workers=(64,), global_batches=(512,), strategies=("torch-ddp",)
    )
    said = {
        goal: " ".join(explain(recommend(asked, goal, critical_batch=critical)))
        for goal, critical in (("throughput", None), ("time-to-accuracy", 2000.0), ("cost", None))
    }
    gains = {goal: re.search(r"twice the batch would make it (\d+) % (\w+)", text) for goal, text in said.items()}
    plain, accurate, cheap = (gains[goal] for goal in said)
    assert plain is not None and accurate is not None and cheap is not None
    # A larger batch needs more samples.
    assert int(plain[1]) > int(accurate[1]) and plain[2] == accurate[2] == "faster" and cheap[2] == "cheaper"


def test_a_refusal_names_what_offload_would_leave() -> None:
    asked = question(**{**LLAMA, "options": {"size": "8b"}}, workers=(2,), global_batches=(16,))
    (spec,) = asked.specs("torch-fsdp", {"accumulation": 8, "recompute": "full"})
    predictions, why_not = predict_fitting(asked, spec)
    assert not predictions and "; with offload it would hold " in str(why_not)


def test_compiled_steps_are_advised_where_they_gain_more_than_a_tie() -> None:
    images = {"workload": "resnet", "hardware": load_hardware("8xa100-nvlink"), "workers": (8,)}
    several = recommend(question(**images, strategies=("torch-ddp", "jax-data", "jax-fsdp", "jax-mesh")))
    assert several.pick is not None
    assert (several.pick.spec.strategy, several.pick.spec.execution) == ("torch-ddp", "compiled")
    asked = recommend(question(**images, strategies=("torch-ddp",), execution="eager"))
    assert asked.pick is not None and asked.pick.spec.execution == "eager"


def test_of_layouts_that_a_plainer_strategy_is_one_is_listed() -> None:
    answer = recommend(question(workload="gpt", workers=(8,), strategies=("jax-data", "jax-fsdp", "jax-mesh")))
    names = [candidate.spec.strategy for candidate in answer.ranked]
    assert names.count("jax-fsdp") == 1
    layouts = [str(candidate.spec.layout) for candidate in answer.ranked if candidate.spec.strategy == "jax-mesh"]
    assert not {"shard=8", "replicate=8"} & set(layouts)


def test_of_equals_a_whole_model_on_each_worker_is_the_simplest() -> None:
    answer = recommend(question(workload="resnet", workers=(8,), strategies=("jax-data", "jax-fsdp")))
    assert all(candidate.tied for candidate in answer.ranked)
    assert answer.pick is not None and answer.pick.spec.strategy == "jax-data"


def test_what_one_worker_could_never_hold_is_said_beside_the_speedup() -> None:
    answer = recommend(question(workload="llama", options={"size": "8b"}, workers=(8,), strategies=("torch-fsdp",)))
    assert "if one worker could hold it" in " ".join(explain(answer))
