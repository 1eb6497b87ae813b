"""Dropout drawn by the place of a sample in the global batch: the same on any number of workers and in any passes.

Every worker draws for the whole global batch and keeps what is of its samples, so that a step draws as many more random
numbers as it has workers and passes. Attention with dropout is computed in its plain form, whose weights can be masked.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from paceline.spec import RunSpec


@dataclass(frozen=True)
class Samples:
    """Which samples of a global batch a pass is over."""

    first: int
    count: int
    total: int


class SampleDraws:
    """Random numbers of the samples of one pass, the same whoever computes them."""

    def __init__(self, seed: int, device: torch.device) -> None:
        self._seed, self._generator = seed, torch.Generator(device)
        self._samples: Samples | None = None

    @contextmanager
    def of(self, step: int, samples: Samples) -> Iterator[None]:
        """A context for the forward pass over some samples of the batch of a step."""
        # As many numbers as a seed has, so that steps and seeds never meet.
        self._generator.manual_seed((self._seed << 32) + step)
        self._samples, before = samples, _current.set(self)
        try:
            yield
        finally:
            _current.reset(before)

    def bernoulli(self, shape: tuple[int, ...], share: float, like: Tensor) -> Tensor:
        """Ones with that probability, else zeros; the first dimension is samples, or several rows of each."""
        assert self._samples is not None
        rows, rest = divmod(shape[0], self._samples.count) if shape else (0, 1)
        if rest:
            return like.new_empty(shape).bernoulli_(share, generator=self._generator)
        whole = like.new_empty((self._samples.total * rows, *shape[1:])).bernoulli_(share, generator=self._generator)
        first = self._samples.first * rows
        return whole[first : first + shape[0]]


_current: ContextVar[SampleDraws | None] = ContextVar("draws", default=None)


def sample_draws(spec: RunSpec, device: torch.device) -> SampleDraws | None:
    """What a run draws its dropout from, where it does so by sample."""
    if spec.dropout == "by-worker":
        return None
    draw_by_sample()
    return SampleDraws(spec.seed, device)


def draw_by_sample() -> None:
    """From now on dropout in this process asks `SampleDraws` while one is in use."""
    if getattr(functional.dropout, "by_sample", False):
        return
    for name, masked in (("dropout", 0), ("dropout1d", 1), ("dropout2d", 2), ("dropout3d", 3)):
        setattr(functional, name, _dropping(getattr(functional, name), channels=masked > 0))
    functional.scaled_dot_product_attention = _attending(functional.scaled_dot_product_attention)
    torch.Tensor.bernoulli_ = _drawing(torch.Tensor.bernoulli_)


def _dropping(usual: Callable[..., Tensor], channels: bool) -> Callable[..., Tensor]:
    @wraps(usual)
    def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        draws = _current.get()
        if draws is None or not training or p == 0:
            return usual(input, p, training, inplace)
        shape = (*input.shape[:2], *[1] * (input.ndim - 2)) if channels else tuple(input.shape)
        mask = draws.bernoulli(shape, 1 - p, input) / (1 - p) if p < 1 else torch.zeros_like(input)
        return input.mul_(mask) if inplace else input * mask

    dropout.by_sample = True  # type: ignore[attr-defined]
    return dropout


def _attending(usual: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @wraps(usual)
    def attention(
        query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
        is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
    ) -> Tensor:  # fmt: skip
        if _current.get() is None or dropout_p == 0:
            return usual(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
        if enable_gqa:
            groups = query.shape[-3] // key.shape[-3]
            key, value = (part.repeat_interleave(groups, -3) for part in (key, value))
        scores = query @ key.transpose(-2, -1) * (scale or 1 / math.sqrt(query.shape[-1]))
        if is_causal:
            later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
            scores = scores.masked_fill(later, -math.inf)
        if attn_mask is not None:
            scores = scores.masked_fill(~attn_mask, -math.inf) if attn_mask.dtype == torch.bool else scores + attn_mask
        return functional.dropout(scores.softmax(-1), dropout_p) @ value

    return attention


def _drawing(usual: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Draws of a model's own, such as of whole paths that are dropped."""

    @wraps(usual)
    def bernoulli_(self: Tensor, p: Any = 0.5, *, generator: torch.Generator | None = None) -> Tensor:
        draws = _current.get()
        if draws is None or generator is not None or not isinstance(p, float):
            return usual(self, p, generator=generator)
        return self.copy_(draws.bernoulli(tuple(self.shape), p, self))

    return bernoulli_
