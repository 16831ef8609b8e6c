# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""The draft once more, as slowly and plainly as DESIGN section 3 states it: the tests' oracle.

Float64, one sequence, every row recomputed from all rows; no cache, and nothing of the package but
the configuration classes. Weights come as a dict of canonical checkpoint names.
"""

from __future__ import annotations

import math

import torch

from tensorrt_llm_ext.configs.draft import DraftConfig
from tensorrt_llm_ext.configs.mla import MLAConfig

Weights = dict[str, torch.Tensor]


def canonical_shapes(config: DraftConfig) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the tensors of a draft's checkpoint."""
    hidden, mla = config.hidden_size, config.mla
    captured = config.num_captured * config.target_hidden_size
    heads, nope, rope = mla.num_heads, mla.qk_nope_head_dim, mla.qk_rope_head_dim
    shapes: dict[str, tuple[int, ...]] = {"norm.weight": (hidden,)}
    if config.has_own_embedding:
        shapes["embed_tokens.weight"] = (config.vocab_size, hidden)
    if config.has_own_lm_head:
        shapes["lm_head.weight"] = (config.draft_vocab_size, hidden)
    if config.has_d2t:
        shapes["d2t"] = (config.draft_vocab_size,)
    if config.has_fc:
        shapes["fc.weight"] = (hidden, captured)
    if config.fc_norm:
        for i in range(config.num_captured):
            shapes[f"fc_norm.{i}.weight"] = (config.target_hidden_size,)
    if config.norm_before_fc:
        shapes["input_norm.weight"] = (captured,)
    for i in range(config.num_layers):
        width = 2 * hidden if i == 0 else hidden
        layer = {
            "input_layernorm": (hidden,),
            "post_attention_layernorm": (hidden,),
            "self_attn.kv_a_proj_with_mqa": (mla.kv_lora_rank + rope, width),
            "self_attn.kv_a_layernorm": (mla.kv_lora_rank,),
            "self_attn.kv_b_proj": (heads * (nope + mla.v_head_dim), mla.kv_lora_rank),
            "self_attn.o_proj": (hidden, heads * mla.v_head_dim),
            "mlp.gate_proj": (config.intermediate_size, hidden),
            "mlp.up_proj": (config.intermediate_size, hidden),
            "mlp.down_proj": (hidden, config.intermediate_size),
        }
        if i == 0:
            layer["hidden_norm"] = (hidden,)
        if mla.q_lora_rank is None:
            layer["self_attn.q_proj"] = (heads * (nope + rope), width)
        else:
            layer["self_attn.q_a_proj"] = (mla.q_lora_rank, width)
            layer["self_attn.q_a_layernorm"] = (mla.q_lora_rank,)
            layer["self_attn.q_b_proj"] = (heads * (nope + rope), mla.q_lora_rank)
        shapes.update({f"layers.{i}.{name}.weight": shape for name, shape in layer.items()})
    return shapes


def combine(config: DraftConfig, weights: Weights, captured: torch.Tensor) -> torch.Tensor:
    """Step 1: [rows, L * H_t] -> [rows, H]."""
    chunks = list(captured.split(config.target_hidden_size, dim=-1))
    if config.fc_norm:
        chunks = [
            _norm(chunk, weights[f"fc_norm.{i}.weight"], config.rms_norm_eps)
            for i, chunk in enumerate(chunks)
        ]
    fused = torch.cat(chunks, dim=-1)
    if config.norm_before_fc:
        fused = _norm(fused, weights["input_norm.weight"], config.rms_norm_eps)
    return fused @ weights["fc.weight"].T if config.has_fc else fused


def states(
    config: DraftConfig,
    weights: Weights,
    embedding: torch.Tensor,
    hidden: torch.Tensor,
    token_ids: torch.Tensor,
) -> torch.Tensor:
    """Steps 2 to 6: recurrent states of the rows at positions 0, 1, 2, ...

    Args:
        hidden: [rows, H], combined states or recurrent states.
        token_ids: [rows], the successor of each position.
        embedding: [V, H].
    """
    eps = config.rms_norm_eps

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return _norm(x, weights[f"{name}.weight"], eps)

    stream = norm(hidden, "layers.0.hidden_norm") if config.norm_before_residual else hidden
    for i in range(config.num_layers):
        name = f"layers.{i}"
        if i == 0:
            embedded = norm(embedding[token_ids], f"{name}.input_layernorm")
            x = torch.cat((embedded, norm(hidden, f"{name}.hidden_norm")), dim=-1)
        else:
            x = norm(stream, f"{name}.input_layernorm")
        stream = stream + _attention(config.mla, weights, f"{name}.self_attn", x)
        y = norm(stream, f"{name}.post_attention_layernorm")
        gate = y @ weights[f"{name}.mlp.gate_proj.weight"].T
        up = y @ weights[f"{name}.mlp.up_proj.weight"].T
        activated = gate / (1.0 + torch.exp(-gate)) * up
        stream = stream + activated @ weights[f"{name}.mlp.down_proj.weight"].T
    return norm(stream, "norm") if config.norm_output else stream


