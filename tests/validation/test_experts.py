"""Advice lands where experts did, and rates are those that they published, none of which is behind ours."""

from statistics import mean
from typing import Any

import pytest

from paceline.predict.deviations import UNKNOWN_STACK
from paceline.predict.published.stacks import counted, stack_biases, stack_spread, without_own_say
from paceline.predict.published.training import summarise_tables, training_rows
from paceline.predict.question import Question
from paceline.recommend.answer import Answer, recommend
from paceline.systems.files import load_hardware, shipped_systems

TORCHTITAN = "h100-96gb-nvlink"
ROWS = list(training_rows())


def ask(system: str, workload: str, workers: int, **fields: Any) -> Answer:
    return recommend(Question(load_hardware(system), workload=workload, workers=(workers,), **fields))


@pytest.mark.parametrize(
    ("table", "rows", "error"),
    [("torchtitan bf16", 4, 0.20), ("torchtitan TP bf16", 2, 0.20), ("torchtitan 405B bf16", 1, 0.20),
     ("IBM and Meta H100", 2, 0.20), ("torchtitan A100", 8, 0.20), ("IBM FSDP A100", 4, 0.10),
     ("IBM FSDP H100", 4, 0.20), ("NeMo H100", 19, 0.15), ("llm.c", 4, 0.20), ("MaxText H100", 1, 0.15),
     ("TinyLlama", 1, 0.20)],
)  # fmt: skip
def test_rates_of_todays_programs_are_foreseen_within_a_fifth(table: str, rows: int, error: float) -> None:
    found = [row for row in ROWS if row.table == table]
    assert len(found) == rows
    assert all(abs(row.error) <= error for row in found)


def test_no_rate_of_torchtitans_h100s_is_behind_a_number_of_ours() -> None:
    for name in shipped_systems():
        device = load_hardware(name).device
        for quantity in (device.product_efficiency, device.attention_efficiency):
            assert "llama3_h100" not in quantity.source, name


@pytest.mark.parametrize(
    "total", [each for each in summarise_tables(ROWS) if each.rows >= 30], ids=lambda total: total.table
)
def test_intervals_of_large_tables_have_the_truth_about_as_often_as_they_say(total: Any) -> None:
    assert 0.80 <= total.coverage <= 0.97
    assert total.mean_error <= 0.10 and abs(total.bias) <= 0.10


def test_every_table_and_model_has_its_source() -> None:
    assert all(len(row.source) > 20 for row in ROWS)
    assert len(ROWS) > 170
    assert {row.table for row in ROWS if row.used} == {"MosaicML H100", "MosaicML A100"}


def test_intervals_hold_for_stacks_that_decided_no_speed() -> None:
    fresh = counted(ROWS)
    assert len(fresh) >= 50 and len(stack_biases(fresh)) >= 7
    assert 0.80 <= mean(row.inside for row in fresh) <= 0.97


def test_intervals_hold_for_a_stack_that_had_no_say_in_their_width() -> None:
    assert 0.80 <= mean(row.inside for row in without_own_say(counted(ROWS), UNKNOWN_STACK)) <= 0.97


def test_the_spread_between_stacks_is_what_predictions_use() -> None:
    assert stack_spread(counted(ROWS)) == pytest.approx(UNKNOWN_STACK, abs=0.01)


def test_a_data_sheet_is_less_sure_than_a_grid_from_such_a_machine() -> None:
    widths = {}
    for system in ("h100-nvlink", "h200-nvlink"):
        question = Question(load_hardware(system), workload="gpt", global_batches=(64,))
        (spec,) = question.specs("torch-ddp", workers=(8,))
        found = question.predictor.predict(spec)
        widths[found.source.split(",")[0]] = found.step_seconds.high / found.step_seconds.value
    assert widths["the data sheet"] > 1.3 > 1.28 > widths["a grid of operations"]


@pytest.mark.parametrize(("workers", "batch"), [(8, 16), (128, 256)])
def test_llama_8b_is_divided_by_fsdp(workers: int, batch: int) -> None:
    answer = ask(TORCHTITAN, "llama", workers, options={"size": "8b"}, global_batches=(batch,))
    assert answer.pick is not None and answer.pick.spec.strategy == "torch-fsdp"


