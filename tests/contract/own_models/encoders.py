"""PyTorch's own layers of a transformer, which have attention and the layers behind it in one module.

A model file: each function without arguments builds a model.
"""

from torch import Tensor, nn

VOCABULARY, WIDTH, HEADS, DEPTH = 32, 32, 4, 4


class Encoder(nn.Module):
    """Layers of `nn.TransformerEncoder`."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 2 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.embed, self.before = nn.Embedding(VOCABULARY, WIDTH), nn.LayerNorm(WIDTH)
        self.encoder = nn.TransformerEncoder(layer, DEPTH, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, x: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device)
        return self.head(self.encoder(self.before(self.embed(x)), mask=mask, is_causal=True))


def torch_encoder() -> nn.Module:
    return Encoder()
