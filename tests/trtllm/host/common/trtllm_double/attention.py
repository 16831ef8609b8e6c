# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Rope parameters, attention metadata, the paged cache, and MLA as the host computes it."""

from __future__ import annotations

import math
import weakref
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import trtllm_double
from trtllm_double.basics import KvCacheParams, Mapping
from trtllm_double.linear import Linear, RMSNorm, TensorParallelMode, parameter
from trtllm_double.rope import (
    PositionalEmbeddingParams,
    RotaryScalingType,
    yarn_get_mscale,
)
from trtllm_double.rows import Rows, make_rows


class KVCacheManager:
    """Pages of latent rows for all layers, and who owns them."""

    def __init__(
        self,
        *,
        num_layers: int,
        head_dim: int,
        num_blocks: int,
        tokens_per_block: int,
        dtype: torch.dtype,
    ) -> None:
        self.num_layers, self.head_dim = num_layers, head_dim
        self.tokens_per_block, self.dtype = tokens_per_block, dtype
        shape = (num_layers, num_blocks, tokens_per_block, head_dim)
        self.buffers = torch.empty(shape, dtype=dtype)
        self.free = list(range(num_blocks))[::-1]
        self.blocks: dict[int, list[int]] = {}

    def get_buffers(self, layer_idx: int, *_: Any, **__: Any) -> torch.Tensor:
        if not 0 <= layer_idx < self.num_layers:
            raise IndexError(f"layer {layer_idx} has no cache: {self.num_layers} layers")
        return self.buffers[layer_idx]

    def get_batch_cache_indices(
        self, request_ids: list[int], *_: Any, **__: Any
    ) -> list[list[int]]:
        return [self.blocks[request_id] for request_id in request_ids]

    def reserve(self, request_id: int, num_tokens: int) -> None:
        owned = self.blocks.setdefault(request_id, [])
        while len(owned) * self.tokens_per_block < num_tokens:
            owned.append(self.free.pop())
            self.buffers[:, owned[-1]] = math.nan  # what nobody has written must not be read

    def free_resources(self, request_id: int) -> None:
        self.free.extend(self.blocks.pop(request_id, []))


@dataclass(kw_only=True)
class AttentionMetadata:
    """One pass: which rows belong to which sequence, and where they are cached."""

    max_num_requests: int = 64
    max_num_tokens: int = 8192
    kv_cache_manager: KVCacheManager | None = None
    draft_kv_cache_manager: Any = None
    mapping: Mapping | None = None
    request_ids: list[int] | None = None
    prompt_lens: list[int] | None = None
    kv_cache_params: KvCacheParams = field(default_factory=KvCacheParams)
    num_contexts: int = 0
    all_rank_num_tokens: list[int] | None = None
    is_cuda_graph: bool = False
    use_spec_decoding: bool = False
    is_spec_decoding_enabled: bool = False
    is_spec_dec_tree: bool = False
    _seq_lens: torch.Tensor | None = None
    _seq_lens_cuda: torch.Tensor | None = None
    kv_lens_cuda: torch.Tensor | None = None
    host_request_types: torch.Tensor | None = None
    _saved_tensors: dict[str, Any] = field(default_factory=dict)
    _rows: Any = None

    def rows(self) -> Rows:
        """What all layers of one pass share; made anew when the lengths have changed."""
        counts, lengths = self._seq_lens_cuda.tolist(), self.kv_lens_cuda.tolist()
        key = (counts, lengths, self.num_contexts)
        if self._rows is None or self._rows[0] != key:
            manager = self.kv_cache_manager
            pages = manager.get_batch_cache_indices(self.request_ids)
            size = manager.tokens_per_block
            self._rows = (key, make_rows(counts, lengths, pages, self.num_contexts, size))
        return self._rows[1]

    @property
    def seq_lens(self) -> torch.Tensor | None:
        return self._seq_lens

    @seq_lens.setter
    def seq_lens(self, value: torch.Tensor) -> None:
        self._seq_lens = value
        self._seq_lens_cuda = value.clone()

    @property
    def seq_lens_cuda(self) -> torch.Tensor | None:
        return self._seq_lens_cuda

    @property
    def num_seqs(self) -> int:
        return int(self._seq_lens.shape[0]) if self._seq_lens is not None else 0

    @property
    def num_generations(self) -> int:
        return self.num_seqs - self.num_contexts

    @property
    def num_tokens(self) -> int:
        return int(self._seq_lens.sum())

    @property
    def num_ctx_tokens(self) -> int:
        return int(self._seq_lens[: self.num_contexts].sum())

    def prepare(self) -> None:
        cached = torch.tensor(self.kv_cache_params.num_cached_tokens_per_seq, dtype=torch.int32)
        self.kv_lens_cuda = cached + self._seq_lens
        self.host_request_types = torch.ones(self.num_seqs, dtype=torch.int32)
        self.host_request_types[: self.num_contexts] = 0

    def on_update(self) -> None:
        """The host recomputes its token counts here; the double derives them."""

    def prepare_for_spec_dec(self, *fields: str) -> None:
        for name in fields:
            self._saved_tensors[name] = getattr(self, name).clone()

    def restore_from_spec_dec(self) -> None:
        for name, value in self._saved_tensors.items():
            setattr(self, name, value)
        self._saved_tensors.clear()


