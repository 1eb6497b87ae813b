"""Built-in models have as many parameters as the published ones, counted without building any of them."""

import pytest

from paceline.contract.context import spec_facts
from paceline.errors import SpecError
from paceline.plan import complete
from paceline.spec import RunSpec
from paceline.workloads import workload

PUBLISHED = [
    ("gpt", {"size": "124m"}, 124_439_808),
    ("gpt", {"size": "350m"}, 354_823_168),
    ("gpt", {"size": "774m"}, 774_030_080),
    ("gpt", {"size": "1.5b"}, 1_557_611_200),
    ("llama", {"size": "1b"}, 1_235_814_400),
    ("llama", {"size": "8b"}, 8_030_261_248),
    ("llama", {"size": "70b"}, 70_553_706_496),
    ("llama", {"size": "405b"}, 405_853_388_800),
    ("mixtral", {"size": "8x7b"}, 46_702_792_704),
    ("bert", {"size": "base"}, 109_514_298),
    ("bert", {"size": "large"}, 335_174_458),
    ("resnet", {"depth": 18}, 11_689_512),
    ("resnet", {"depth": 34}, 21_797_672),
    ("resnet", {"depth": 50}, 25_557_032),
    ("resnet", {"depth": 101}, 44_549_160),
    ("resnet", {"depth": 152}, 60_192_808),
    ("vit", {"size": "tiny"}, 5_717_416),
    ("vit", {"size": "b16"}, 86_567_656),
    ("vit", {"size": "l16"}, 304_326_632),
]


def completed(workload, **options):
    return complete(RunSpec(workload=workload, options=options, global_batch=8, steps=1))


@pytest.mark.parametrize(("workload", "options", "parameters"), PUBLISHED)
def test_a_published_size_has_its_published_number_of_parameters(workload, options, parameters):
    assert spec_facts(completed(workload, **options)).parameters == parameters


@pytest.mark.parametrize(
    ("workload", "options", "shape", "classes"),
    [
        ("gpt", {}, (1024,), 50257),
        ("gpt", {"sequence": 128, "vocabulary": 512}, (128,), 512),
        ("llama", {"size": "8b"}, (8192,), 128_256),
        ("llama", {"size": "8b", "sequence": 4096}, (4096,), 128_256),
        ("vit", {}, (3, 224, 224), 1000),
        ("transformer", {"sequence": 32}, (32,), None),
        ("transformer", {}, None, None),
    ],
)
def test_options_and_sizes_decide_the_shape_of_a_sample(workload, options, shape, classes):
    spec = completed(workload, **options)
    assert (spec.input_shape, spec.classes) == (shape, classes)


def test_a_shape_that_the_run_gives_goes_before_that_of_the_options():
    spec = complete(RunSpec(workload="gpt", input_shape=(64,), global_batch=8, steps=1))
    assert (spec.input_shape, spec.classes) == ((64,), 50257)


def test_a_wide_transformer_gets_heads_of_128_numbers_and_says_so():
    assert completed("transformer", depth=48, width=8192).options == {"depth": 48, "width": 8192, "heads": 64}
    assert completed("transformer", width=1600).options["heads"] == 16
    assert "heads" not in completed("transformer", width=512).options
    assert completed("transformer", width=8192, heads=32).options["heads"] == 32


def test_another_width_gets_heads_and_a_network_in_proportion():
    (block,) = {layer for layer in spec_layers_of("llama", width=1024) if type(layer).__name__ == "LlamaBlock"}
    assert (block.heads, block.kv_heads, block.hidden) == (8, 8, 2752)


def spec_layers_of(workload, **options):
    from paceline.contract.context import spec_layers

    return spec_layers(completed(workload, **options))[0]


@pytest.mark.parametrize(
    ("workload", "options", "sentence"),
    [
        ("gpt", {"size": "125m"}, "gpt has no size '125m'"),
        ("llama", {"size": "tiny", "kv_heads": 3}, "cannot share 3 heads"),
        ("llama", {"size": "tiny", "tied": "maybe"}, "choose from auto, yes, no"),
        ("gpt", {"width": 100, "heads": 3}, "does not divide over 3 heads"),
        ("resnet", {"depth": 51}, "resnet has no depth 51; choose from 18, 34, 50, 101, 152"),
        ("mixtral", {"experts": 2, "chosen": 3}, "cannot choose 3 of 2 experts"),
        ("vit", {"patch": 15}, "does not divide into patches of 15 x 15"),
    ],
)
def test_sizes_that_cannot_be_are_refused_in_words(workload, options, sentence):
    with pytest.raises(SpecError, match=sentence):
        spec_facts(completed(workload, **options))


def test_four_heads_that_were_asked_for_stay_four_however_often_a_run_is_completed():
    once = completed("transformer", width=1024, heads=4)
    assert once.options == {"width": 1024, "heads": 4}
    assert complete(once) == once


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("transformer", {"depth": 48, "width": 8192}, "width 8192 has heads=64 unless you say otherwise"),
        ("llama", {"size": "8b", "width": 1024}, "heads=8, hidden=2752 unless"),
        ("transformer", {"width": 8192, "heads": 32}, None),
        ("llama", {"size": "8b"}, None),
        ("resnet", {"depth": 50}, None),
    ],
)
def test_what_follows_from_a_width_is_said(name, options, words):
    said = workload(name).assumption(options)
    assert said is None if words is None else words in said
