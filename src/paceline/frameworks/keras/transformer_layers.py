"""Keras layers of today's transformers: Llama's block, encoders, tied heads."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import ops

from paceline.workloads import transformer_layers as neutral
from paceline.workloads.layers import MLP_OVER_WIDTH, NORM_EPSILON, Layer, Shape

# What a masked score is lowered by: its softmax is zero in every precision, and no infinities meet.
MASKED = -1e9


def norm_layer(name: str) -> keras.layers.Layer:
    """Layer normalisation."""
    return keras.layers.LayerNormalization(epsilon=NORM_EPSILON, name=name)


def dense_layer(units: int, name: str, bias: bool = True) -> keras.layers.Layer:
    """A fully connected layer."""
    return keras.layers.Dense(units, use_bias=bias, kernel_initializer="zeros", name=name)


def attend(queries: Any, keys: Any, values: Any, causal: bool) -> Any:
    """Attention over (n, heads, length, numbers of a head), with its heads side by side again."""
    length, width = queries.shape[-2:]
    scores = ops.matmul(queries, ops.transpose(keys, (0, 1, 3, 2))) * (width**-0.5)
    if causal:
        scores = scores + ops.cast(np.triu(np.full((length, length), MASKED, np.float32), 1), scores.dtype)
    attended = ops.matmul(ops.softmax(scores, axis=-1), values)
    return ops.reshape(ops.transpose(attended, (0, 2, 1, 3)), (-1, length, queries.shape[1] * width))


def joint_attention(qkv: Any, heads: int, causal: bool) -> Any:
    """Attention of (n, length, 3 x heads x head width), with queries, keys and values side by side."""
    length, width = qkv.shape[1], qkv.shape[2] // 3
    parts = ops.transpose(ops.reshape(qkv, (-1, length, 3, heads, width // heads)), (2, 0, 3, 1, 4))
    return attend(parts[0], parts[1], parts[2], causal)


class TokenEmbedLayer(keras.layers.Layer):
    """A vector for each token."""

    def __init__(self, vocabulary: int, width: int, **fields: Any) -> None:
        super().__init__(**fields)
        self.vocabulary, self.width = vocabulary, width

    def build(self, input_shape: Shape) -> None:
        """Makes the table of tokens."""
        self.tokens = self.add_weight(shape=(self.vocabulary, self.width), initializer="zeros", name="tokens")

    def call(self, tokens: Any) -> Any:
        """(n, length) to (n, length, width)."""
        return ops.take(ops.convert_to_tensor(self.tokens), tokens, axis=0)


class BertEmbedLayer(TokenEmbedLayer):
    """Tokens, positions and the first segment, added and normalised."""

    def __init__(self, vocabulary: int, width: int, **fields: Any) -> None:
        super().__init__(vocabulary, width, **fields)
        self.norm = norm_layer("norm")

    def build(self, input_shape: Shape) -> None:
        """Makes three tables and the norm."""
        super().build(input_shape)
        self.positions = self.add_weight(shape=(input_shape[1], self.width), initializer="zeros", name="positions")
        self.segments = self.add_weight(shape=(neutral.SEGMENTS, self.width), initializer="zeros", name="segments")
        self.norm.build((*input_shape, self.width))

    def call(self, tokens: Any) -> Any:
        """(n, length) to (n, length, width)."""
        beside = ops.convert_to_tensor(self.positions) + ops.convert_to_tensor(self.segments)[0]
        return self.norm(super().call(tokens) + beside)


class RmsNormLayer(keras.layers.Layer):
    """Division by the root mean square, in single precision whatever the rest is in."""

    def build(self, input_shape: Shape) -> None:
        """Makes the scale."""
        self.gamma = self.add_weight(shape=(input_shape[-1],), initializer="ones", name="gamma")

    def call(self, x: Any) -> Any:
        """The same shape."""
        wide = ops.cast(x, "float32")
        root = ops.rsqrt(ops.mean(ops.square(wide), axis=-1, keepdims=True) + NORM_EPSILON)
        return ops.cast(wide * root, x.dtype) * ops.convert_to_tensor(self.gamma)


class TiedHeadLayer(keras.layers.Layer):
    """Scores by the table of tokens of another layer."""

    def __init__(self, embed: Any, vocabulary: int, bias: bool, **fields: Any) -> None:
        super().__init__(**fields)
        # Behind a function, so that Keras does not take it for a layer of this one and count its variables twice.
        self._embed: Callable[[], Any] = lambda: embed
        self.vocabulary, self.has_bias = vocabulary, bias

    def build(self, input_shape: Shape) -> None:
        """Makes the bias, if there is one."""
        if self.has_bias:
            self.bias = self.add_weight(shape=(self.vocabulary,), initializer="zeros", name="bias")

    def call(self, x: Any) -> Any:
        """(n, length, width) to (n, length, vocabulary)."""
        table = ops.cast(ops.convert_to_tensor(self._embed().tokens), x.dtype)
        scores = ops.matmul(x, ops.transpose(table))
        return scores + ops.convert_to_tensor(self.bias) if self.has_bias else scores


class JointBlockLayer(keras.layers.Layer):
    """A block with one array for queries, keys and values, and norms before or after its halves.

    A causal one is GPT's, whose GELU is by tanh (Radford et al., 2019); an encoder's is exact.
    """

    def __init__(self, width: int, heads: int, causal: bool, norm_first: bool = True, **fields: Any) -> None:
        super().__init__(**fields)
        self.heads, self.causal, self.norm_first = heads, causal, norm_first
        self.norm1, self.norm2 = norm_layer("norm1"), norm_layer("norm2")
        self.qkv, self.out = dense_layer(3 * width, "qkv"), dense_layer(width, "out")
        self.up, self.down = dense_layer(MLP_OVER_WIDTH * width, "up"), dense_layer(width, "down")

    def build(self, input_shape: Shape) -> None:
        """Builds the inner layers; all but the last take the width of the input."""
        for layer in (self.norm1, self.norm2, self.qkv, self.out, self.up):
            layer.build(input_shape)
        self.down.build((*input_shape[:-1], MLP_OVER_WIDTH * input_shape[-1]))

    def call(self, x: Any) -> Any:
        """(n, length, width) to the same."""
        if self.norm_first:
            x = x + self._attention(self.norm1(x))
            return x + self._network(self.norm2(x))
        x = self.norm1(x + self._attention(x))
        return self.norm2(x + self._network(x))

    def _attention(self, x: Any) -> Any:
        return self.out(joint_attention(self.qkv(x), self.heads, self.causal))

    def _network(self, x: Any) -> Any:
        return self.down(ops.gelu(self.up(x), approximate=self.causal))


class LlamaLayer(keras.layers.Layer):
    """A block with RMS norms, rotated queries and keys, shared keys and values, and a gated network."""

    def __init__(self, width: int, block: neutral.LlamaBlock, **fields: Any) -> None:
        super().__init__(**fields)
        self.block, self.head_width = block, width // block.heads
        shared = block.kv_heads * self.head_width
        self.norm1, self.norm2 = RmsNormLayer(name="norm1"), RmsNormLayer(name="norm2")
        self.q, self.out = dense_layer(width, "q", bias=False), dense_layer(width, "out", bias=False)
        self.k, self.v = dense_layer(shared, "k", bias=False), dense_layer(shared, "v", bias=False)
        self.gate = dense_layer(block.hidden, "gate", bias=False)
        self.up, self.down = dense_layer(block.hidden, "up", bias=False), dense_layer(width, "down", bias=False)

    def build(self, input_shape: Shape) -> None:
        """Builds the inner layers; all but the last take the width of the input."""
        for layer in (self.norm1, self.norm2, self.q, self.k, self.v, self.out, self.gate, self.up):
            layer.build(input_shape)
        self.down.build((*input_shape[:-1], self.block.hidden))

    def call(self, x: Any) -> Any:
        """(n, length, width) to the same."""
        normed = self.norm1(x)
        queries, keys, values = (self._heads(part(normed)) for part in (self.q, self.k, self.v))
        sharing = self.block.heads // self.block.kv_heads
        keys, values = (ops.repeat(shared, sharing, axis=1) for shared in (self._rotate(keys), values))
        x = x + self.out(attend(self._rotate(queries), keys, values, causal=True))
        normed = self.norm2(x)
        return x + self.down(ops.silu(self.gate(normed)) * self.up(normed))

    def _heads(self, joined: Any) -> Any:
        parts = ops.reshape(joined, (-1, joined.shape[1], joined.shape[2] // self.head_width, self.head_width))
        return ops.transpose(parts, (0, 2, 1, 3))

    def _rotate(self, heads: Any) -> Any:
        """Pairs of numbers, half a head apart, turned by angles that grow with the position (Su et al., 2021)."""
        length, width = heads.shape[-2:]
        speeds = self.block.theta ** -(np.arange(0, width, 2, dtype=np.float32) / width)
        angles = np.tile(np.outer(np.arange(length, dtype=np.float32), speeds), (1, 2)).astype(np.float32)
        first, second = ops.split(heads, 2, axis=-1)
        turned = ops.concatenate((-second, first), axis=-1)
        return heads * ops.cast(np.cos(angles), heads.dtype) + turned * ops.cast(np.sin(angles), heads.dtype)


# Layers whose arrays are those of layers inside them.
NESTED = (JointBlockLayer, LlamaLayer, BertEmbedLayer)


def transformer_layer(name: str, layer: Layer, shape: Shape) -> keras.layers.Layer | None:  # noqa: PLR0911 - one per kind
    """The Keras layer of a layer of this kind, tied heads aside; None for other layers."""
    match layer:
        case neutral.BertEmbed(vocabulary, width):
            return BertEmbedLayer(vocabulary, width, name=name)
        case neutral.TokenEmbed(vocabulary, width):
            return TokenEmbedLayer(vocabulary, width, name=name)
        case neutral.RmsNorm():
            return RmsNormLayer(name=name)
        case neutral.Linear(units):
            return dense_layer(units, name, bias=False)
        case neutral.Gelu():
            return keras.layers.Activation(lambda x: ops.gelu(x, approximate=False), name=name)
        case neutral.EncoderBlock(heads, norm_first):
            return JointBlockLayer(shape[-1], heads, causal=False, norm_first=norm_first, name=name)
        case neutral.MoeBlock():
            return None
        case neutral.LlamaBlock():
            return LlamaLayer(shape[-1], layer, name=name)
    return None
