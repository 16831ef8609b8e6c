# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""A stateless oracle: target and draft recomputed densely from committed token ids alone.

It shares weights and configuration classes with the package, and no code: no op, no paged cache,
no step. Everything is float64 with explicit masks, one sequence at a time, keys and values expanded
per head. Because attention is causal, one evaluation of a whole sequence answers for each of its
prefixes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn

from tensorrt_llm_ext.configs.mla import MLAConfig
from tensorrt_llm_ext.models.deepseek import DeepseekV3
from tensorrt_llm_ext.models.eagle3 import Eagle3Draft


@dataclass(frozen=True)
class DenseRows:
    """What the caches and the proposals of a sequence of T tokens must be.

    Attributes:
        logits: [T, vocab] of the target.
        target: Per target layer [T, latent].
        captured: [T, L * H_t], empty without a draft.
        draft: Per draft layer [T - 1, latent]: the row at p knows the token at p + 1.
        proposals: [T - 1, max_draft_len] target ids: what the row at p proposes for p + 2, ...
    """

    logits: torch.Tensor
    target: list[torch.Tensor]
    captured: torch.Tensor
    draft: list[torch.Tensor]
    proposals: torch.Tensor


def dense_rows(
    target: DeepseekV3, draft: Eagle3Draft | None, token_ids: list[int], max_draft_len: int = 8
) -> DenseRows:
    """Recomputes everything about a sequence."""
    tokens = torch.tensor(token_ids)
    boundaries = draft.config.boundaries if draft is not None else ()
    logits, target_rows, captured = dense_target(target, tokens, boundaries)
    if draft is None:
        return DenseRows(logits, target_rows, captured, [], torch.empty(0, max_draft_len))
    hidden = _combined(draft, captured[:-1])
    model = DenseDraft(draft)
    positions = torch.arange(len(tokens) - 1)
    causal = positions[None, :] <= positions[:, None]
    state, true_rows = model.run(hidden, tokens[1:], positions, None, causal)
    proposals = _chains(model, state, true_rows, max_draft_len)
    return DenseRows(logits, target_rows, captured, true_rows, proposals)


def dense_target(
    model: DeepseekV3, tokens: torch.Tensor, boundaries: tuple[int, ...] = ()
) -> tuple[torch.Tensor, list[torch.Tensor], torch.Tensor]:
    """[T] ids -> logits [T, vocab], latent rows per layer, captured states [T, L * H_t]."""
    config = model.config
    eps = config.rms_norm_eps
    positions = torch.arange(len(tokens))
    causal = positions[None, :] <= positions[:, None]
    stream = model.embed_tokens.weight.data[tokens]
    streams, rows = [stream], []
    for index, layer in enumerate(model.layers):
        x = _norm(stream, layer.input_layernorm.weight, eps)
        attended, latent = _attention(config.mla, layer.self_attn, x, positions, None, causal)
        stream = stream + attended
        y = _norm(stream, layer.post_attention_layernorm.weight, eps)
        is_moe = index in config.moe_layers
        stream = stream + (_experts(layer.mlp, y) if is_moe else _swiglu(layer.mlp, y))
        rows.append(latent)
        streams.append(stream)
    captured = torch.cat([streams[b] for b in boundaries], -1) if boundaries else stream[:, :0]
    logits = _norm(stream, model.norm.weight, eps) @ model.lm_head.weight.data.T
    return logits, rows, captured


