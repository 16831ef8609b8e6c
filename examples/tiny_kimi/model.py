# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""The target and the draft as dense training modules: whole rows of tokens, no cache, no paging.

They compute what the package's engine computes, written independently of it and for speed of
training on a CPU: plain matrix products instead of SDPA, and experts as one autograd function over
rows sorted by expert. `export.py` translates their parameters to Hugging Face names.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# Boundary b is the residual stream before 0-based layer b. On purpose none of the triples that
# hosts default to: one that ignores the draft's own ids is found out by its acceptance.
CAPTURED_BOUNDARIES = (3, 5, 7)
_MASKED = -1e9  # finite, so that padding rows cannot make NaN


@dataclass(frozen=True, kw_only=True)
class Yarn:
    """YaRN settings under their Hugging Face names (arXiv 2309.00071, DeepSeek's variant)."""

    factor: float = 4.0
    original_max_position_embeddings: int = 1024
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float = 1.0
    mscale_all_dim: float = 1.0


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Sizes of a model, under their Hugging Face names where those exist.

    The MLA sizes, and multiples of 128 elsewhere, are what TensorRT-LLM's kernels ask for.

    Attributes:
        latent_norm_eps: Epsilon of the norms of the q and kv latents. DeepSeek's modelling code
            uses 1e-6 in targets whatever `rms_norm_eps` says; drafts use their `rms_norm_eps`.
    """

    vocab_size: int = 896
    hidden_size: int = 256
    num_layers: int = 8
    num_heads: int = 2
    q_lora_rank: int = 128
    kv_lora_rank: int = 512
    qk_nope_head_dim: int = 128
    qk_rope_head_dim: int = 64
    v_head_dim: int = 128
    intermediate_size: int = 512
    moe_intermediate_size: int = 128
    num_experts: int = 8
    num_experts_per_tok: int = 2
    num_shared_experts: int = 1
    first_k_dense_replace: int = 1
    routed_scaling_factor: float = 2.0
    rms_norm_eps: float = 1e-5
    latent_norm_eps: float = 1e-6
    rope_theta: float = 50000.0
    max_position_embeddings: int = 4096
    yarn: Yarn = Yarn()

    @property
    def qk_head_dim(self) -> int:
        """Width of one query head: nope + rope."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim


TARGET = ModelConfig()
# Rotary settings of its own, as in public Kimi drafts: a host that lends the target's is found out.
DRAFT = replace(
    TARGET, num_layers=1, latent_norm_eps=TARGET.rms_norm_eps, yarn=replace(Yarn(), beta_fast=1.0)
)


def yarn_magnitude(factor: float, mscale: float) -> float:
    """Returns YaRN's `m(factor, mscale) = 0.1 * mscale * ln(factor) + 1`; 1 below a factor of 1."""
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