@pytest.mark.parametrize("batch", [16, 256])
def test_llama_8b_on_eight_gpus_of_80_gb_is_divided_by_fsdp_that_reduces_in_each_pass(batch: int) -> None:
    answer = ask("h100-nvlink", "llama", 8, options={"size": "8b"}, global_batches=(batch,))
    assert answer.pick is not None
    spec = answer.pick.spec
    assert spec.strategy == "torch-fsdp" and spec.accumulation > 1 and spec.knobs["reduce"] == "each"


def test_llama_405b_on_512_gpus_has_a_pipeline_among_its_first_answers() -> None:
    answer = ask("h100-nvlink", "llama", 512, options={"size": "405b"})
    layouts = [candidate.spec.layout for candidate in answer.ranked[:4]]
    # Sixteen million tokens a step hide what FSDP sends in each pass, so that it is the best with layers split over
    # four devices, as IBM and Meta found it to be.
    assert layouts[0] is not None and layouts[0].text == "shard=128,tensor=4"
    assert any(layout is not None and layout.pipeline > 1 for layout in layouts)


def test_llama_405b_on_512_gpus_has_a_pipeline_among_the_first_with_few_sequences_too() -> None:
    answer = ask(TORCHTITAN, "llama", 512, options={"size": "405b"}, global_batches=(256,))
    layouts = [candidate.spec.layout for candidate in answer.ranked[:3]]
    assert any(layout is not None and layout.pipeline > 1 for layout in layouts)


def test_the_first_answers_for_llama_70b_divide_it_in_different_ways() -> None:
    answer = ask(TORCHTITAN, "llama", 256, options={"size": "70b"}, global_batches=(512,))
    assert answer.pick is not None and answer.pick.spec.strategy == "torch-fsdp"
    divided = [
        (layout.tensor, layout.pipeline) if (layout := candidate.spec.layout) else (1, 1)
        for candidate in answer.ranked[:4]
    ]
    assert len(set(divided)) == 4
    # With layers split within a node, as torchtitan's authors did.
    assert any(tensor > 1 for tensor, _ in divided)


def test_llama_70b_is_slower_with_layers_split_over_eight_devices_as_it_was_published() -> None:
    tables = {(row.table, row.name.partition(",")[0]): row for row in ROWS}
    whole, split = tables["IBM and Meta H100", "llama-70b"], tables["torchtitan TP bf16", "llama-70b"]
    # On GPUs of 700 and of 500 W, of which the slower ones compute as much less as the cube root of that.
    slower = (500 / 700) ** (1 / 3)
    assert whole.published * slower > 1.3 * split.published
    assert whole.predicted.value * slower / split.predicted.value == pytest.approx(
        whole.published * slower / split.published, rel=0.1
    )


def test_images_on_eight_gpus_are_data_parallel() -> None:
    answer = ask("8xa100-nvlink", "resnet", 8)
    assert answer.pick is not None and answer.pick.spec.strategy == "torch-ddp"


def test_gpt2_on_eight_gpus_is_data_parallel() -> None:
    answer = ask("8xa100-nvlink", "gpt", 8)
    assert answer.pick is not None and answer.pick.spec.strategy == "torch-ddp"
    assert answer.pick.prediction.tokens_per_sample == 1024


def test_utilisation_is_counted_as_palm_counts_it() -> None:
    answer = ask(TORCHTITAN, "llama", 8, options={"size": "8b"}, global_batches=(16,), strategies=("torch-fsdp",))
    assert answer.pick is not None
    prediction = answer.pick.prediction
    # 6 N + 12 L H Q T of Llama 3.1 8B without its table of tokens, at 8,192 tokens.
    per_token = 6 * (8_030_261_248 - 128_256 * 4096) + 12 * 32 * 4096 * 8192
    assert prediction.model_flops / (16 * 8192) == pytest.approx(per_token, rel=0.01)
    rate = prediction.tokens_per_second
    assert rate is not None
    assert prediction.utilisation == pytest.approx(rate.value * per_token / 884e12, rel=0.01)
