"""Transformers as users bring them: the attribute names and the flow of code of well-known repositories, and small.

Also a model file: each function without arguments builds one of them.
"""

import math

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