def rope_tables(config: ModelConfig) -> tuple[Tensor, Tensor]:
    """Returns cos and sin, each [max_position_embeddings, qk_rope_head_dim / 2], float32."""
    yarn, dim = config.yarn, config.qk_rope_head_dim
    exponents = torch.arange(0, dim, 2, dtype=torch.float64) / dim
    frequencies = config.rope_theta**-exponents

    def dimension_of(rotations: float) -> float:
        """The pair that turns so many times over the original length."""
        length = yarn.original_max_position_embeddings
        return (
            dim * math.log(length / (rotations * 2 * math.pi)) / (2 * math.log(config.rope_theta))
        )

    low = max(math.floor(dimension_of(yarn.beta_fast)), 0)
    high = min(math.ceil(dimension_of(yarn.beta_slow)), dim - 1)
    width = max(high - low, 0.001)
    ramp = ((torch.arange(dim // 2, dtype=torch.float64) - low) / width).clamp(0, 1)
    frequencies = frequencies / yarn.factor * ramp + frequencies * (1 - ramp)
    positions = torch.arange(config.max_position_embeddings, dtype=torch.float64)
    angles = positions[:, None] * frequencies
    magnitude = yarn_magnitude(yarn.factor, yarn.mscale)
    magnitude /= yarn_magnitude(yarn.factor, yarn.mscale_all_dim)
    return (angles.cos() * magnitude).float(), (angles.sin() * magnitude).float()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates interleaved pairs: x [..., row_len, dim], cos and sin [row_len, dim / 2]."""
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)


def causal_mask(length: int, device: torch.device) -> Tensor:
    """Returns [length, length] bool, true where a query must not look."""
    return torch.ones(length, length, dtype=torch.bool, device=device).triu(1)


def linear(in_features: int, out_features: int) -> nn.Linear:
    """A linear layer without bias, initialised to keep the scale of its input below one."""
    layer = nn.Linear(in_features, out_features, bias=False)
    nn.init.normal_(layer.weight, std=0.7 * in_features**-0.5)
    return layer


class RMSNorm(nn.Module):
    """Root-mean-square norm with a weight, in the dtype of its input."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), self.eps)


class Attention(nn.Module):
    """Multi-head latent attention in its expanded form.

    Args:
        config: Sizes.
        in_features: Width of the input; the first layer of a draft reads twice its hidden size.
    """

    def __init__(self, config: ModelConfig, in_features: int) -> None:
        super().__init__()
        self.config = config
        heads, eps = config.num_heads, config.latent_norm_eps
        self.q_a_proj = linear(in_features, config.q_lora_rank)
        self.q_a_layernorm = RMSNorm(config.q_lora_rank, eps)
        self.q_b_proj = linear(config.q_lora_rank, heads * config.qk_head_dim)
        self.kv_a_proj_with_mqa = linear(in_features, config.kv_lora_rank + config.qk_rope_head_dim)
        self.kv_a_layernorm = RMSNorm(config.kv_lora_rank, eps)
        self.kv_b_proj = linear(
            config.kv_lora_rank, heads * (config.qk_nope_head_dim + config.v_head_dim)
        )
        self.o_proj = linear(heads * config.v_head_dim, config.hidden_size)
        magnitude = yarn_magnitude(config.yarn.factor, config.yarn.mscale_all_dim)
        self.scale = config.qk_head_dim**-0.5 * magnitude**2

    def project(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns queries, keys and values, each [rows, num_heads, row_len, head_dim]."""
        config = self.config
        rows, length, _ = x.shape
        nope, heads = config.qk_nope_head_dim, config.num_heads
        q = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x)))
        q = q.view(rows, length, heads, -1).transpose(1, 2)
        latent, k_rope = self.kv_a_proj_with_mqa(x).split(
            (config.kv_lora_rank, config.qk_rope_head_dim), -1
        )
        kv = self.kv_b_proj(self.kv_a_layernorm(latent)).view(rows, length, heads, -1)
        k_nope, v = kv.transpose(1, 2).split((nope, config.v_head_dim), -1)
        q_rope = rotate(q[..., nope:], cos, sin).to(q.dtype)
        k_rope = rotate(k_rope, cos, sin).to(q.dtype)[:, None].expand(-1, heads, -1, -1)
        return torch.cat((q[..., :nope], q_rope), -1), torch.cat((k_nope, k_rope), -1), v

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        q, k, v = self.project(x, cos, sin)
        scores = (torch.matmul(q, k.mT) * self.scale).masked_fill(mask, _MASKED)
        output = torch.matmul(torch.softmax(scores, -1).to(v.dtype), v)
        return self.o_proj(output.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    """SwiGLU."""

    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.gate_proj = linear(hidden_size, intermediate_size)
        self.up_proj = linear(hidden_size, intermediate_size)
        self.down_proj = linear(intermediate_size, hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class _GroupedExperts(torch.autograd.Function):
    """SwiGLU experts over rows sorted by expert, one matrix product per expert and weight.

    A written backward pass keeps autograd from recording, and zero-filling, a slice per expert.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, wgu: Tensor, wd: Tensor, counts: Sequence[int]) -> Tensor:
        """x [num_rows, hidden], wgu [experts, 2 * inter, hidden], wd [experts, hidden, inter]."""
        outputs, projected = [], []
        for expert, rows in enumerate(x.split(counts)):
            gate_up = rows @ wgu[expert].t()
            gate, up = gate_up.chunk(2, -1)
            projected.append(gate_up)
            outputs.append((F.silu(gate) * up) @ wd[expert].t())
        ctx.save_for_backward(x, wgu, wd, torch.cat(projected))
        ctx.counts = counts
        return torch.cat(outputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        x, wgu, wd, gate_up = ctx.saved_tensors
        grad_x, grad_wgu, grad_wd = torch.empty_like(x), torch.zeros_like(wgu), torch.zeros_like(wd)
        gate, up = gate_up.chunk(2, -1)
        sigmoid = torch.sigmoid(gate)
        silu = gate * sigmoid
        silu_slope = sigmoid * (1 + gate * (1 - sigmoid))
        hidden = silu * up
        start = 0
        for expert, count in enumerate(ctx.counts):
            if count == 0:
                continue
            rows = slice(start, start + count)
            start += count
            grad_wd[expert] = grad[rows].t() @ hidden[rows]
            grad_hidden = grad[rows] @ wd[expert]
            grad_gate = grad_hidden * up[rows] * silu_slope[rows]
            grad_gate_up = torch.cat((grad_gate, grad_hidden * silu[rows]), -1)
            grad_wgu[expert] = grad_gate_up.t() @ x[rows]
            grad_x[rows] = grad_gate_up @ wgu[expert]
        return grad_x, grad_wgu, grad_wd, None


class MoE(nn.Module):
    """Experts chosen by sigmoid scores plus a bias that balances their load (noaux_tc).

    Parameters and buffers: `gate` [experts, hidden]; `bias` [experts], the correction that only
    the choice sees; `load` [experts], rows per expert since the last balancing; `wgu`
    [experts, 2 * inter, hidden], gate rows first; `wd` [experts, hidden, inter]; `shared`.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        experts, hidden = config.num_experts, config.hidden_size
        inter = config.moe_intermediate_size
        self.gate = nn.Parameter(torch.randn(experts, hidden) * 0.02)
        self.register_buffer("bias", torch.zeros(experts))
        self.register_buffer("load", torch.zeros(experts))
        self.wgu = nn.Parameter(torch.randn(experts, 2 * inter, hidden) * 0.7 * hidden**-0.5)
        self.wd = nn.Parameter(torch.randn(experts, hidden, inter) * 0.7 * inter**-0.5)
        self.shared = MLP(hidden, inter * config.num_shared_experts)

    def route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Returns expert ids and weights, each [num_tokens, num_experts_per_tok]."""
        with torch.autocast(x.device.type, enabled=False):
            scores = torch.sigmoid(x.to(self.gate.dtype) @ self.gate.t())
        ids = (scores.detach() + self.bias).topk(self.config.num_experts_per_tok, -1).indices
        weights = scores.gather(1, ids)
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        return ids, weights * self.config.routed_scaling_factor

    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, x.shape[-1])
        ids, weights = self.route(flat)
        counts = torch.bincount(ids.flatten(), minlength=self.config.num_experts)
        if self.training:
            self.load += counts
        order = ids.flatten().argsort(stable=True)
        tokens = order // self.config.num_experts_per_tok
        device = x.device.type
        autocast = torch.is_autocast_enabled(device)
        dtype = torch.get_autocast_dtype(device) if autocast else flat.dtype
        rows = flat.to(dtype).index_select(0, tokens)
        y = _GroupedExperts.apply(rows, self.wgu.to(dtype), self.wd.to(dtype), counts.tolist())
        y = y * weights.flatten()[order][:, None].to(dtype)
        routed = torch.zeros(flat.shape, dtype=dtype, device=x.device).index_add(0, tokens, y)
        return self.shared(x) + routed.view(x.shape)


class Layer(nn.Module):
    """One layer of the target."""

    def __init__(self, config: ModelConfig, index: int) -> None:
        super().__init__()
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.input_layernorm = RMSNorm(hidden, eps)
        self.self_attn = Attention(config, hidden)
        self.post_attention_layernorm = RMSNorm(hidden, eps)
        dense = index < config.first_k_dense_replace
        self.mlp = MLP(hidden, config.intermediate_size) if dense else MoE(config)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, mask)
        return x + self.mlp(self.post_attention_layernorm(x))


class Target(nn.Module):
    """The target: MLA and mixture of experts, as DeepSeek-V3 and Kimi-K2."""

    def __init__(self, config: ModelConfig = TARGET) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size)
        nn.init.normal_(self.embed.weight, std=1.0)
        self.layers = nn.ModuleList(Layer(config, i) for i in range(config.num_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.head = linear(config.hidden_size, config.vocab_size)
        cos, sin = rope_tables(config)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(
        self, ids: Tensor, capture: Collection[int] = ()
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """Runs whole rows.

        Args:
            ids: [rows, row_len] int64, each row from position 0.
            capture: Boundaries whose states are wanted.

        Returns:
            States after the final norm, for `head`, and the captured ones by boundary; each
            [rows, row_len, hidden_size].
        """
        length = ids.shape[1]
        mask = causal_mask(length, ids.device)
        x = self.embed(ids)
        captured = {}
        for boundary, layer in enumerate(self.layers):
            if boundary in capture:
                captured[boundary] = x
            x = layer(x, self.cos[:length], self.sin[:length], mask)
        if len(self.layers) in capture:
            captured[len(self.layers)] = x
        return self.norm(x), captured


class Draft(nn.Module):
    """The MLA Eagle3 draft: one layer, with the flags `fc_norm` and `norm_output`."""

    def __init__(
        self, config: ModelConfig = DRAFT, num_captured: int = len(CAPTURED_BOUNDARIES)
    ) -> None:
        super().__init__()
        self.config = config
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.fc_norm = nn.ModuleList(RMSNorm(hidden, eps) for _ in range(num_captured))
        self.fc = linear(num_captured * hidden, hidden)
        self.hidden_norm = RMSNorm(hidden, eps)
        self.input_layernorm = RMSNorm(hidden, eps)
        self.self_attn = Attention(config, 2 * hidden)
        self.post_attention_layernorm = RMSNorm(hidden, eps)
        self.mlp = MLP(hidden, config.intermediate_size)
        self.norm = RMSNorm(hidden, eps)
        self.lm_head = linear(hidden, config.vocab_size)
        cos, sin = rope_tables(config)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def combine(self, states: Sequence[Tensor]) -> Tensor:
        """Fuses captured states, each [rows, row_len, hidden_size], to one."""
        normed = [norm(x) for norm, x in zip(self.fc_norm, states, strict=True)]
        return self.fc(torch.cat(normed, -1))

    def step(
        self,
        state: Tensor,
        embedding: Tensor,
        offset: int,
        past: Sequence[tuple[Tensor, Tensor]],
    ) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        """One recurrent step of every row at once, as a chain of drafts would take it.

        Step 0 attends causally to the keys of step 0. A later step is one token of a chain that
        left the row at its position: it sees the keys of step 0 up to that position, and, after
        them, its own chain's one key per earlier step.

        Args:
            state: [rows, row_len, hidden_size]: the fused states in step 0, then the last result.
            embedding: [rows, row_len, hidden_size], of the tokens that follow.
            offset: The number of this step, which its rotary positions are ahead by.
            past: Keys and values of the earlier steps.

        Returns:
            The normed state, [rows, row_len, hidden_size], from which `lm_head` predicts and the
            next step goes on (`norm_output`); and `past` with this step's.
        """
        length, attention = state.shape[1], self.self_attn
        x = torch.cat((self.input_layernorm(embedding), self.hidden_norm(state)), -1)
        cos, sin = self.cos[offset : offset + length], self.sin[offset : offset + length]
        q, k, v = attention.project(x, cos, sin)
        past = [*past, (k, v)]
        (first_k, first_v), chain = past[0], past[1:]
        scores = torch.matmul(q, first_k.mT).float() * attention.scale
        columns = [scores.masked_fill(causal_mask(length, x.device), _MASKED)]
        for key, _ in chain:
            columns.append((q.float() * key.float()).sum(-1, keepdim=True) * attention.scale)
        weights = torch.softmax(torch.cat(columns, -1), -1)
        output = torch.matmul(weights[..., :length].to(v.dtype), first_v)
        for i, (_, value) in enumerate(chain):
            output = output + weights[..., length + i, None].to(v.dtype) * value
        residual = state + attention.o_proj(output.transpose(1, 2).flatten(2))
        result = residual + self.mlp(self.post_attention_layernorm(residual))
        return self.norm(result), past

    def unroll(
        self, states: Sequence[Tensor], embed: nn.Module, ids: Tensor, num_steps: int
    ) -> list[Tensor]:
        """Training-time test: the logits of `num_steps` recurrent steps from every position.

        Row p of step j has seen token p + 1 + j and predicts token p + 2 + j.

        Args:
            states: Captured states, each [rows, row_len, hidden_size].
            embed: The target's embedding, which the draft shares.
            ids: [rows, row_len] int64. Tokens beyond the row count as padding (id 0).
            num_steps: How many steps.

        Returns:
            Per step [rows, row_len, vocab_size].
        """
        state = self.combine(states)
        past: list[tuple[Tensor, Tensor]] = []
        logits = []
        for j in range(num_steps):
            successors = F.pad(ids, (0, j + 1))[:, j + 1 :]
            state, past = self.step(state, embed(successors), j, past)
            logits.append(self.lm_head(state))
        return logits
