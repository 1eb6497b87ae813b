"""Which layers of a transformer's blocks to split, guessed from their names and tried before they are used.

Attention and the layers behind it go by columns, then by rows (Shoeybi et al., "Megatron-LM", 2019). Names say which is
which; how a module counts its heads they do not say. So a worker's part of each module is tried on random numbers for
every way to count that is known, and a module for which none gives what the whole gives stays whole.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from paceline.frameworks.torch.found_blocks import find_blocks
from paceline.frameworks.torch.module_facts import is_dense
from paceline.frameworks.torch.outline import is_outline
from paceline.frameworks.torch.tensor.pairs import SplitPair
from paceline.frameworks.torch.tensor.trial import works

_QUERY_KEY_VALUE = {"q_proj", "k_proj", "v_proj", "wq", "wk", "wv", "query", "key", "value", "q", "k", "v", "to_q",
                    "to_k", "to_v", "q_lin", "k_lin", "v_lin"}  # fmt: skip
_FUSED_QUERY_KEY_VALUE = {"qkv", "c_attn", "in_proj", "qkv_proj", "Wqkv", "wqkv", "query_key_value"}
_ATTENTION_OUTPUT = {"o_proj", "wo", "out_proj", "c_proj", "proj", "out", "to_out", "out_lin", "dense"}
_FEED_FORWARD = {"gate_proj", "up_proj", "w1", "w3", "fc1", "fc1_g", "fc1_x", "c_fc", "lin1", "linear1", "up", "gate",
                 "wi", "wi_0", "wi_1", "fc_in", "dense_h_to_4h"}  # fmt: skip
_FUSED_FEED_FORWARD = {"gate_up_proj", "w12"}
_FEED_FORWARD_OUTPUT = {"down_proj", "w2", "fc2", "c_proj", "lin2", "linear2", "down", "wo", "fc_out", "dense_4h_to_h"}
# Attributes in which a module of attention counts its heads, and its features.
_HEADS = ("num_heads", "n_head", "n_heads", "nhead", "heads", "num_attention_heads", "n_local_heads", "num_kv_heads",
          "n_kv_head", "n_kv_heads", "n_local_kv_heads", "num_key_value_heads")  # fmt: skip
_FEATURES = ("n_embd", "embed_dim", "hidden_size", "attn_dim", "inner_dim", "all_head_size", "split_size", "d_model",
             "dim", "width")  # fmt: skip


class CannotGuessError(Exception):
    """Why no layer of a model can be split by itself, as the end of a sentence about it."""


@dataclass(frozen=True)
class Guess:
    """The layers to split, and modules that looked suitable but stay whole."""

    pairs: tuple[SplitPair, ...]
    left_whole: tuple[str, ...]

    @property
    def styles(self) -> dict[str, str]:
        """How each layer is split, by name."""
        return {name: style for pair in self.pairs for name, style in pair.styles.items()}

    @property
    def text(self) -> dict[str, str]:
        """What becomes of each layer, with `*` for the number of its block."""
        styles = self.styles | dict.fromkeys(self.left_whole, "whole")
        return {re.sub(r"(^|\.)\d+(?=\.|$)", r"\1*", name): style for name, style in styles.items()}


def guess_plan(module: nn.Module, inputs: Tensor, ways: int) -> Guess:
    """A plan that was tried for so many workers; raises `CannotGuessError`.

    Of a model without numbers nothing can be tried, and names alone say how layers would be split.
    """
    blocks = find_blocks(module)
    if blocks is None:
        raise CannotGuessError("it has no list of like blocks")
    named = [replace(pair, owner=_join(name, pair.owner))
             for name, block in blocks.modules.items() for pair in _named_pairs(block)]  # fmt: skip
    if not named:
        raise CannotGuessError(f"no names of layers in its blocks ({blocks.text}) are known")
    # Like modules of many blocks are tried once.
    kinds = {pair: _kind(module, pair) for pair in named}
    examples = {kind: pair for pair, kind in reversed(kinds.items())}
    calls = _calls(module, inputs, {pair.owner for pair in examples.values()})
    splits = {kind: _working_split(module, pair, calls.get(pair.owner), ways) for kind, pair in examples.items()}
    pairs, whole = [], []
    for pair, kind in kinds.items():
        split = splits[kind]
        if split is None:
            whole.append(pair.owner)
        else:
            pairs.append(replace(split, owner=pair.owner))
    if not pairs:
        raise CannotGuessError(
            f"{named[0].owner or 'its blocks'} and the like, split over {ways} workers in the usual ways, "
            f"do not give what they give whole"
        )
    return Guess(tuple(pairs), tuple(whole))


def _join(block: str, owner: str) -> str:
    return f"{block}.{owner}" if owner else block


def _named_pairs(block: nn.Module) -> Iterator[SplitPair]:
    """Pairs of layers in one module that are recognised by name."""
    for owner, holder in block.named_modules():
        dense = {name: child for name, child in holder.named_children() if is_dense(child)}
        for attention, single, fused, behind in (
            (True, _QUERY_KEY_VALUE, _FUSED_QUERY_KEY_VALUE, _ATTENTION_OUTPUT),
            (False, _FEED_FORWARD, _FUSED_FEED_FORWARD, _FEED_FORWARD_OUTPUT),
        ):
            rows = [name for name in dense if name in behind]
            joined = tuple(name for name in dense if name in fused)
            columns = joined or tuple(name for name in dense if name in single)
            if columns and len(rows) == 1:
                yield SplitPair(owner, columns, rows[0], attention, parts=0 if joined else 1)


def _kind(module: nn.Module, pair: SplitPair) -> tuple[Any, ...]:
    """What two pairs in different blocks must share to be treated alike."""
    owner = module.get_submodule(pair.owner)
    shapes = tuple((name, tuple(parameter.shape)) for name, parameter in owner.named_parameters())
    return type(owner), pair.columns, pair.rows, shapes


def _calls(module: nn.Module, inputs: Tensor, owners: set[str]) -> dict[str, tuple[Any, Any]]:
    """The arguments with which each of these modules is called."""
    calls: dict[str, tuple[Any, Any]] = {}

    def noting(name: str) -> Any:
        return lambda _module, args, kwargs: calls.setdefault(name, (args, kwargs)) and None

    hooks = [module.get_submodule(name).register_forward_pre_hook(noting(name), with_kwargs=True) for name in owners]
    try:
        with torch.no_grad():
            module(inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return calls


def _working_split(module: nn.Module, pair: SplitPair, call: tuple[Any, Any] | None, ways: int) -> SplitPair | None:
    """The first way to split the pair that gives what the whole gives."""
    owner = module.get_submodule(pair.owner)
    if call is None:
        return None
    if is_outline(module):
        return pair
    return next((way for way in _ways_to_split(owner, pair, ways) if works(owner, way, *call, ways)), None)


def _ways_to_split(owner: nn.Module, pair: SplitPair, ways: int) -> Iterator[SplitPair]:
    if not pair.attention:
        yield replace(pair, parts=pair.parts or 2)
        return
    heads = tuple(name for name in _HEADS if _is_count(owner, name))
    features = tuple(name for name in _FEATURES if _is_count(owner, name))
    for parts in (pair.parts,) if pair.parts else (3, 1):
        for narrowed in (False, True):
            for divided in dict.fromkeys(((), heads, heads + features)):
                if not math.gcd(ways, *(getattr(owner, name) for name in divided)) % ways:
                    yield replace(pair, parts=parts, divided=divided, narrowed=narrowed)


def _is_count(owner: nn.Module, name: str) -> bool:
    return type(vars(owner).get(name)) is int