class DenseDraft:
    """The draft's layers over explicit keys."""

    def __init__(self, draft: Eagle3Draft) -> None:
        self.draft = draft
        self.config = draft.config

    def run(
        self,
        hidden: torch.Tensor,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        past: list[torch.Tensor] | None,
        mask: torch.Tensor,
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Runs rows that see `past` latent rows and each other, as `mask` [rows, keys] says.

        Returns:
            The recurrent states, and the new latent rows of each layer.
        """
        draft, config = self.draft, self.config
        eps = config.rms_norm_eps
        first = draft.first_layer
        normed = _norm(hidden, first.draft_input.hidden_norm.weight, eps)
        embedded = draft.embed_tokens.weight.data[tokens]
        embedded = _norm(embedded, first.draft_input.input_layernorm.weight, eps)
        stream = normed if config.norm_before_residual else hidden
        new = []
        for index, layer in enumerate([first, *draft.later_layers]):
            if index == 0:
                x = torch.cat((embedded, normed), dim=-1)
            else:
                x = _norm(stream, layer.input_layernorm.weight, eps)
            before = None if past is None else past[index]
            attended, latent = _attention(config.mla, layer.self_attn, x, positions, before, mask)
            stream = stream + attended
            y = _norm(stream, layer.post_attention_layernorm.weight, eps)
            stream = stream + _swiglu(layer.mlp, y)
            new.append(latent)
        return (_norm(stream, draft.norm.weight, eps) if config.norm_output else stream), new

    def propose(self, state: torch.Tensor) -> torch.Tensor:
        """[rows, H] -> [rows] target ids."""
        if not self.config.norm_output:
            state = _norm(state, self.draft.norm.weight, self.config.rms_norm_eps)
        best = (state @ self.draft.lm_head.weight.data.T).argmax(dim=-1)
        return best if self.draft.d2t is None else best + self.draft.d2t[best]


def _chains(
    model: DenseDraft, state: torch.Tensor, true_rows: list[torch.Tensor], max_draft_len: int
) -> torch.Tensor:
    """Runs the chain of every row at once.

    Chain step j of row p sits at p + j and sees the true rows 0..p and its own provisional rows.
    """
    num_rows = state.shape[0]
    positions = torch.arange(num_rows)
    keys = list(true_rows)
    mask = positions[None, :] <= positions[:, None]
    own = torch.eye(num_rows, dtype=torch.bool)
    token = model.propose(state)
    proposals = [token]
    for step in range(1, max_draft_len):
        mask = torch.cat((mask, own), dim=1)
        state, new = model.run(state, token, positions + step, keys, mask)
        keys = [torch.cat(pair) for pair in zip(keys, new, strict=True)]
        token = model.propose(state)
        proposals.append(token)
    return torch.stack(proposals, dim=1)


def _combined(draft: Eagle3Draft, captured: torch.Tensor) -> torch.Tensor:
    config = draft.config
    if config.fc_norm:
        chunks = captured.split(config.target_hidden_size, dim=-1)
        weights = draft.captured_norm.weights
        captured = torch.cat(
            [_norm(c, w, config.rms_norm_eps) for c, w in zip(chunks, weights, strict=True)], -1
        )
    elif config.norm_before_fc:
        captured = _norm(captured, draft.captured_norm.weight, config.rms_norm_eps)
    return captured @ draft.fc.weight.data.T if config.has_fc else captured


def _norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return x * (x.pow(2).mean(-1, keepdim=True) + eps).rsqrt() * weight.data


def _swiglu(mlp: nn.Module, x: torch.Tensor) -> torch.Tensor:
    gate, up = (x @ mlp.gate_up_proj.weight.data.T).chunk(2, dim=-1)
    return (gate * torch.sigmoid(gate) * up) @ mlp.down_proj.weight.data.T


def _experts(moe: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Every expert on every row, weighted by zero where it is not chosen."""
    config = moe.config
    scores = torch.sigmoid(x @ moe.gate_weight.data.T)
    biased = scores + moe.e_score_correction_bias.data
    grouped = biased.unflatten(1, (config.num_groups, -1))
    group_scores = grouped.topk(min(2, grouped.shape[2]), dim=2).values.sum(2)
    best = group_scores.topk(config.topk_group, dim=1).indices
    open_groups = torch.zeros_like(group_scores, dtype=torch.bool).scatter(1, best, True)
    biased = grouped.masked_fill(~open_groups.unsqueeze(2), -math.inf).flatten(1)
    chosen = biased.topk(config.num_experts_per_tok, dim=1).indices
    weights = torch.zeros_like(scores).scatter(1, chosen, scores.gather(1, chosen))
    if config.norm_topk_prob:
        weights = weights / (weights.sum(1, keepdim=True) + 1e-20)
    weights = weights * config.routed_scaling_factor
    gate, up = torch.einsum("th,eih->tei", x, moe.w_gate_up.data).chunk(2, dim=-1)
    hidden = gate * torch.sigmoid(gate) * up * weights.unsqueeze(-1)
    out = torch.einsum("tei,ehi->th", hidden, moe.w_down.data)
    return out if moe.shared_experts is None else out + _swiglu(moe.shared_experts, x)


def _attention(
    config: MLAConfig,
    attention: nn.Module,
    x: torch.Tensor,
    positions: torch.Tensor,
    past: torch.Tensor | None,
    mask: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """[rows, in] -> output [rows, H] and the rows' own latent rows; keys are past, then own."""
    rank, nope = config.kv_lora_rank, config.qk_nope_head_dim
    q, c_kv, k_pe = (x @ attention.a_proj.weight.data.T).split(attention.a_sizes, dim=-1)
    if config.q_lora_rank is not None:
        q = _norm(q, attention.q_a_layernorm.weight, config.rms_norm_eps)
        q = q @ attention.q_b_proj.weight.data.T
    q = q.unflatten(1, (config.num_heads, -1))
    c_kv = _norm(c_kv, attention.kv_a_layernorm.weight, config.rms_norm_eps)
    latent = torch.cat((c_kv, _rotate(config, k_pe, positions)), dim=-1)
    keys = latent if past is None else torch.cat((past, latent))
    outputs = []
    for head in range(config.num_heads):
        key = torch.cat((keys[:, :rank] @ attention.w_kc.data[head].T, keys[:, rank:]), dim=-1)
        query = torch.cat(
            (q[:, head, :nope], _rotate(config, q[:, head, nope:], positions)), dim=-1
        )
        scores = (query @ key.T * _softmax_scale(config)).masked_fill(~mask, -math.inf)
        outputs.append(scores.softmax(dim=-1) @ (keys[:, :rank] @ attention.w_vc.data[head]))
    return torch.cat(outputs, dim=-1) @ attention.o_proj.weight.data.T, latent


def _mscale(factor: float, mscale: float) -> float:
    return 1.0 + 0.1 * mscale * math.log(factor) if factor > 1 else 1.0


def _softmax_scale(config: MLAConfig) -> float:
    yarn = config.rope.yarn
    scale = 1.0 / math.sqrt(config.qk_nope_head_dim + config.qk_rope_head_dim)
    if yarn is not None and yarn.mscale_all_dim:
        scale *= _mscale(yarn.factor, yarn.mscale_all_dim) ** 2
    return scale


def _rotate(config: MLAConfig, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """[rows, R]: neighbouring elements turned as complex numbers."""
    frequencies, magnitude = _frequencies(config)
    angles = positions.double()[:, None] * frequencies
    turn = torch.polar(torch.full_like(angles, magnitude), angles)
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * turn).flatten(-2)


def _frequencies(config: MLAConfig) -> tuple[torch.Tensor, float]:
    size, rope, yarn = config.qk_rope_head_dim, config.rope, config.rope.yarn
    exponents = torch.arange(0, size, 2, dtype=torch.float64) / size
    plain = 1.0 / rope.theta**exponents
    if yarn is None:
        return plain, 1.0

    def index_of(rotations: float) -> float:
        wavelength = yarn.original_max_position_embeddings / (rotations * 2 * math.pi)
        return size * math.log(wavelength) / (2 * math.log(rope.theta))

    low = max(math.floor(index_of(yarn.beta_fast)), 0)
    high = min(math.ceil(index_of(yarn.beta_slow)), size - 1)
    width = high - low if high != low else 0.001
    share = ((torch.arange(size // 2, dtype=torch.float64) - low) / width).clamp(0, 1)
    mscale = 1.0 if yarn.mscale is None else yarn.mscale
    all_dim = 0.0 if yarn.mscale_all_dim is None else yarn.mscale_all_dim
    magnitude = _mscale(yarn.factor, mscale) / _mscale(yarn.factor, all_dim)
    return plain / yarn.factor * share + plain * (1 - share), magnitude
