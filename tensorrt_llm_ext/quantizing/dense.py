# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Building blocks for a draft that can be calibrated and trained: dense, differentiable, plain.

`models.eagle3.Eagle3Draft` runs over these as it runs over a host's blocks, so that the math is
the one that is served. Three things differ from the engine's blocks: attention has no paged cache
but keeps keys and values of one pass in its context; projections that engines fuse are apart, each
a `torch.nn.Linear` of its checkpoint name, which is what ModelOpt looks for; and all of it has
gradients.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from tensorrt_llm_ext.configs.draft import DraftConfig
from tensorrt_llm_ext.configs.mla import MLAConfig
from tensorrt_llm_ext.errors import CheckpointError
from tensorrt_llm_ext.models.eagle3 import Eagle3Draft
from tensorrt_llm_ext.models.interfaces import DraftTokenId, TargetTokenId
from tensorrt_llm_ext.models.rotary import rotary_table

_MAX_SCORES = 1 << 24  # attention scores held at once; bounds the memory of long texts


class DenseNorm(nn.Module):
    """RMS norm; computed in float32 at least."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size, device="meta"), requires_grad=False)
        self.eps = eps

    def forward(
        self, x: torch.Tensor, residual: torch.Tensor | None = None
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Returns `norm(x)`, or `(norm(x + residual), x + residual)` when a residual is given."""
        if residual is not None:
            x = x + residual
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        scale = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + self.eps)
        normed = (wide * scale).to(x.dtype) * self.weight
        return normed if residual is None else (normed, x)


class DenseCapturedNorm(nn.ModuleList):
    """One norm per captured state."""

    def __init__(self, num_captured: int, size: int, eps: float) -> None:
        super().__init__([DenseNorm(size, eps) for _ in range(num_captured)])

    def forward(self, captured: torch.Tensor) -> torch.Tensor:
        """[rows, num_captured * size] -> the same, each chunk normed on its own."""
        chunks = captured.chunk(len(self), dim=-1)
        return torch.cat([norm(part) for norm, part in zip(self, chunks, strict=True)], dim=-1)


class DenseInput(nn.Module):
    """Embedding and state, each normed, side by side."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.input_layernorm = DenseNorm(size, eps)
        self.hidden_norm = DenseNorm(size, eps)

    def forward(
        self, token_ids: torch.Tensor, hidden: torch.Tensor, embedding: nn.Module
    ) -> torch.Tensor:
        """[rows] ids and [rows, size] states -> [rows, 2 * size]."""
        embedded = embedding(token_ids).to(hidden.dtype)
        return torch.cat((self.input_layernorm(embedded), self.hidden_norm(hidden)), dim=-1)


class DenseMLP(nn.Module):
    """SwiGLU with gate and up apart."""

    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.gate_proj = _linear(hidden_size, intermediate_size)
        self.up_proj = _linear(hidden_size, intermediate_size)
        self.down_proj = _linear(intermediate_size, hidden_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[rows, hidden_size] -> the same."""
        down: torch.Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return down


