"""Models of a user's own that predictions of `gpu_time.py` are tried on; none was looked at to choose a constant."""

from importlib import import_module

import torch
from torch import Tensor, nn
from torch.nn import functional


def plain_network() -> nn.Module:
    """Convolutions and batch norms without shortcuts, for images of 3x96x96."""
    layers: list[nn.Module] = []
    inputs = 3
    for channels in (48, 96, 96, 192, 192, 384):
        layers += [
            nn.Conv2d(inputs, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
        ]
        layers += [nn.MaxPool2d(2)] if channels != inputs else []
        inputs = channels
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 100))


def encoder() -> nn.Module:
    """PyTorch's own encoder with dropout, over 256 vectors of 80 numbers each."""

    class Encoder(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.inputs = nn.Linear(80, 640)
            layer = nn.TransformerEncoderLayer(640, 10, 2560, dropout=0.1, batch_first=True, norm_first=True)
            self.blocks = nn.TransformerEncoder(layer, 10, enable_nested_tensor=False)
            self.head = nn.Linear(640, 40)

        def forward(self, frames: Tensor) -> Tensor:
            head: Tensor = self.head(self.blocks(self.inputs(frames)).mean(1))
            return head

    return Encoder()


def mixer() -> nn.Module:
    """An MLP-Mixer: products over positions and over channels in turn, for images of 3x224x224."""

    class Mixing(nn.Module):  # type: ignore[misc]
        def __init__(self, positions: int, width: int) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.along = nn.Sequential(nn.Linear(positions, 384), nn.GELU(), nn.Linear(384, positions))
            self.across = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

        def forward(self, x: Tensor) -> Tensor:
            x = x + self.along(self.norm1(x).transpose(1, 2)).transpose(1, 2)
            mixed: Tensor = x + self.across(self.norm2(x))
            return mixed

    class Mixer(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.patches = nn.Conv2d(3, 512, 16, stride=16)
            self.blocks = nn.Sequential(*(Mixing(196, 512) for _ in range(8)))
            self.head = nn.Linear(512, 1000)

        def forward(self, images: Tensor) -> Tensor:
            x = self.patches(images).flatten(2).transpose(1, 2)
            scores: Tensor = self.head(self.blocks(x).mean(1))
            return scores

    return Mixer()


def gated_network() -> nn.Module:
    """Wide gated layers over 1,024 numbers, some of them two at a time."""

    class Gated(nn.Module):  # type: ignore[misc]
        def __init__(self, width: int) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(width)
            self.gate, self.up = nn.Linear(width, 3 * width), nn.Linear(width, 3 * width)
            self.down = nn.Linear(3 * width, width)

        def forward(self, x: Tensor) -> Tensor:
            normed = self.norm(x)
            mixed: Tensor = x + self.down(torch.tanh(self.gate(normed)) * self.up(normed))
            return mixed

    return nn.Sequential(nn.Linear(1024, 2048), *(Gated(2048) for _ in range(6)), nn.Linear(2048, 1000))


def unet() -> nn.Module:
    """A U-Net for images of 3x128x128 that gives ten scores: three halvings, joined again on the way up."""

    def twice(inputs: int, outputs: int) -> nn.Sequential:
        sizes = ((inputs, outputs), (outputs, outputs))
        return nn.Sequential(
            *(layer for a, b in sizes for layer in (nn.Conv2d(a, b, 3, padding=1), nn.GroupNorm(8, b), nn.SiLU()))
        )

    class UNet(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Conv2d(3, 64, 3, padding=1)
            self.down = nn.ModuleList([twice(64, 64), twice(64, 128), twice(128, 256)])
            self.middle = twice(256, 512)
            self.up = nn.ModuleList([twice(512 + 256, 256), twice(256 + 128, 128), twice(128 + 64, 64)])
            self.head = nn.Linear(64, 10)

        def forward(self, images: Tensor) -> Tensor:
            x, kept = self.stem(images), []
            for block in self.down:
                x = block(x)
                kept.append(x)
                x = functional.avg_pool2d(x, 2)
            x = self.middle(x)
            for block, skipped in zip(self.up, reversed(kept), strict=True):
                x = block(torch.cat([functional.interpolate(x, scale_factor=2.0), skipped], 1))
            scores: Tensor = self.head(x.mean((2, 3)))
            return scores

    return UNet()


def recurrent() -> nn.Module:
    """A language model of two layers of an LSTM over 8,000 tokens."""

    class Recurrent(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(8000, 1024)
            self.core = nn.LSTM(1024, 1024, num_layers=2, batch_first=True)
            self.head = nn.Linear(1024, 8000)

        def forward(self, tokens: Tensor) -> Tensor:
            scores: Tensor = self.head(self.core(self.embedding(tokens))[0])
            return scores

    return Recurrent()


def two_gates() -> nn.Module:
    """Five layers of two square products each over 6,144 numbers, one through a GELU, behind RMS norms."""

    class Gates(nn.Module):  # type: ignore[misc]
        def __init__(self, width: int) -> None:
            super().__init__()
            self.norm, self.gate, self.up = nn.RMSNorm(width), nn.Linear(width, width), nn.Linear(width, width)

        def forward(self, x: Tensor) -> Tensor:
            normed = self.norm(x)
            mixed: Tensor = x + functional.gelu(self.gate(normed)) * self.up(normed)
            return mixed

    return nn.Sequential(nn.Linear(512, 6144), *(Gates(6144) for _ in range(5)), nn.Linear(6144, 100))


def convnext() -> nn.Module:
    """ConvNeXt, tiny, as torchvision has it."""
    return _of_torchvision("convnext_tiny")


def swin() -> nn.Module:
    """Swin, tiny: attention in shifted windows."""
    return _of_torchvision("swin_t")


def densenet() -> nn.Module:
    """DenseNet of 121 layers: everything is concatenated."""
    return _of_torchvision("densenet121")


def vgg() -> nn.Module:
    """VGG of 16 layers with batch norms."""
    return _of_torchvision("vgg16_bn")


def regnet() -> nn.Module:
    """RegNet: convolutions in groups, squeezed and excited."""
    return _of_torchvision("regnet_y_3_2gf")


def efficientnet() -> nn.Module:
    """EfficientNet V2, small."""
    return _of_torchvision("efficientnet_v2_s")


def wide_resnet() -> nn.Module:
    """A ResNet of 50 layers, twice as wide, with batch norms."""
    return _of_torchvision("wide_resnet50_2")


def mobilenet() -> nn.Module:
    """MobileNet V3, large: convolutions of each channel by itself."""
    return _of_torchvision("mobilenet_v3_large")


def _of_torchvision(name: str) -> nn.Module:
    model: nn.Module = getattr(import_module("torchvision.models"), name)(weights=None)
    return model
