# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Multi-head latent attention over the paged latent cache."""

from __future__ import annotations

import torch
from torch import nn

from tensorrt_llm_ext.configs.mla import MLAConfig
from tensorrt_llm_ext.models.interfaces import ForwardContext, WeightSource
from tensorrt_llm_ext.models.layers import RMSNorm
from tensorrt_llm_ext.models.linears import Linears
from tensorrt_llm_ext.models.loading import load_modules
from tensorrt_llm_ext.ops.attention import mla_decode, mla_prefill
from tensorrt_llm_ext.ops.attention.metadata import DecodeMetadata, PrefillMetadata
from tensorrt_llm_ext.ops.kvcache import mla_rope_append
from tensorrt_llm_ext.ops.norm import latent_norm_pair
from tensorrt_llm_ext.quantization.loading import take_float

_FEW_ROWS = 8  # below this many, weights stand on the left of a product over heads


class MLAAttention(nn.Module):
    """One MLA layer.

    Decode rows attend in absorbed form: `kv_b_proj` is split at load into `w_kc` (keys, applied to
    the query) and `w_vc` (values, applied to the output), so that the cache is read as it is.
    Prefill rows expand keys and values instead, which costs less when the rows are many.

    Args:
        name: Canonical name, by which `linears` knows the projections.
        config: Shapes and rotary settings.
        layer_idx: Which of the context's caches this layer owns.
        in_features: Width of the input; twice the hidden size in a draft's first layer.
        hidden_size: Width of the output.
        rope_table: [max_positions, qk_rope_head_dim / 2, 2] from `rotary_table`; layers that share
            the tensor share one gather per pass.
        linears: Makes the projections.
    """

    def __init__(
        self,
        name: str,
        config: MLAConfig,
        layer_idx: int,
        in_features: int,
        hidden_size: int,
        rope_table: torch.Tensor,
        linears: Linears,
    ) -> None:
        super().__init__()
        device, dtype = linears.device, linears.dtype
        self.layer_idx = layer_idx
        self.num_heads = config.num_heads
        self.qk_head_dim = config.qk_head_dim
        self.q_head_sizes = [config.qk_nope_head_dim, config.qk_rope_head_dim]
        self.kv_lora_rank = config.kv_lora_rank
        self.softmax_scale = config.softmax_scale
        q_size = config.num_heads * config.qk_head_dim
        q_part = ("q_proj", q_size)
        if config.q_lora_rank is not None:
            q_part = ("q_a_proj", config.q_lora_rank)
        self.a_sizes = [q_part[1], config.kv_lora_rank, config.qk_rope_head_dim]
        kv_part = ("kv_a_proj_with_mqa", config.latent_size)
        self.a_proj = linears.fused(name, in_features, (q_part, kv_part))
        self.q_a_layernorm: RMSNorm | None = None
        if config.q_lora_rank is not None:
            self.q_a_layernorm = RMSNorm(
                config.q_lora_rank, config.rms_norm_eps, device=device, dtype=dtype
            )
            self.q_b_proj = linears.one(f"{name}.q_b_proj", config.q_lora_rank, q_size)
        self.kv_a_layernorm = RMSNorm(
            config.kv_lora_rank, config.rms_norm_eps, device=device, dtype=dtype
        )
        heads, rank = config.num_heads, config.kv_lora_rank
        self.w_kc = _empty_heads((heads, config.qk_nope_head_dim, rank), device, dtype)
        self.w_vc = _empty_heads((heads, rank, config.v_head_dim), device, dtype)
        self.o_proj = linears.one(f"{name}.o_proj", heads * config.v_head_dim, hidden_size)
        self.register_buffer("rope_table", rope_table, persistent=False)
        self.rope_table: torch.Tensor

    def load(self, source: WeightSource, prefix: str) -> None:
        """Takes the projections and norms below `prefix` and splits kv_b_proj by head.

        Raises:
            CheckpointError: If a tensor is missing or misshapen, or kv_b_proj is quantized: it is
                absorbed into other products.
        """
        modules: dict[str, object] = {prefix: self.a_proj}
        if self.q_a_layernorm is not None:
            modules[f"{prefix}.q_a_layernorm"] = self.q_a_layernorm
            modules[f"{prefix}.q_b_proj"] = self.q_b_proj
        modules[f"{prefix}.kv_a_layernorm"] = self.kv_a_layernorm
        modules[f"{prefix}.o_proj"] = self.o_proj
        load_modules(modules, source)
        heads, nope, rank = self.w_kc.shape
        v_head_dim = self.w_vc.shape[-1]
        kv_b = take_float(source, f"{prefix}.kv_b_proj", (heads * (nope + v_head_dim), rank))
        kv_b = kv_b.view(heads, nope + v_head_dim, rank)
        keys, values = torch.split(kv_b, [nope, v_head_dim], dim=1)
        with torch.no_grad():
            self.w_kc.copy_(keys)
            self.w_vc.copy_(values.mT)

    def forward(
        self, x: torch.Tensor, positions: torch.Tensor, ctx: ForwardContext
    ) -> torch.Tensor:
        """Writes the latent rows of this pass and attends.

        Args:
            x: [tokens, in_features].
            positions: [tokens] int64.
            ctx: Caches and where each row lives in them.

        Returns:
            [tokens, hidden_size].
        """
        q, c_kv, k_pe = self.a_proj(x).split_with_sizes(self.a_sizes, -1)
        if self.q_a_layernorm is None:
            c_kv = self.kv_a_layernorm(c_kv)
        else:
            q, c_kv = latent_norm_pair(
                q,
                c_kv,
                self.q_a_layernorm.weight,
                self.kv_a_layernorm.weight,
                self.kv_a_layernorm.eps,
            )
            q = self.q_b_proj(q)
        q = q.view(-1, self.num_heads, self.qk_head_dim)
        q_nope, q_pe = q.split_with_sizes(self.q_head_sizes, -1)
        latent_cache = ctx.latent_caches[self.layer_idx]
        q_pe = mla_rope_append(
            q_pe,
            k_pe,
            c_kv,
            self._rope_rows(positions, ctx),
            ctx.metadata.slot_mapping,
            latent_cache,
            has_padding=ctx.metadata.has_padding,
        )
        attended = self._attend(q_nope, q_pe, latent_cache, ctx)  # [tokens, num_heads, v_head_dim]
        output: torch.Tensor = self.o_proj(attended.flatten(1))
        return output

    def _rope_rows(self, positions: torch.Tensor, ctx: ForwardContext) -> torch.Tensor:
        table = self.rope_table
        rows = ctx.rope_rows.get(id(table))
        if rows is None:
            rows = ctx.rope_rows[id(table)] = table.index_select(0, positions)
        return rows

    def _attend(
        self,
        q_nope: torch.Tensor,
        q_pe: torch.Tensor,
        latent_cache: torch.Tensor,
        ctx: ForwardContext,
    ) -> torch.Tensor:
        metadata = ctx.metadata
        if metadata.decode is not None and not metadata.prefill:
            return self._decode(q_nope, q_pe, latent_cache, metadata.decode)
        parts = []
        row = metadata.num_decode_tokens
        if metadata.decode is not None and row:
            parts.append(self._decode(q_nope[:row], q_pe[:row], latent_cache, metadata.decode))
        for chunk in metadata.prefill:
            rows = slice(row, row + chunk.num_tokens)
            parts.append(self._prefill(q_nope[rows], q_pe[rows], latent_cache, chunk))
            row += chunk.num_tokens
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _decode(
        self,
        q_nope: torch.Tensor,
        q_pe: torch.Tensor,
        latent_cache: torch.Tensor,
        decode: DecodeMetadata,
    ) -> torch.Tensor:
        # Weights first: see _empty_heads.
        q_latent = torch.bmm(self.w_kc.mT, q_nope.permute(1, 2, 0))  # [heads, kv_lora_rank, tokens]
        q = torch.cat((q_latent.permute(2, 0, 1), q_pe), dim=-1)
        attended = mla_decode(
            q.view(*decode.positions.shape, *q.shape[1:]),
            latent_cache,
            decode,
            kv_lora_rank=self.kv_lora_rank,
            softmax_scale=self.softmax_scale,
        )
        attended = attended.flatten(0, 1)
        if attended.shape[0] < _FEW_ROWS:
            return torch.bmm(self.w_vc.mT, attended.permute(1, 2, 0)).permute(2, 0, 1)
        return torch.bmm(attended.transpose(0, 1), self.w_vc).transpose(0, 1)

    def _prefill(
        self,
        q_nope: torch.Tensor,
        q_pe: torch.Tensor,
        latent_cache: torch.Tensor,
        chunk: PrefillMetadata,
    ) -> torch.Tensor:
        return mla_prefill(
            q_nope,
            q_pe,
            latent_cache,
            chunk,
            w_kc=self.w_kc,
            w_vc=self.w_vc,
            softmax_scale=self.softmax_scale,
        )


def _empty_heads(
    shape: tuple[int, int, int], device: torch.device, dtype: torch.dtype
) -> nn.Parameter:
    """Returns an uninitialised [heads, in, out] weight that lies in memory as [heads, out, in].

    With few rows of input, `weight.mT @ input.mT` over that layout reads the weight up to three
    times as fast as `input @ weight` does over either: a CPU's matmul library then works as for
    matrices, where for one row it would turn to its slower matrix-vector routine.
    """
    heads, in_features, out_features = shape
    return nn.Parameter(
        torch.empty((heads, out_features, in_features), device=device, dtype=dtype).mT,
        requires_grad=False,
    )