@dataclass(kw_only=True)
class DenseContext:
    """Where the rows of one pass stand, and what earlier passes left behind.

    The first pass runs all rows of one or more texts (`extend`); the passes after it run one row
    per anchor (`chain`), which sees the extend rows up to its anchor, and its own chain.

    Attributes:
        visible: [rows, extend rows] bool, which extend rows each row of this pass sees.
        keys, values: Per layer, those of the extend rows, [extend rows, heads, width].
        chain_keys, chain_values: Per layer, those of each chain pass so far, [anchors, heads,
            width].
        is_extend: Whether this is the first pass.
    """

    visible: torch.Tensor
    keys: dict[int, torch.Tensor] = field(default_factory=dict)
    values: dict[int, torch.Tensor] = field(default_factory=dict)
    chain_keys: dict[int, list[torch.Tensor]] = field(default_factory=dict)
    chain_values: dict[int, list[torch.Tensor]] = field(default_factory=dict)
    is_extend: bool = True

    def for_chain(self, visible: torch.Tensor) -> DenseContext:
        """Returns the context of the chain passes that follow the extend pass."""
        return DenseContext(visible=visible, keys=self.keys, values=self.values, is_extend=False)

    def attend(
        self,
        layer_idx: int,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        softmax_scale: float,
    ) -> torch.Tensor:
        """Attends from the rows of this pass, after keeping their keys and values.

        Args:
            layer_idx: The layer.
            q: [rows, heads, qk width].
            k: [rows, heads, qk width].
            v: [rows, heads, v width].
            softmax_scale: Factor of the scores.

        Returns:
            [rows, heads, v width].
        """
        if self.is_extend:
            self.keys[layer_idx], self.values[layer_idx] = k, v
        else:
            self.chain_keys.setdefault(layer_idx, []).append(k)
            self.chain_values.setdefault(layer_idx, []).append(v)
        keys = self.keys[layer_idx]
        step = max(1, _MAX_SCORES // max(1, keys.shape[0] * q.shape[1]))
        parts = [
            self._attend_rows(layer_idx, slice(begin, begin + step), q * softmax_scale)
            for begin in range(0, q.shape[0], step)
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _attend_rows(self, layer_idx: int, rows: slice, q: torch.Tensor) -> torch.Tensor:
        q = q[rows]
        keys, values = self.keys[layer_idx], self.values[layer_idx]
        scores = torch.einsum("rhd,shd->rhs", q, keys)
        scores = scores.masked_fill(~self.visible[rows].unsqueeze(1), float("-inf"))
        own_k = [k[rows] for k in self.chain_keys.get(layer_idx, [])]
        own_v = [v[rows] for v in self.chain_values.get(layer_idx, [])]
        own = [(q * k).sum(dim=-1, keepdim=True) for k in own_k]
        wide = torch.promote_types(q.dtype, torch.float32)
        weights = torch.cat([scores, *own], dim=-1).to(wide).softmax(dim=-1).to(q.dtype)
        out = torch.einsum("rhs,shd->rhd", weights[..., : keys.shape[0]], values)
        for index, v in enumerate(own_v):
            out = out + weights[..., keys.shape[0] + index].unsqueeze(-1) * v
        return out


class DenseMLA(nn.Module):
    """MLA with expanded keys and values, projections apart."""

    def __init__(self, config: MLAConfig, layer_idx: int, in_features: int, hidden: int) -> None:
        super().__init__()
        self.config = config
        self.layer_idx = layer_idx
        query = config.num_heads * config.qk_head_dim
        if config.q_lora_rank is None:
            self.q_proj = _linear(in_features, query)
        else:
            self.q_a_proj = _linear(in_features, config.q_lora_rank)
            self.q_a_layernorm = DenseNorm(config.q_lora_rank, config.rms_norm_eps)
            self.q_b_proj = _linear(config.q_lora_rank, query)
        self.kv_a_proj_with_mqa = _linear(in_features, config.latent_size)
        self.kv_a_layernorm = DenseNorm(config.kv_lora_rank, config.rms_norm_eps)
        width = config.qk_nope_head_dim + config.v_head_dim
        self.kv_b_proj = _linear(config.kv_lora_rank, config.num_heads * width)
        self.o_proj = _linear(config.num_heads * config.v_head_dim, hidden)
        self.rope: dict[torch.device, torch.Tensor] = {}  # built late: the model is made on "meta"

    def forward(self, x: torch.Tensor, positions: torch.Tensor, ctx: DenseContext) -> torch.Tensor:
        """[rows, in_features] -> [rows, hidden_size]."""
        config, heads = self.config, self.config.num_heads
        nope = config.qk_nope_head_dim
        if config.q_lora_rank is None:
            q = self.q_proj(x)
        else:
            q = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x)))
        q_nope, q_pe = q.view(-1, heads, config.qk_head_dim).split(
            [nope, config.qk_rope_head_dim], dim=-1
        )
        c_kv, k_pe = self.kv_a_proj_with_mqa(x).split(
            [config.kv_lora_rank, config.qk_rope_head_dim], dim=-1
        )
        kv = self.kv_b_proj(self.kv_a_layernorm(c_kv)).view(-1, heads, nope + config.v_head_dim)
        k_nope, v = kv.split([nope, config.v_head_dim], dim=-1)
        table = self._table(x.device).index_select(0, positions).unsqueeze(1)
        q_pe, k_pe = _rotated(q_pe, table), _rotated(k_pe.unsqueeze(1), table)
        k = torch.cat((k_nope, k_pe.expand(-1, heads, -1)), dim=-1)
        q = torch.cat((q_nope, q_pe), dim=-1)
        attended = ctx.attend(self.layer_idx, q, k, v, config.softmax_scale)
        output: torch.Tensor = self.o_proj(attended.flatten(1))
        return output

    def _table(self, device: torch.device) -> torch.Tensor:
        if device not in self.rope:
            self.rope[device] = rotary_table(self.config, dtype=torch.float32, device=device)
        return self.rope[device]


