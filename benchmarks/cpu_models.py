"""Models of a user's own that predictions of `cpu_operations.py` are tried on."""

from torch import Tensor, nn


def normed_images() -> nn.Module:
    """Convolutions with batch norms, for images of 3x32x32."""
    layers: list[nn.Module] = []
    inputs = 3
    for channels in (32, 64, 64, 128):
        layers += [
            nn.Conv2d(inputs, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
        ]
        layers += [nn.MaxPool2d(2)] if channels != inputs else []
        inputs = channels
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 10))


def recurrent() -> nn.Module:
    """A recurrent network of two layers, for 32 vectors of 64 numbers."""

    class Recurrent(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.cells = nn.LSTM(64, 128, num_layers=2, batch_first=True)
            self.head = nn.Linear(128, 10)

        def forward(self, frames: Tensor) -> Tensor:
            states, _ = self.cells(frames)
            scores: Tensor = self.head(states[:, -1])
            return scores

    return Recurrent()


def attentive() -> nn.Module:
    """PyTorch's own encoder without dropout, for 64 vectors of 48 numbers."""

    class Attentive(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.inputs = nn.Linear(48, 144)
            layer = nn.TransformerEncoderLayer(144, 6, 432, dropout=0.0, batch_first=True, norm_first=True)
            self.blocks = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
            self.head = nn.Linear(144, 10)

        def forward(self, frames: Tensor) -> Tensor:
            scores: Tensor = self.head(self.blocks(self.inputs(frames)).mean(1))
            return scores

    return Attentive()
