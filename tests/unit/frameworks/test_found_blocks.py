"""Blocks of a user's PyTorch model, found in one process; what a cut or a guess would get wrong is seen in time."""

from collections.abc import Iterator
from typing import Any

import pytest

pytestmark = pytest.mark.torch
torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")
nn = torch.nn

from contract.own_models import encoders, gpts, llamas, vits  # noqa: E402 - needs PyTorch
from paceline.frameworks.torch.found_blocks import blocks, find_blocks  # noqa: E402
from paceline.frameworks.torch.pipeline.follow import CannotCutError  # noqa: E402
from paceline.frameworks.torch.pipeline.found import chain_of, found_stages  # noqa: E402
from paceline.frameworks.torch.sharded import layers  # noqa: E402
from paceline.frameworks.torch.tensor.guess import CannotGuessError, guess_plan  # noqa: E402

STYLES = ("nanogpt", "hf_gpt2", "hf_llama", "torchtitan", "timm_vit", "torch_encoder")


@pytest.fixture(autouse=True, scope="module")
def on_one_thread() -> Iterator[None]:
    """The models are so small that threads only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def built(name: str) -> Any:
    torch.manual_seed(0)
    (file,) = (file for file in (encoders, gpts, llamas, vits) if hasattr(file, name))
    return getattr(file, name)().eval()


def samples(name: str, count: int) -> Any:
    generator = torch.Generator().manual_seed(1)
    if name == "timm_vit":
        return torch.randn((count, 3, 8, 8), generator=generator)
    return torch.randint(0, gpts.VOCABULARY, (count, gpts.LENGTH), generator=generator)


def composed(width: int = 4) -> Any:
    return nn.Sequential(nn.Linear(width, width), nn.ReLU())


def test_blocks_are_the_like_modules_that_hold_most() -> None:
    class Expert(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up = nn.Linear(4, 4)

    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.experts = nn.ModuleList(Expert() for _ in range(4))

    model = nn.Module()
    model.stem, model.h, model.heads = composed(), nn.ModuleList(Mixed() for _ in range(3)), nn.ModuleList([composed()])
    found = find_blocks(model)
    assert found is not None
    assert list(found.modules) == ["h.0", "h.1", "h.2"]
    assert found.text == "3 Mixed in h"


def test_blocks_may_be_in_several_lists() -> None:
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(4, 4)

    model = nn.Module()
    model.layer1, model.layer2 = (nn.Sequential(Residual(), Residual()) for _ in range(2))
    found = find_blocks(model)
    assert found is not None
    assert found.text == "4 Residual in layer1, layer2"
    assert layers(model) == blocks(model)


@pytest.mark.parametrize("model", [nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), composed(), nn.Linear(4, 4)])
def test_a_model_without_a_list_of_composed_modules_has_no_blocks(model: Any) -> None:
    assert find_blocks(model) is None
    assert blocks(model) == []


def test_each_block_and_each_layer_beside_them_is_gathered_by_itself() -> None:
    model = built("nanogpt")
    parts = model.transformer
    assert layers(model) == [parts.wte, parts.wpe, *parts.h, parts.ln_f, model.lm_head]
    tied = built("tied")
    assert layers(tied) == [tied.transformer.wpe, *tied.transformer.h, tied.transformer.ln_f]


@pytest.mark.parametrize("name", STYLES)
def test_stages_give_what_the_model_gives_for_any_number_of_samples(name: str) -> None:
    model = built(name)
    stages = found_stages(model, chain_of(model, samples(name, 3)), 3, samples(name, 3))
    assert sum(p.numel() for stage in stages for p in stage.parameters()) == sum(p.numel() for p in model.parameters())
    for count in (1, 5):
        activations = inputs = samples(name, count)
        for stage in stages:
            activations = stage(activations)
        torch.testing.assert_close(activations, model(inputs), rtol=1e-5, atol=1e-5)


def test_a_tied_head_has_a_copy_of_the_embedding_on_the_last_stage() -> None:
    model = built("tied")
    first, middle, last = found_stages(model, chain_of(model, samples("tied", 3)), 3, samples("tied", 3))
    (name,) = first.tied
    assert last.tied == (name,) and middle.tied == ()
    assert first.get_parameter(name) is model.lm_head.weight
    assert last.get_parameter(name) is not model.lm_head.weight
    torch.testing.assert_close(last.get_parameter(name), model.lm_head.weight)


class Biased(gpts.GPT):
    """A bias that every block is given, and that is zero when training starts."""

    def __init__(self) -> None:
        super().__init__([gpts.GPTBlock(gpts.CausalSelfAttention(), None) for _ in range(2)])
        self.bias = nn.Parameter(torch.zeros(gpts.WIDTH))
        for block in self.transformer.h:
            block.forward = lambda x, bias, block=block: x + block.attn(block.ln_1(x)) + bias
            del block.ln_2

    def forward(self, idx: Any) -> Any:
        x, bias = self.transformer.wte(idx) + self.transformer.wpe.weight, self.bias * 2
        for block in self.transformer.h:
            x = block(x, bias)
        return self.lm_head(self.transformer.ln_f(x))


@pytest.mark.parametrize(("model", "words"), [
    (Biased, "takes a second input that depends on the samples or on parameters"),
    (gpts.shared_norm, "transformer.h.0.ln_1.weight is used in several places"),
    (gpts.remembering, "is used again behind it"),
    (gpts.peeking, "looks at the numbers in its inputs"),
    (composed, "it has no list of like blocks"),
])  # fmt: skip
def test_what_a_cut_would_lose_is_seen(model: Any, words: str) -> None:
    with pytest.raises(CannotCutError, match=words):
        chain_of(model().eval(), samples("nanogpt", 3))


@pytest.mark.parametrize("name", STYLES)
@pytest.mark.parametrize("ways", [2, 4])
def test_well_known_names_are_split_and_heads_counted(name: str, ways: int) -> None:
    guess = guess_plan(built(name), samples(name, 2), ways)
    # Two heads of keys and values cannot be given to four workers.
    shared = name in ("hf_llama", "torchtitan") and ways == 4
    # PyTorch's attention has one array for queries, keys and values that is no layer.
    assert len(guess.pairs) == (4 if shared or name == "torch_encoder" else 8)
    assert bool(guess.left_whole) == shared


def test_a_parameter_that_sees_some_heads_only_keeps_attention_whole() -> None:
    guess = guess_plan(built("per_head_norm"), samples("nanogpt", 2), 2)
    assert set(guess.text.items()) >= {("transformer.h.*.attn", "whole"), ("transformer.h.*.mlp.c_fc", "columns")}


def test_weights_that_start_at_zero_hide_nothing() -> None:
    model = built("secret_heads")
    with torch.no_grad():
        for block in model.transformer.h:
            block.attn.o_proj.weight.zero_()
            block.attn.q_proj.weight.zero_()
    with pytest.raises(CannotGuessError, match="do not give what they give whole"):
        guess_plan(model, samples("nanogpt", 2), 2)


def test_names_that_nobody_knows_are_not_guessed() -> None:
    model = nn.Sequential(composed(), composed())
    with pytest.raises(CannotGuessError, match="no names of layers in its blocks"):
        guess_plan(model, torch.zeros(2, 4), 2)
