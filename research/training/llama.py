"""A short Llama implementation that trains fast; its parameters have Hugging Face's names.

It is used only for training: `save` writes the weights with transformers, which everybody else loads.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class RMSNorm(nn.Module):
    """Divide by the root mean square, in float32, and scale."""

    def __init__(self, hidden: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(hidden)), eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last axis and keep the type."""
        y = x.float()
        y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + self.eps)
        return y.to(x.dtype) * self.weight.to(x.dtype)


class Attention(nn.Module):
    """Causal attention with rotary positions; several query heads share a key and value head."""

    def __init__(self, hidden: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, hidden // heads
        self.q_proj = nn.Linear(hidden, hidden, bias=False)
        self.k_proj = nn.Linear(hidden, kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(hidden, kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(hidden, hidden, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Attend: x [rows, length, hidden], cos and sin [length, head_dim]."""
        rows, length, _ = x.shape
        q = self.q_proj(x).view(rows, length, self.heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(x).view(rows, length, self.kv_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(x).view(rows, length, self.kv_heads, self.head_dim).transpose(1, 2)
        q, k = _rotate(q, cos, sin), _rotate(k, cos, sin)
        shared = self.heads // self.kv_heads
        k, v = k.repeat_interleave(shared, dim=1), v.repeat_interleave(shared, dim=1)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(out.transpose(1, 2).reshape(rows, length, -1))


class MLP(nn.Module):
    """A gated feed-forward layer."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden, inner, bias=False)
        self.up_proj = nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Apply to the last axis."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """Attention and feed-forward. Each normalises its input and adds its output to it."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        hidden = config["hidden_size"]
        self.self_attn = Attention(hidden, config["num_attention_heads"], config["num_key_value_heads"])
        self.mlp = MLP(hidden, config["intermediate_size"])
        self.input_layernorm = RMSNorm(hidden, config["rms_norm_eps"])
        self.post_attention_layernorm = RMSNorm(hidden, config["rms_norm_eps"])

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Apply the layer: x [rows, length, hidden]."""
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    """Embedding, layers and last norm (Hugging Face calls this part `model`)."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config["vocab_size"], config["hidden_size"])
        self.layers = nn.ModuleList(Layer(config) for _ in range(config["num_hidden_layers"]))
        self.norm = RMSNorm(config["hidden_size"], config["rms_norm_eps"])


class Llama(nn.Module):
    """A causal language model whose output shares the embedding's weights."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        self.config = config
        self.stream_dtype = torch.float32
        self.model = Decoder(config)
        head_dim = config["hidden_size"] // config["num_attention_heads"]
        frequency = config["rope_theta"] ** (-torch.arange(0, head_dim, 2).float() / head_dim)
        angle = torch.outer(torch.arange(config["max_position_embeddings"]).float(), frequency).repeat(1, 2)
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                # Each layer starts as the identity: its output projections are zero.
                zero = "o_proj" in name or "down_proj" in name
                nn.init.zeros_(parameter) if zero else nn.init.normal_(parameter, std=0.02)

    def logits(self, tokens: Tensor) -> Tensor:
        """Return the logits [rows, length, vocabulary] of tokens [rows, length]."""
        length = tokens.shape[1]
        cos, sin = self.cos[:length], self.sin[:length]
        x = self.model.embed_tokens(tokens).to(self.stream_dtype)
        for layer in self.model.layers:
            x = layer(x, cos, sin)
        return F.linear(self.model.norm(x), self.model.embed_tokens.weight)

    def forward(self, tokens: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """Return the weighted mean of the cross-entropy in nats; all arguments [rows, length]."""
        logits = self.logits(tokens).flatten(0, 1).float()
        loss = F.cross_entropy(logits, targets.flatten(), reduction="none")
        return (loss * weights.flatten()).sum() / weights.sum()


def save(model: Llama, folder: Path) -> None:
    """Write the model in bfloat16 as transformers writes it."""
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

    config = {name: value for name, value in model.config.items() if name != "rope_theta"}
    rope = {"rope_type": "default", "rope_theta": model.config["rope_theta"]}
    other = LlamaForCausalLM(LlamaConfig(**config, rope_parameters=rope, dtype=torch.bfloat16)).to(torch.bfloat16)
    state = {name: tensor.detach().to("cpu", torch.bfloat16) for name, tensor in model.state_dict().items()}
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    other.load_state_dict(state)
    ids = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    other.generation_config = GenerationConfig(**ids)
    other.save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, dim=-1)
    return (x * cos + torch.cat((-b, a), dim=-1) * sin).to(x.dtype)
