"""In the style of nanoGPT and of Hugging Face's GPT-2, and such that cannot be cut or split.

A model file: each function without arguments builds a model.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

VOCABULARY, LENGTH, WIDTH, HEADS, DEPTH = 32, 16, 32, 4, 4


class CausalSelfAttention(nn.Module):
    """Queries, keys and values in one layer; features are counted by the input."""

    def __init__(self, per_head_norm: bool = False) -> None:
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.n_head, self.n_embd = HEADS, WIDTH
        self.q_norm = nn.LayerNorm(WIDTH // HEADS) if per_head_norm else None

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        k = k.view(batch, length, self.n_head, width // self.n_head).transpose(1, 2)
        q = q.view(batch, length, self.n_head, width // self.n_head).transpose(1, 2)
        v = v.view(batch, length, self.n_head, width // self.n_head).transpose(1, 2)
        q = q if self.q_norm is None else self.q_norm(q)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).contiguous().view(batch, length, width))


class SecretHeads(nn.Module):
    """The names are well known, and the number of heads is nowhere to be found."""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.o_proj = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            layer(x).unflatten(2, (HEADS, -1)).transpose(1, 2) for layer in (self.q_proj, self.k_proj, self.v_proj)
        )
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).flatten(2))


class Feed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.c_fc, self.gelu, self.c_proj = nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.c_proj(self.gelu(self.c_fc(x)))


class GPTBlock(nn.Module):
    def __init__(self, attention: nn.Module, feed: nn.Module | None) -> None:
        super().__init__()
        self.ln_1, self.attn, self.ln_2 = nn.LayerNorm(WIDTH), attention, nn.LayerNorm(WIDTH)
        self.mlp = feed

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x if self.mlp is None else x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    """In the style of nanoGPT."""

    def __init__(self, blocks: list[GPTBlock], tied: bool = False) -> None:
        super().__init__()
        self.transformer = nn.ModuleDict({
            "wte": nn.Embedding(VOCABULARY, WIDTH), "wpe": nn.Embedding(LENGTH, WIDTH), "drop": nn.Dropout(0.0),
            "h": nn.ModuleList(blocks), "ln_f": nn.LayerNorm(WIDTH),
        })  # fmt: skip
        self.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        if tied:
            self.transformer.wte.weight = self.lm_head.weight

    def forward(self, idx: Tensor) -> Tensor:
        _, length = idx.size()
        assert length <= LENGTH, "the sequence is too long"
        positions = torch.arange(0, length, dtype=torch.long, device=idx.device)
        x = self.transformer.drop(self.transformer.wte(idx) + self.transformer.wpe(positions))
        for block in self.transformer.h:
            x = block(x)
        return self.lm_head(self.transformer.ln_f(x))


def nanogpt() -> nn.Module:
    return GPT([GPTBlock(CausalSelfAttention(), Feed()) for _ in range(DEPTH)])


def tied() -> nn.Module:
    return GPT([GPTBlock(CausalSelfAttention(), Feed()) for _ in range(DEPTH)], tied=True)


def shared_norm() -> nn.Module:
    blocks = [GPTBlock(CausalSelfAttention(), Feed()) for _ in range(DEPTH)]
    for block in blocks:
        block.ln_1 = blocks[0].ln_1
    return GPT(blocks)


def per_head_norm() -> nn.Module:
    return GPT([GPTBlock(CausalSelfAttention(per_head_norm=True), Feed()) for _ in range(DEPTH)])


def secret_heads() -> nn.Module:
    return GPT([GPTBlock(SecretHeads(), None) for _ in range(DEPTH)])


class Conv1D(nn.Module):
    """A dense layer with its kernel the other way round."""

    def __init__(self, nf: int, nx: int) -> None:
        super().__init__()
        self.nf, self.nx = nf, nx
        self.weight, self.bias = nn.Parameter(torch.randn(nx, nf) * 0.05), nn.Parameter(torch.randn(nf) * 0.05)

    def forward(self, x: Tensor) -> Tensor:
        shape = (*x.size()[:-1], self.nf)
        return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view(shape)


class GPT2Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed_dim, self.num_heads, self.head_dim, self.split_size = WIDTH, HEADS, WIDTH // HEADS, WIDTH
        self.c_attn, self.c_proj = Conv1D(3 * WIDTH, WIDTH), Conv1D(WIDTH, WIDTH)

    def forward(self, hidden_states: Tensor) -> tuple[Tensor, None]:
        q, k, v = self.c_attn(hidden_states).split(self.split_size, dim=2)
        q, k, v = (part.view(*part.shape[:-1], -1, self.head_dim).transpose(1, 2) for part in (q, k, v))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
        return self.c_proj(y.reshape(*y.shape[:-2], -1).contiguous()), None


class GPT2MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.c_fc, self.c_proj, self.act = Conv1D(4 * WIDTH, WIDTH), Conv1D(WIDTH, 4 * WIDTH), nn.GELU("tanh")

    def forward(self, hidden_states: Tensor) -> Tensor:
        return self.c_proj(self.act(self.c_fc(hidden_states)))


class GPT2Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.attn, self.ln_2, self.mlp = nn.LayerNorm(WIDTH), GPT2Attention(), nn.LayerNorm(WIDTH), GPT2MLP()

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None) -> tuple[Tensor, None]:
        hidden_states = self.attn(self.ln_1(hidden_states))[0] + hidden_states
        return hidden_states + self.mlp(self.ln_2(hidden_states)), None


class GPT2Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.h, self.ln_f = nn.ModuleList(GPT2Block() for _ in range(DEPTH)), nn.LayerNorm(WIDTH)

    def forward(self, input_ids: Tensor) -> Tensor:
        positions = torch.arange(input_ids.shape[-1], device=input_ids.device).unsqueeze(0)
        hidden_states = self.wte(input_ids) + self.wpe(positions)
        for block in self.h:
            hidden_states = block(hidden_states, attention_mask=None)[0]
        return self.ln_f(hidden_states)


class GPT2(nn.Module):
    """In the style of Hugging Face's GPT-2."""

    def __init__(self) -> None:
        super().__init__()
        self.transformer, self.lm_head = GPT2Model(), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.lm_head(self.transformer(input_ids))


def hf_gpt2() -> nn.Module:
    return GPT2()


class Remembering(GPT):
    """Its embeddings are used again behind the blocks."""

    def forward(self, idx: Tensor) -> Tensor:
        embedded = x = self.transformer.wte(idx)
        for block in self.transformer.h:
            x = block(x)
        return self.lm_head(self.transformer.ln_f(x + embedded))


def remembering() -> nn.Module:
    model = Remembering([GPTBlock(CausalSelfAttention(), Feed()) for _ in range(DEPTH)])
    del model.transformer["wpe"]
    return model


class Peeking(GPT):
    """Its blocks take a mask that is made from the samples."""

    def forward(self, idx: Tensor) -> Tensor:
        x = self.transformer.wte(idx) + self.transformer.wpe(torch.arange(idx.shape[1], device=idx.device))
        if (idx >= VOCABULARY).any():
            x = x * 0
        for block in self.transformer.h:
            x = block(x)
        return self.lm_head(self.transformer.ln_f(x))


def peeking() -> nn.Module:
    return Peeking([GPTBlock(CausalSelfAttention(), Feed()) for _ in range(DEPTH)])
