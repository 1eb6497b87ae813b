"""Forward passes of today's transformers in JAX: Llama's block, a mixture of experts, encoders, tied heads."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from paceline.workloads import transformer_layers as neutral
from paceline.workloads.layers import NORM_EPSILON, QUERY_KEY_VALUE, Layer

Arrays = Callable[[str], Any]
Place = Callable[[Array], Array]


def transformer_forward(layer: Layer, arrays: Arrays, x: Array, place_middle: Place) -> Array | None:  # noqa: PLR0911 - one per kind of layer
    """The output of a layer of this kind; None for other layers."""
    match layer:
        case neutral.BertEmbed():
            embedded = rows(arrays("tokens"), x) + arrays("positions") + arrays("segments")[0]
            return normalise(embedded, arrays("norm_scale"), arrays("norm_shift"))
        case neutral.TokenEmbed():
            return rows(arrays("tokens"), x)
        case neutral.RmsNorm():
            return rms_normalise(x, arrays("scale"))
        case neutral.Linear():
            return product(x, arrays("kernel"))
        case neutral.TiedHead(_, bias):
            scores = jnp.einsum("nlw,vw->nlv", x, arrays("tokens"))
            return scores + arrays("bias") if bias else scores
        case neutral.Gelu():
            return jax.nn.gelu(x, approximate=False)
        case neutral.EncoderBlock():
            return _encoder(layer, arrays, x, place_middle)
        case neutral.LlamaBlock():
            return _llama(layer, arrays, x, place_middle)
    return None


def rows(table: Array, indices: Array) -> Array:
    """Rows of a table."""
    selected: Array = table.at[indices].get(mode="promise_in_bounds")
    return selected


def product(x: Array, kernel: Array) -> Array:
    """All dimensions of the kernel but its last are summed over."""
    return jnp.tensordot(x, kernel, kernel.ndim - 1)


def normalise(x: Array, scale: Array, shift: Array) -> Array:
    """Layer normalisation, in single precision whatever the rest is in."""
    wide = x.astype(jnp.float32)
    mean = wide.mean(-1, keepdims=True)
    variance = jnp.square(wide - mean).mean(-1, keepdims=True)
    return ((wide - mean) * lax.rsqrt(variance + NORM_EPSILON)).astype(x.dtype) * scale + shift


def rms_normalise(x: Array, scale: Array) -> Array:
    """Division by the root mean square, in single precision whatever the rest is in."""
    wide = x.astype(jnp.float32)
    root = lax.rsqrt(jnp.square(wide).mean(-1, keepdims=True) + NORM_EPSILON)
    return (wide * root).astype(x.dtype) * scale


def attend(query: Array, key: Array, value: Array, causal: bool = True) -> Array:
    """Attention over (n, heads, length, width of a head)."""
    length, width = query.shape[-2:]
    scores = jnp.einsum("nhqd,nhkd->nhqk", query, key).astype(jnp.float32) * width**-0.5
    if causal:
        scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -jnp.inf)
    return jnp.einsum("nhqk,nhkd->nhqd", jax.nn.softmax(scores, axis=-1).astype(value.dtype), value)


def joint_attention(arrays: Arrays, x: Array, heads: int, causal: bool) -> Array:
    """Attention whose queries, keys and values come from one array, before its last product."""
    n, length, width = x.shape
    # The three, heads and the width of a head are dimensions of their own, whichever way the kernel is stored.
    kernel = arrays("qkv_kernel").reshape(width, QUERY_KEY_VALUE, heads, width // heads)
    joint = jnp.einsum("nlw,wthd->tnhld", x, kernel)
    query, key, value = joint + arrays("qkv_bias").reshape(QUERY_KEY_VALUE, 1, heads, 1, width // heads)
    return attend(query, key, value, causal).transpose(0, 2, 1, 3).reshape(n, length, width)


def _encoder(layer: neutral.EncoderBlock, arrays: Arrays, x: Array, place_middle: Place) -> Array:
    def dense(name: str, y: Array) -> Array:
        return product(y, arrays(f"{name}_kernel")) + arrays(f"{name}_bias")

    def norm(name: str, y: Array) -> Array:
        return normalise(y, arrays(f"{name}_scale"), arrays(f"{name}_shift"))

    def attention(y: Array) -> Array:
        return dense("out", joint_attention(arrays, y, layer.heads, causal=False))

    def network(y: Array) -> Array:
        return dense("down", jax.nn.gelu(dense("up", y), approximate=False))

    if layer.norm_first:
        x = place_middle(x + attention(norm("norm1", x)))
        return x + network(norm("norm2", x))
    x = place_middle(norm("norm1", x + attention(x)))
    return norm("norm2", x + network(x))


def _llama(layer: neutral.LlamaBlock, arrays: Arrays, x: Array, place_middle: Place) -> Array:
    normed = rms_normalise(x, arrays("norm1_scale"))
    width = layer.head_width(x.shape)

    def heads(name: str) -> Array:
        joined = product(normed, arrays(f"{name}_kernel"))
        return joined.reshape(*joined.shape[:2], -1, width).transpose(0, 2, 1, 3)

    query, key, value = (heads(name) for name in ("q", "k", "v"))
    # Each head of keys and values serves several of queries.
    key, value = (jnp.repeat(shared, layer.heads // layer.kv_heads, axis=1) for shared in (rotate(key, layer), value))
    attended = attend(rotate(query, layer), key, value).transpose(0, 2, 1, 3).reshape(x.shape)
    x = place_middle(x + product(attended, arrays("out_kernel")))
    normed_again = rms_normalise(x, arrays("norm2_scale"))
    network = _experts if isinstance(layer, neutral.MoeBlock) else _gated
    return x + network(layer, arrays, normed_again)


def rotate(heads: Array, layer: neutral.LlamaBlock) -> Array:
    """Pairs of numbers, half a head apart, turned by angles that grow with the position (Su et al., 2021)."""
    length, width = heads.shape[-2:]
    speeds = layer.theta ** -(jnp.arange(0, width, 2, dtype=jnp.float32) / width)
    angles = jnp.tile(jnp.outer(jnp.arange(length, dtype=jnp.float32), speeds), (1, 2))
    first, second = jnp.split(heads, 2, axis=-1)
    turned = jnp.concatenate((-second, first), axis=-1)
    return heads * jnp.cos(angles).astype(heads.dtype) + turned * jnp.sin(angles).astype(heads.dtype)


def _gated(_layer: neutral.LlamaBlock, arrays: Arrays, x: Array) -> Array:
    inner = jax.nn.silu(product(x, arrays("gate_kernel"))) * product(x, arrays("up_kernel"))
    return product(inner, arrays("down_kernel"))


def _experts(layer: neutral.LlamaBlock, arrays: Arrays, x: Array) -> Array:
    """Vectors in the order of their experts, whose products are made group by group."""
    assert isinstance(layer, neutral.MoeBlock)
    flat = x.reshape(-1, x.shape[-1])
    scores = jax.nn.softmax(product(flat, arrays("router_kernel")).astype(jnp.float32), axis=-1)
    shares, experts = lax.top_k(scores, layer.chosen)
    shares = (shares / shares.sum(-1, keepdims=True)).astype(x.dtype)
    order = jnp.argsort(experts.reshape(-1), stable=True)
    counts = jnp.bincount(experts.reshape(-1), length=layer.experts).astype(jnp.int32)
    sources = order // layer.chosen
    vectors = flat[sources]
    gate, up = (lax.ragged_dot(vectors, arrays(name), counts) for name in ("experts_gate", "experts_up"))
    outputs = lax.ragged_dot(jax.nn.silu(gate) * up, arrays("experts_down"), counts)
    outputs = outputs * shares.reshape(-1)[order][:, None]
    return jnp.zeros_like(flat).at[sources].add(outputs).reshape(x.shape)