class TrtllmAttentionMetadata(AttentionMetadata):
    """The metadata of the TRTLLM backend."""

    def update_for_spec_dec(self) -> None:
        """Nothing to do here."""


class MLA(nn.Module):
    """Latent attention: contexts expanded, generation rows absorbed."""

    def __init__(
        self,
        *,
        hidden_size: int,
        num_attention_heads: int,
        num_key_value_heads: int,
        qk_nope_head_dim: int,
        qk_rope_head_dim: int,
        v_head_dim: int,
        q_lora_rank: int | None,
        kv_lora_rank: int,
        predicted_tokens_per_seq: int,
        max_position_embeddings: int,
        bias: bool,
        pos_embd_params: PositionalEmbeddingParams | None = None,
        layer_idx: int | None = None,
        dtype: torch.dtype | None = None,
        config: Any = None,
        reduce_output: bool = True,
        rms_norm_eps: float | None = None,
        **_: Any,
    ) -> None:
        super().__init__()
        assert config is not None
        assert pos_embd_params is not None
        assert (kv_lora_rank, qk_rope_head_dim) == (512, 64), "the kernels need 512 and 64"
        self.layer_idx, self.dtype = layer_idx, dtype
        self.layer_idx_str = str(layer_idx)
        self.predicted_tokens_per_seq = predicted_tokens_per_seq
        self.qk_nope_head_dim, self.qk_rope_head_dim = qk_nope_head_dim, qk_rope_head_dim
        self.v_head_dim, self.kv_lora_rank = v_head_dim, kv_lora_rank
        self.qk_head_dim = qk_nope_head_dim + qk_rope_head_dim
        self.is_lite = q_lora_rank is None
        self.q_lora_rank = hidden_size if q_lora_rank is None else q_lora_rank
        mapping = config.mapping
        if mapping.enable_attention_dp:
            mapping = Mapping(1, 0, 1)
        self.mapping = mapping
        self.num_heads = num_attention_heads
        self.num_heads_tp = num_attention_heads // mapping.tp_size
        self.quant_config = config.get_quant_config()
        common: dict[str, Any] = {
            "bias": bias,
            "dtype": dtype,
            "quant_config": self.quant_config,
            "skip_create_weights_in_init": config.skip_create_weights_in_init,
        }
        split: dict[str, Any] = {
            "mapping": mapping,
            "tensor_parallel_mode": TensorParallelMode.COLUMN,
        }
        eps = rms_norm_eps or config.pretrained_config.rms_norm_eps
        a_size = kv_lora_rank + qk_rope_head_dim + (0 if self.is_lite else self.q_lora_rank)
        self.kv_a_proj_with_mqa = Linear(hidden_size, a_size, **common)
        q_size = num_attention_heads * self.qk_head_dim
        if not self.is_lite:
            self.q_a_layernorm = RMSNorm(hidden_size=self.q_lora_rank, eps=eps, dtype=dtype)
        self.q_b_proj = Linear(self.q_lora_rank, q_size, **common, **split)
        self.kv_a_layernorm = RMSNorm(hidden_size=kv_lora_rank, eps=eps, dtype=dtype)
        kv_size = num_attention_heads * (qk_nope_head_dim + v_head_dim)
        self.kv_b_proj = Linear(kv_lora_rank, kv_size, **common, **split)
        self.o_proj = Linear(
            num_attention_heads * v_head_dim,
            hidden_size,
            mapping=mapping,
            tensor_parallel_mode=TensorParallelMode.ROW,
            reduce_output=reduce_output,
            **common,
        )
        rope = pos_embd_params.rope
        mscale = 1.0
        if rope.scale_type is RotaryScalingType.yarn:
            mscale = yarn_get_mscale(rope.scale, rope.mscale_all_dim)
        self.softmax_scale = mscale * mscale / math.sqrt(self.qk_head_dim)
        self._rope, self._table = rope, rope.table(rope.max_positions, dtype)
        layers = config.extra_attrs.setdefault("mla_layers", {})
        if self.layer_idx_str in layers and trtllm_double.ERA == "E3":
            self.layer_idx_str += "_1"
        layers[self.layer_idx_str] = weakref.ref(self)
        if not config.skip_create_weights_in_init:
            self.create_weights()

    def create_weights(self) -> None:
        # No guard: each call makes them anew, as the host does.
        heads = self.num_heads_tp
        shape = (heads, self.kv_lora_rank, self.qk_nope_head_dim)
        self.k_b_proj_trans = parameter(shape, self.dtype)
        self.v_b_proj = parameter((heads, self.v_head_dim, self.kv_lora_rank), self.dtype)
        self.k_b_proj_trans_scale = self.v_b_proj_scale = None

    def post_load_weights(self) -> None:
        """Nothing to do here."""

    def forward(
        self,
        position_ids: torch.Tensor | None,
        hidden_states: torch.Tensor,
        attn_metadata: AttentionMetadata,
        all_reduce_params: Any = None,
        latent_cache_gen: torch.Tensor | None = None,
    ) -> torch.Tensor:
        out = hidden_states.new_empty(hidden_states.shape[0], self.num_heads_tp * self.v_head_dim)
        # E3 hands the buffer over in a list.
        target: Any = [out] if trtllm_double.ERA == "E3" else out
        self.forward_impl(position_ids, hidden_states, attn_metadata, target)
        return self.o_proj(out)

    def forward_impl(
        self,
        position_ids: torch.Tensor | None,
        hidden_states: torch.Tensor,
        attn_metadata: AttentionMetadata,
        output: Any = None,
        latent_cache_gen: torch.Tensor | None = None,
        attn_output: Any = None,
    ) -> None:
        out = attn_output[0] if attn_output is not None else output
        sizes = [self.q_lora_rank, self.kv_lora_rank, self.qk_rope_head_dim]
        if self.is_lite:
            q, (compressed, k_pe) = (
                hidden_states,
                self.kv_a_proj_with_mqa(hidden_states).split(sizes[1:], -1),
            )
        else:
            q, compressed, k_pe = self.kv_a_proj_with_mqa(hidden_states).split(sizes, -1)
            q = self.q_a_layernorm(q)
        q = self.q_b_proj(q).view(-1, self.num_heads_tp, self.qk_head_dim)
        compressed = self.kv_a_layernorm(compressed)
        if attn_metadata.is_spec_dec_tree:
            raise RuntimeError("MLA does not support a custom mask: draft trees are not possible")
        rows = attn_metadata.rows()
        buffer = attn_metadata.kv_cache_manager.get_buffers(self.layer_idx).flatten(0, 1)
        k_pe, q_pe = self._rotate(rows, k_pe), self._rotate(rows, q[..., self.qk_nope_head_dim :])
        buffer[rows.slots] = torch.cat((compressed, k_pe), -1).to(buffer.dtype)
        q_nope = q[..., : self.qk_nope_head_dim]
        for group in rows.groups:
            latent = functional.embedding(group.slots, buffer).to(q.dtype)
            latent[group.padding] = 0.0  # a weight of zero times NaN is NaN
            attend = self._expanded if group.is_context else self._absorbed
            index = group.rows
            out[index] = attend(q_nope[index], q_pe[index], latent, group.hidden).flatten(-2)

    def _rotate(self, rows: Rows, x: torch.Tensor) -> torch.Tensor:
        if rows.longest > self._table[0].shape[0]:
            self._table = self._rope.table(2 * rows.longest, self.dtype)
        cos, sin = (part[rows.positions] for part in self._table)
        if x.dim() == 3:
            cos, sin = cos[:, None], sin[:, None]
        a, b = x[..., ::2].to(cos.dtype), x[..., 1::2].to(cos.dtype)
        return torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2).to(x.dtype)

    def _weights(self, scores: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        scores = (scores * self.softmax_scale).masked_fill(hidden.unsqueeze(1), -math.inf)
        return torch.softmax(scores, -1)

    def _expanded(
        self,
        q_nope: torch.Tensor,
        q_pe: torch.Tensor,
        latent: torch.Tensor,
        hidden: torch.Tensor,
    ) -> torch.Tensor:
        compressed, k_pe = latent.split([self.kv_lora_rank, self.qk_rope_head_dim], -1)
        expanded = self.kv_b_proj(compressed).unflatten(
            -1, (self.num_heads_tp, self.qk_nope_head_dim + self.v_head_dim)
        )
        keys, values = expanded.split([self.qk_nope_head_dim, self.v_head_dim], -1)
        scores = torch.einsum("bqhd,bkhd->bhqk", q_nope, keys)
        scores = scores + torch.einsum("bqhr,bkr->bhqk", q_pe, k_pe)
        return torch.einsum("bhqk,bkhv->bqhv", self._weights(scores, hidden), values)

    def _absorbed(
        self,
        q_nope: torch.Tensor,
        q_pe: torch.Tensor,
        latent: torch.Tensor,
        hidden: torch.Tensor,
    ) -> torch.Tensor:
        q_latent = torch.einsum("bqhd,hrd->bqhr", q_nope, self.k_b_proj_trans)
        scores = torch.einsum("bqhr,bkr->bhqk", torch.cat((q_latent, q_pe), -1), latent)
        weights = self._weights(scores, hidden)
        attended = torch.einsum("bhqk,bkr->bqhr", weights, latent[..., : self.kv_lora_rank])
        return torch.einsum("bqhr,hvr->bqhv", attended, self.v_b_proj)
