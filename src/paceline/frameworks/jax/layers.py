"""What JAX knows of each kind of layer: its forward pass, as a function of its arrays and its input."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from paceline.frameworks.jax.image_layers import image_forward
from paceline.frameworks.jax.transformer_layers import joint_attention, normalise, product, rows, transformer_forward
from paceline.workloads.layers import Block, Conv, Dense, Embed, Layer, MaxPool, Norm

# Measured with XLA of jaxlib 0.10 on an EPYC core: with 1 input channel the gradient of a kernel takes a quarter of the
# time as one matrix product, with 128 it makes no difference.
FEW_CHANNELS = 8
# One layer's arrays, by their neutral names.
Arrays = Callable[[str], Any]


def forward(  # noqa: PLR0911 - one per kind of layer
    layer: Layer, arrays: Arrays, x: Array, place_middle: Callable[[Array], Array]
) -> Array:
    """A layer's output, a convolution's bias and ReLU aside; `place_middle` is called on what is within a block."""
    match layer:
        case Conv():
            return convolve(x, arrays("kernel"))
        case MaxPool(size):
            return max_pool(x, size)
        case Dense():
            return dense(x, arrays("kernel"), arrays("bias"))
        case Embed():
            return rows(arrays("tokens"), x) + arrays("positions")
        case Norm():
            return normalise(x, arrays("scale"), arrays("shift"))
        case Block(heads):
            return _block(arrays, x, heads, place_middle)
    for output in (transformer_forward(layer, arrays, x, place_middle), image_forward(layer, arrays, x)):
        if output is not None:
            return output
    raise TypeError(f"no JAX function for {type(layer).__name__}")


def convolve(x: Array, kernel: Array) -> Array:
    """A convolution that keeps height and width."""
    if x.shape[-1] <= FEW_CHANNELS and jax.default_backend() == "cpu":
        few: Array = _convolve_few(x, kernel)
        return few
    return _convolve(x, kernel)


def _convolve(x: Array, kernel: Array) -> Array:
    return lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def _few_forward(x: Array, kernel: Array) -> tuple[Array, tuple[Array, Array]]:
    return _convolve(x, kernel), (x, kernel)


def _few_backward(residuals: tuple[Array, Array], gradient: Array) -> tuple[Array, Array]:
    """The kernel's gradient as one matrix product of shifted inputs, which XLA's own form of it is slow at on CPU."""
    x, kernel = residuals
    (n, high, wide, channels), (size, _, _, outputs) = x.shape, kernel.shape
    edges = ((size - 1) // 2, size // 2)
    padded = jnp.pad(x.transpose(3, 0, 1, 2), ((0, 0), (0, 0), edges, edges))
    shifted = [padded[:, :, i : i + high, j : j + wide].reshape(channels, -1) for i in range(size) for j in range(size)]
    columns = jnp.stack(shifted).reshape(size * size * channels, -1)
    product = columns @ gradient.reshape(n * high * wide, outputs)
    (x_gradient,) = jax.vjp(lambda image: _convolve(image, kernel), x)[1](gradient)
    return x_gradient, product.reshape(kernel.shape)


_convolve_few: Any = jax.custom_vjp(_convolve)
_convolve_few.defvjp(_few_forward, _few_backward)


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def max_pool(x: Array, size: int) -> Array:
    """The largest of slices; the gradient of `lax.reduce_window` makes a step several times slower on CPU."""
    return _largest(_corners(x, size))


def _largest(arrays: list[Array]) -> Array:
    """The maximum of several arrays, halved again and again: in a chain each would wait for the one before."""
    half = len(arrays) // 2
    return jnp.maximum(_largest(arrays[:half]), _largest(arrays[half:])) if half else arrays[0]


def _corners(x: Array, size: int) -> list[Array]:
    """The pixels of each square, taken apart."""
    high, wide = (side // size * size for side in x.shape[1:3])
    return [x[:, i:high:size, j:wide:size] for i in range(size) for j in range(size)]


def _pool_forward(x: Array, size: int) -> tuple[Array, tuple[Array, Array]]:
    largest = max_pool(x, size)
    return largest, (x, largest)


def _pool_backward(size: int, residuals: tuple[Array, Array], gradient: Array) -> tuple[Array]:
    """Gives the gradient to the first of those that are largest, as PyTorch does."""
    (x, largest), last = residuals, size * size - 1
    (n, high, wide, channels), (_, rows, columns, _) = x.shape, largest.shape
    chosen: Any = last
    for number, corner in reversed(list(enumerate(_corners(x, size)[:last]))):
        chosen = jnp.where(corner == largest, number, chosen)
    chosen = jnp.broadcast_to(chosen, largest.shape).astype(jnp.int16)
    numbers = jnp.arange(last + 1, dtype=jnp.int16).reshape(1, 1, size, 1, size, 1)
    spread = jnp.where(chosen[:, :, None, :, None] == numbers, gradient[:, :, None, :, None], 0)
    spread = spread.reshape(n, rows * size, columns * size, channels)
    return (jnp.pad(spread, ((0, 0), (0, high - rows * size), (0, wide - columns * size), (0, 0))),)


max_pool.defvjp(_pool_forward, _pool_backward)


def dense(x: Array, kernel: Array, bias: Array) -> Array:
    """A product and a bias."""
    return product(x, kernel) + bias


def _block(arrays: Arrays, x: Array, heads: int, place_middle: Callable[[Array], Array]) -> Array:
    def part(name: str, y: Array) -> Array:
        return dense(y, arrays(f"{name}_kernel"), arrays(f"{name}_bias"))

    def norm(name: str) -> Array:
        return normalise(x, arrays(f"{name}_scale"), arrays(f"{name}_shift"))

    x = place_middle(x + part("out", joint_attention(arrays, norm("norm1"), heads, causal=True)))
    return x + part("down", jax.nn.gelu(part("up", norm("norm2")), approximate=True))
