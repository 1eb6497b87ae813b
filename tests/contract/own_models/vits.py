"""In the style of timm's vision transformer.

A model file: each function without arguments builds a model.
"""

import math

import torch
from torch import Tensor, nn

WIDTH, HEADS, DEPTH = 32, 4, 4


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.num_heads, self.head_dim, self.scale = HEADS, WIDTH // HEADS, math.sqrt(HEADS / WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        B, N, C = x.shape
        q, k, v = self.qkv(x).reshape(B, N, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4).unbind(0)
        weights = ((q * self.scale) @ k.transpose(-2, -1)).softmax(-1)
        return self.proj((weights @ v).transpose(1, 2).reshape(B, N, C))


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.act, self.fc2 = nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.act(self.fc1(x)))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.attn, self.norm2, self.mlp = nn.LayerNorm(WIDTH), Attention(), nn.LayerNorm(WIDTH), Mlp()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class PatchEmbed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, WIDTH, 2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(x).flatten(2).transpose(1, 2)


class VisionTransformer(nn.Module):
    """In the style of timm."""

    def __init__(self) -> None:
        super().__init__()
        self.patch_embed, self.blocks = PatchEmbed(), nn.Sequential(*(Block() for _ in range(DEPTH)))
        self.cls_token = nn.Parameter(torch.randn(1, 1, WIDTH) * 0.02)
        self.pos_embed = nn.Parameter(torch.randn(1, 17, WIDTH) * 0.02)
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch_embed(x)
        x = torch.cat((self.cls_token.expand(len(x), -1, -1), x), 1) + self.pos_embed
        return self.head(self.norm(self.blocks(x))[:, 0])


def timm_vit() -> nn.Module:
    return VisionTransformer()
