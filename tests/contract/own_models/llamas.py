"""In the style of Hugging Face's and of torchtitan's Llama.

A model file: each function without arguments builds a model.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

VOCABULARY, LENGTH, WIDTH, HEADS, DEPTH = 32, 16, 32, 4, 4


class RMSNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


class RotaryEmbedding(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("inv_freq", 1 / 100 ** (torch.arange(0, width, 2) / width), persistent=False)

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        angles = position_ids[..., None].float() * self.inv_freq
        angles = torch.cat((angles, angles), -1)
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)


class LlamaAttention(nn.Module):
    """With fewer heads of keys and values, and code that counts all of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden_size, self.num_heads, self.head_dim = WIDTH, HEADS, WIDTH // HEADS
        self.num_key_value_heads = HEADS // 2
        self.num_key_value_groups = self.num_heads // self.num_key_value_heads
        shared = self.num_key_value_heads * self.head_dim
        self.q_proj, self.o_proj = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2))
        self.k_proj, self.v_proj = (nn.Linear(WIDTH, shared, bias=False) for _ in range(2))

    def forward(
        self, hidden_states: Tensor, position_embeddings: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor | None]:
        batch, length, _ = hidden_states.size()
        q = self.q_proj(hidden_states).view(batch, length, self.num_heads, self.head_dim).transpose(1, 2)
        k, v = (layer(hidden_states).view(batch, length, self.num_key_value_heads, self.head_dim).transpose(1, 2)
                for layer in (self.k_proj, self.v_proj))  # fmt: skip
        q, k = rotated(q, *position_embeddings), rotated(k, *position_embeddings)
        k, v = (part.repeat_interleave(self.num_key_value_groups, 1) for part in (k, v))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).reshape(batch, length, self.hidden_size)), None


class LlamaMLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(WIDTH, 3 * WIDTH, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(3 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class LlamaDecoderLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.self_attn, self.mlp = LlamaAttention(), LlamaMLP()
        self.input_layernorm, self.post_attention_layernorm = RMSNorm(WIDTH), RMSNorm(WIDTH)
        self.attention_type = "full_attention"

    def forward(self, hidden_states: Tensor, position_embeddings: tuple[Tensor, Tensor]) -> Tensor:
        attended, _ = self.self_attn(
            hidden_states=self.input_layernorm(hidden_states), position_embeddings=position_embeddings
        )
        hidden_states = hidden_states + attended
        return hidden_states + self.mlp(self.post_attention_layernorm(hidden_states))


class LlamaModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(LlamaDecoderLayer() for _ in range(DEPTH))
        self.norm, self.rotary_emb = RMSNorm(WIDTH), RotaryEmbedding(WIDTH // HEADS)

    def forward(self, input_ids: Tensor) -> Tensor:
        hidden_states = self.embed_tokens(input_ids)
        position_ids = torch.arange(input_ids.shape[1], device=input_ids.device).unsqueeze(0)
        position_embeddings = self.rotary_emb(hidden_states, position_ids)
        for decoder_layer in self.layers:
            assert decoder_layer.attention_type == "full_attention"
            hidden_states = decoder_layer(hidden_states, position_embeddings=position_embeddings)
        return self.norm(hidden_states)


class LlamaForCausalLM(nn.Module):
    """In the style of Hugging Face's Llama."""

    def __init__(self) -> None:
        super().__init__()
        self.model, self.lm_head = LlamaModel(), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.lm_head(self.model(input_ids))


def hf_llama() -> nn.Module:
    return LlamaForCausalLM()


class TitanAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.n_heads, self.n_kv_heads, self.head_dim = HEADS, HEADS // 2, WIDTH // HEADS
        self.n_rep = self.n_heads // self.n_kv_heads
        self.wq, self.wo = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.wk, self.wv = (nn.Linear(WIDTH, self.n_kv_heads * self.head_dim, bias=False) for _ in range(2))

    def forward(self, x: Tensor, freqs_cis: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = (layer(x).view(batch, length, -1, self.head_dim) for layer in (self.wq, self.wk, self.wv))
        turned = []
        for part in (q, k):
            pairs = torch.view_as_complex(part.float().reshape(*part.shape[:-1], -1, 2))
            turned.append(torch.view_as_real(pairs * freqs_cis[:length, None]).flatten(3))
        q, (k, v) = turned[0], (part.repeat_interleave(self.n_rep, 2) for part in (turned[1], v))
        y = functional.scaled_dot_product_attention(*(part.transpose(1, 2) for part in (q, k, v)), is_causal=True)
        return self.wo(y.transpose(1, 2).contiguous().view(batch, length, -1))


class TitanFeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w1, self.w2 = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(3 * WIDTH, WIDTH, bias=False)
        self.w3 = nn.Linear(WIDTH, 3 * WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(functional.silu(self.w1(x)) * self.w3(x))


class TransformerBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.feed_forward = TitanAttention(), TitanFeedForward()
        self.attention_norm, self.ffn_norm = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)

    def forward(self, x: Tensor, freqs_cis: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), freqs_cis)
        return x + self.feed_forward(self.ffn_norm(x))


class Transformer(nn.Module):
    """In the style of torchtitan's Llama."""

    def __init__(self) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(VOCABULARY, WIDTH)
        angles = torch.outer(torch.arange(LENGTH), 1 / 100 ** (torch.arange(0, WIDTH // HEADS, 2) * HEADS / WIDTH))
        self.register_buffer("freqs_cis", torch.polar(torch.ones_like(angles), angles), persistent=False)
        self.layers = nn.ModuleDict({str(number): TransformerBlock() for number in range(DEPTH)})
        self.norm, self.output = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.tok_embeddings(tokens)
        for layer in self.layers.values():
            h = layer(h, self.freqs_cis)
        return self.output(self.norm(h))


def torchtitan() -> nn.Module:
    return Transformer()