def logits(
    config: DraftConfig, weights: Weights, head: torch.Tensor, state: torch.Tensor
) -> torch.Tensor:
    """Draft logits of recurrent states: `post` already when `norm_output`, else normed here."""
    if not config.norm_output:
        state = _norm(state, weights["norm.weight"], config.rms_norm_eps)
    return state @ head.T


def _attention(config: MLAConfig, weights: Weights, name: str, x: torch.Tensor) -> torch.Tensor:
    def project(x: torch.Tensor, part: str) -> torch.Tensor:
        return x @ weights[f"{name}.{part}.weight"].T

    def norm(x: torch.Tensor, part: str) -> torch.Tensor:
        return _norm(x, weights[f"{name}.{part}.weight"], config.rms_norm_eps)

    rows = x.shape[0]
    nope, rope, v_dim = config.qk_nope_head_dim, config.qk_rope_head_dim, config.v_head_dim
    if config.q_lora_rank is None:
        q = project(x, "q_proj")
    else:
        q = project(norm(project(x, "q_a_proj"), "q_a_layernorm"), "q_b_proj")
    q = q.reshape(rows, config.num_heads, nope + rope)
    kv = project(x, "kv_a_proj_with_mqa")
    latent = norm(kv[:, : config.kv_lora_rank], "kv_a_layernorm")
    k_pe = _rotate(config, kv[:, None, config.kv_lora_rank :])[:, 0]
    expanded = project(latent, "kv_b_proj").reshape(rows, config.num_heads, nope + v_dim)

    scale = (nope + rope) ** -0.5
    yarn = config.rope.yarn
    if yarn is not None and yarn.mscale_all_dim is not None and yarn.mscale_all_dim != 0:
        scale *= _m(yarn.factor, yarn.mscale_all_dim) ** 2
    heads = []
    for h in range(config.num_heads):
        query = torch.cat((q[:, h, :nope], _rotate(config, q[:, h : h + 1, nope:])[:, 0]), dim=-1)
        key = torch.cat((expanded[:, h, :nope], k_pe), dim=-1)
        score = query @ key.T * scale
        future = torch.ones(rows, rows, dtype=torch.bool).triu(1)
        probability = score.masked_fill(future, -math.inf).softmax(dim=-1)
        heads.append(probability @ expanded[:, h, nope:])
    return project(torch.cat(heads, dim=-1), "o_proj")


def _rotate(config: MLAConfig, x: torch.Tensor) -> torch.Tensor:
    """[rows, n, R] at positions 0, 1, ...: neighbours (2i, 2i + 1) turned as complex numbers."""
    size, rope, yarn = config.qk_rope_head_dim, config.rope, config.rope.yarn
    frequencies = []
    for i in range(size // 2):
        frequency = rope.theta ** (-2 * i / size)
        if yarn is not None:
            low, high = _correction_range(config)
            ramp = min(max((i - low) / (high - low), 0.0), 1.0)
            frequency = frequency * (1 - ramp) + frequency / yarn.factor * ramp
        frequencies.append(frequency)
    magnitude = 1.0
    if yarn is not None:
        mscale = 1.0 if yarn.mscale is None else yarn.mscale
        all_dim = 0.0 if yarn.mscale_all_dim is None else yarn.mscale_all_dim
        magnitude = _m(yarn.factor, mscale) / _m(yarn.factor, all_dim)
    angle = torch.arange(x.shape[0], dtype=torch.float64)[:, None] * torch.tensor(
        frequencies, dtype=torch.float64
    )
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], size // 2, 2).contiguous())
    turned = pairs * torch.polar(torch.full_like(angle, magnitude), angle)[:, None]
    return torch.view_as_real(turned).reshape(x.shape)


def _correction_range(config: MLAConfig) -> tuple[float, float]:
    size, rope, yarn = config.qk_rope_head_dim, config.rope, config.rope.yarn
    assert yarn is not None

    def dimension(turns: float) -> float:
        length = yarn.original_max_position_embeddings
        return size * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    low = max(math.floor(dimension(yarn.beta_fast)), 0)
    high = min(math.ceil(dimension(yarn.beta_slow)), size - 1)
    return low, high + 0.001 if low == high else high


def _m(scale: float, mscale: float) -> float:
    return 1.0 if scale <= 1 else 0.1 * mscale * math.log(scale) + 1.0


def _norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return x / (x.square().mean(dim=-1, keepdim=True) + eps).sqrt() * weight