def _rotated(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Rotates interleaved pairs; x [rows, heads, width], table [rows, 1, width / 2, 2]."""
    wide = x.to(table.dtype).view(*x.shape[:-1], -1, 2)
    a, b = wide[..., 0], wide[..., 1]
    cos, sin = table[..., 0], table[..., 1]
    return torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2).to(x.dtype)


def _linear(in_features: int, out_features: int) -> nn.Linear:
    linear = nn.Linear(in_features, out_features, bias=False, device="meta")
    linear.weight.requires_grad_(False)
    return linear


class _DenseBlocks:
    """Implements `Blocks`, and puts each module into a tree under its checkpoint name."""

    device = torch.device("meta")

    def __init__(self, tree: nn.Module) -> None:
        self._tree = tree

    def embedding(self, name: str, num_embeddings: int, hidden_size: int) -> nn.Module:
        weight = torch.empty(num_embeddings, hidden_size, device="meta")
        return self._put(name, nn.Embedding(num_embeddings, hidden_size, _weight=weight))

    def linear(
        self, name: str, in_features: int, out_features: int, parallel: str = "replicated"
    ) -> nn.Module:
        return self._put(name, _linear(in_features, out_features))

    def rms_norm(self, name: str, hidden_size: int, eps: float) -> nn.Module:
        return self._put(name, DenseNorm(hidden_size, eps))

    def mla_attention(
        self, name: str, config: MLAConfig, layer_idx: int, in_features: int, hidden_size: int
    ) -> nn.Module:
        return self._put(name, DenseMLA(config, layer_idx, in_features, hidden_size))

    def gated_mlp(self, name: str, hidden_size: int, intermediate_size: int) -> nn.Module:
        return self._put(name, DenseMLP(hidden_size, intermediate_size))

    def lm_head(self, name: str, hidden_size: int, vocab_size: int) -> Any:
        return self._put(name, _linear(hidden_size, vocab_size))

    def draft_input(self, name: str, hidden_size: int, eps: float) -> nn.Module:
        module = DenseInput(hidden_size, eps)
        self._put(f"{name}.input_layernorm", module.input_layernorm)
        self._put(f"{name}.hidden_norm", module.hidden_norm)
        return module

    def captured_norm(
        self, name: str, num_captured: int, hidden_size: int, eps: float
    ) -> nn.Module:
        return self._put(name, DenseCapturedNorm(num_captured, hidden_size, eps))

    def _put(self, name: str, module: nn.Module) -> nn.Module:
        *parents, last = name.split(".")
        place = self._tree
        for parent in parents:
            if not hasattr(place, parent):
                # Layers are numbered, as in a list; nothing runs these containers.
                place.add_module(parent, nn.Module())
            place = getattr(place, parent)
        place.add_module(last, module)
        return module


@dataclass(frozen=True, kw_only=True)
class BorrowedEnds:
    """What a draft takes from its target where it has none of its own.

    Attributes:
        embed_tokens: [vocab_size, hidden_size]; None where the draft has its own.
        lm_head: [vocab_size, hidden_size]; None where the draft has its own.
    """

    embed_tokens: torch.Tensor | None = field(default=None, repr=False)
    lm_head: torch.Tensor | None = field(default=None, repr=False)


class _BorrowedHead(nn.Module):
    """The target's head, which is not part of the draft."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("weight", weight, persistent=False)
        self.weight: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self.weight.to(x.dtype))

    def argmax(
        self, hidden: torch.Tensor, d2t: torch.Tensor | None
    ) -> tuple[DraftTokenId, TargetTokenId]:
        ids = self(hidden).argmax(dim=-1)
        return DraftTokenId(ids), TargetTokenId(ids if d2t is None else ids + d2t[ids])


def build_tree(
    tree: nn.Module,
    config: DraftConfig,
    tensors: Mapping[str, torch.Tensor],
    ends: BorrowedEnds,
    *,
    dtype: torch.dtype,
) -> Eagle3Draft:
    """Builds a draft's modules below `tree`, under their checkpoint names, and loads them.

    Args:
        tree: An empty module. It gets `fc`, `layers`, `norm` and so on, and nothing else, so that
            its state dict is the checkpoint.
        config: The draft.
        tensors: Float tensors by canonical name; those of `dtype` are used as they are, uncopied.
        ends: What the draft borrows.
        dtype: Dtype of weights and activations.

    Returns:
        The draft that runs the modules. It is no part of the tree.

    Raises:
        CheckpointError: If tensors are missing or misshapen.
    """
    core = Eagle3Draft(config, _DenseBlocks(tree), 0)
    core.d2t = None
    wanted = dict(tree.named_parameters())
    missing = sorted(wanted.keys() - tensors.keys())
    wrong = [n for n, p in wanted.items() if n in tensors and p.shape != tensors[n].shape]
    if missing or wrong:
        raise CheckpointError(
            f"The draft's tensors do not fit its config: missing {missing[:4]}, misshapen "
            f"{wrong[:4]}. Config and tensors belong to different drafts."
        )
    state = {name: tensors[name].to(dtype) for name in wanted}
    tree.load_state_dict(state, strict=True, assign=True)
    for parameter in tree.parameters():
        parameter.requires_grad_(False)
    if config.has_d2t:
        core.d2t = tensors["d2t"].to(torch.int64)
    if not config.has_own_embedding:
        core.embed_tokens = _borrowed_embedding(ends.embed_tokens, dtype)
    if not config.has_own_lm_head:
        if ends.lm_head is None:
            raise _missing_end("lm_head")
        core.lm_head = _BorrowedHead(ends.lm_head)
    return core


def _borrowed_embedding(weight: torch.Tensor | None, dtype: torch.dtype) -> nn.Module:
    if weight is None:
        raise _missing_end("embedding")
    embedding = nn.Embedding(weight.shape[0], weight.shape[1], _weight=weight.to(dtype))
    embedding.requires_grad_(False)
    return embedding


def _missing_end(name: str) -> CheckpointError:
    return CheckpointError(
        f"The draft has no {name} of its own, and the target's checkpoint does not give one. Give "
        "a target folder that holds it."
    )


class DenseDraft(nn.Module):
    """A draft as a plain module whose state dict is its checkpoint.

    Args:
        config: Shapes and flags.
        tensors: Float tensors by canonical name.
        ends: What it borrows from the target.
        dtype: Dtype of weights and activations.

    Raises:
        CheckpointError: If tensors are missing or misshapen.
    """

    core: Eagle3Draft

    def __init__(
        self,
        config: DraftConfig,
        tensors: Mapping[str, torch.Tensor],
        ends: BorrowedEnds,
        *,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        core = build_tree(self, config, tensors, ends, dtype=dtype)
        self.__dict__["core"] = core  # beside the tree, not below it: the modules are the tree's

    @property
    def draft_config(self) -> DraftConfig:
        """Shapes and flags."""
        return self.core.config


def linear_names(tree: nn.Module) -> tuple[str, ...]:
    """Returns the canonical names of a draft's linear modules, in the order of its forward."""
    return tuple(name for name, module in tree.named_modules() if isinstance(module, nn.Linear))


def replace_module(tree: nn.Module, core: Eagle3Draft, name: str, module: nn.Module) -> None:
    """Puts another module in the place of one, in the tree and in the draft that runs it."""
    parent, _, last = name.rpartition(".")
    old = tree.get_submodule(name)
    setattr(tree.get_submodule(parent) if parent else tree, last, module)
    for owner in core.modules():
        for key, child in owner.named_children():
            if child is old:
                setattr(owner, key, module)
