# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""The host's building blocks for `models.eagle3`: its linears, norms, MLP and attention.

Each block holds a module of the host and loads it from canonical names, so that the draft of the
core runs here as it is written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tensorrt_llm_ext.configs.mla import MLAConfig, RopeConfig
from tensorrt_llm_ext.models.interfaces import DraftTokenId, HeadModule, TargetTokenId, WeightSource
from tensorrt_llm_ext.models.loading import load_modules
from tensorrt_llm_ext.trtllm.fused import (
    fused_draft_input,
    hold_packed,
    logits_of_max,
    share_norms,
    tell_max,
)
from tensorrt_llm_ext.trtllm.host import Host
from tensorrt_llm_ext.trtllm.loading import load_gate_up, load_kv_b, load_projection
from tensorrt_llm_ext.trtllm.quant import Formats


@dataclass(frozen=True)
class HostContext:
    """The host's `ctx` of one pass.

    Attributes:
        attn_metadata: The host's attention metadata.
        all_rank_num_tokens: Rows of each rank in this pass, under attention-DP.
    """

    attn_metadata: Any
    all_rank_num_tokens: Any = None


class _Norm(nn.Module):
    """The host's RMS norm."""

    def __init__(self, host: Host, size: int, eps: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.inner = host.symbol("RMSNorm")(hidden_size=size, eps=eps, dtype=dtype)

    def load(self, source: WeightSource, prefix: str) -> None:
        """Takes `{prefix}.weight`."""
        weight = self.inner.weight
        with torch.no_grad():
            weight.copy_(source.take(f"{prefix}.weight", tuple(weight.shape)))

    def forward(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> Any:
        """See `Blocks.rms_norm`."""
        if residual is None:
            return self.inner(x.contiguous())
        # The host adds in place: a view of something else must not be written to.
        return self.inner(x, residual.contiguous())


class _CapturedNorm(nn.Module):
    """One norm per captured state."""

    def __init__(self, host: Host, count: int, size: int, eps: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.norms = nn.ModuleList(_Norm(host, size, eps, dtype) for _ in range(count))

    def load(self, source: WeightSource, prefix: str) -> None:
        """Takes `{prefix}.{i}.weight`."""
        for index, norm in enumerate(self.norms):
            load_modules({f"{prefix}.{index}": norm}, source)

    def forward(self, captured: torch.Tensor) -> torch.Tensor:
        """See `Blocks.captured_norm`."""
        chunks = captured.chunk(len(self.norms), dim=-1)
        return torch.cat([norm(c) for norm, c in zip(self.norms, chunks, strict=True)], dim=-1)


class _DraftInput(nn.Module):
    """The two normed halves of the first layer's input."""

    def __init__(self, host: Host, size: int, eps: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.eps = eps
        self.input_layernorm = _Norm(host, size, eps, dtype)
        self.hidden_norm = _Norm(host, size, eps, dtype)

    def load(self, source: WeightSource, prefix: str) -> None:
        """Takes both norms below `prefix`."""
        self.input_layernorm.load(source, f"{prefix}.input_layernorm")
        self.hidden_norm.load(source, f"{prefix}.hidden_norm")

    def forward(
        self, token_ids: torch.Tensor, hidden: torch.Tensor, embedding: nn.Module
    ) -> torch.Tensor:
        """See `Blocks.draft_input`; one launch where this rank has the whole embedding."""
        weights = self.input_layernorm.inner.weight, self.hidden_norm.inner.weight
        fused = fused_draft_input(token_ids, embedding, weights[0], hidden, weights[1], self.eps)
        if fused is not None:
            return fused
        embedded = self.input_layernorm(embedding(token_ids))
        return torch.cat((embedded, self.hidden_norm(hidden)), dim=-1)


class _Embedding(nn.Module):
    """A draft's own embedding, whole on every rank."""

    def __init__(self, host: Host, count: int, size: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.inner = host.symbol("Embedding")(count, size, dtype=dtype)
        self.shape = (count, size)

    def load(self, source: WeightSource, prefix: str) -> None:
        """Takes `{prefix}.weight`."""
        self.inner.load_weights([{"weight": source.take(f"{prefix}.weight", self.shape)}])

    def forward(self, token_ids: torch.Tensor) -> torch.Tensor:
        """[tokens] -> [tokens, hidden_size]."""
        embedded: torch.Tensor = self.inner(token_ids)
        return embedded


class _Linear(nn.Module):
    """A projection, or a vocabulary head that the host's own class cannot hold."""

    def __init__(self, inner: nn.Module, rows: int, columns: int, kind: str) -> None:
        super().__init__()
        self.inner, self.rows, self.columns, self.kind = inner, rows, columns, kind

    def load(self, source: WeightSource, prefix: str) -> None:
        """Takes the module `prefix` in any format."""
        load_projection(self.inner, source, [(prefix, self.rows)], self.columns, self.kind)

    def forward(self, x: torch.Tensor, **_: Any) -> torch.Tensor:
        """[tokens, in] -> [tokens, out], gathered over ranks where it is a head."""
        out: torch.Tensor = self.inner(x)
        return out

    def argmax(
        self, hidden: torch.Tensor, d2t: torch.Tensor | None
    ) -> tuple[DraftTokenId, TargetTokenId]:
        """See `HeadModule.argmax`; the host's worker does this itself."""
        ids = self(hidden).argmax(dim=-1)
        target = ids if d2t is None else ids + d2t[ids]
        return DraftTokenId(ids), TargetTokenId(target)


class _GreedyHead(_Linear):
    """A head of which ranks exchange the largest logits alone."""

    def forward(self, x: torch.Tensor, **_: Any) -> torch.Tensor:
        """[rows, hidden_size] -> [rows, vocab_size], one-hot."""
        return logits_of_max(self.inner(x), self.rows)


class _GatedMLP(nn.Module):
    """The host's SwiGLU, each projection in its own format."""

    def __init__(
        self,
        blocks: HostBlocks,
        name: str,
        hidden_size: int,
        intermediate_size: int,
    ) -> None:
        super().__init__()
        formats = blocks.formats
        self.sizes = (hidden_size, intermediate_size)
        self.inner = blocks.host.symbol("GatedMLP")(
            hidden_size=hidden_size,
            intermediate_size=intermediate_size,
            bias=False,
            dtype=blocks.dtype,
            config=formats.plain_config(),
            overridden_tp_size=1 if blocks.is_attention_dp else None,
        )
        self.gate_up = formats.of(f"{name}.gate_proj", f"{name}.up_proj")
        self.down = formats.of(f"{name}.down_proj")
        _create(self.inner.gate_up_proj, formats, self.gate_up)
        _create(self.inner.down_proj, formats, self.down)

    def load(self, source: WeightSource, prefix: str) -> None:
        """Takes gate_proj, up_proj and down_proj below `prefix`."""
        hidden, width = self.sizes
        load_gate_up(self.inner.gate_up_proj, source, prefix, self.sizes, self.gate_up)
        down = [(f"{prefix}.down_proj", hidden)]
        load_projection(self.inner.down_proj, source, down, width, self.down)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[tokens, hidden_size] -> the same."""
        out: torch.Tensor = self.inner(x)
        return out


class _Attention(nn.Module):
    """The host's MLA with a first projection of any width and the draft's own rotary table."""

    def __init__(
        self,
        blocks: HostBlocks,
        name: str,
        config: MLAConfig,
        layer_idx: int,
        in_features: int,
        hidden_size: int,
    ) -> None:
        super().__init__()
        formats, host = blocks.formats, blocks.host
        self.config, self.sizes = config, (in_features, hidden_size)
        mla = host.symbol("MLA")
        values: dict[str, Any] = {
            "hidden_size": hidden_size,
            "num_attention_heads": config.num_heads,
            "num_key_value_heads": config.num_heads,
            "qk_nope_head_dim": config.qk_nope_head_dim,
            "qk_rope_head_dim": config.qk_rope_head_dim,
            "v_head_dim": config.v_head_dim,
            "q_lora_rank": config.q_lora_rank,
            "kv_lora_rank": config.kv_lora_rank,
            "predicted_tokens_per_seq": blocks.rows_per_request,
            "max_position_embeddings": config.rope.max_position_embeddings,
            "bias": False,
            "pos_embd_params": rope_parameters(host, config),
            "layer_idx": layer_idx,
            "dtype": blocks.dtype,
            "config": formats.plain_config(),
        }
        if host.has_parameter("MLA", "__init__", "rms_norm_eps"):
            values["rms_norm_eps"] = config.rms_norm_eps
        self.inner = mla(**values)
        for norm in (self.inner.q_a_layernorm, self.inner.kv_a_layernorm):
            norm.variance_epsilon = config.rms_norm_eps  # earlier versions read another config
        self.kinds = {
            "kv_a_proj_with_mqa": formats.of(f"{name}.q_a_proj", f"{name}.kv_a_proj_with_mqa"),
            "q_b_proj": formats.of(f"{name}.q_b_proj"),
            "o_proj": formats.of(f"{name}.o_proj"),
            "kv_b_proj": "float",  # absorbed into other products
        }
        if in_features != hidden_size:
            rows = (config.q_lora_rank or 0) + config.latent_size
            self.inner.kv_a_proj_with_mqa = blocks.bare_linear(in_features, rows)
        for projection, kind in self.kinds.items():
            _create(getattr(self.inner, projection), formats, kind)
        self.inner.create_weights()
        # Newer versions norm and quantize the input of a packed q_b_proj in one kernel.
        is_fused = hasattr(self.inner, "_q_a_layernorm_maybe_fused")
        if config.q_lora_rank is not None and not (is_fused and self.kinds["q_b_proj"] == "nvfp4"):
            ranks = (config.q_lora_rank, config.kv_lora_rank)
            share_norms(self.inner, ranks, config.rms_norm_eps)

    def load(self, source: WeightSource, prefix: str) -> None:
        """Takes the projections and norms below `prefix`."""
        config, inner, kinds = self.config, self.inner, self.kinds
        in_features, hidden = self.sizes
        rank, heads = config.q_lora_rank or 0, config.num_heads
        fused = [(f"{prefix}.q_a_proj", rank), (f"{prefix}.kv_a_proj_with_mqa", config.latent_size)]
        name = "kv_a_proj_with_mqa"
        load_projection(inner.kv_a_proj_with_mqa, source, fused, in_features, kinds[name])
        for norm in ("q_a_layernorm", "kv_a_layernorm"):
            weight = getattr(inner, norm).weight
            with torch.no_grad():
                weight.copy_(source.take(f"{prefix}.{norm}.weight", tuple(weight.shape)))
        q_b = [(f"{prefix}.q_b_proj", heads * config.qk_head_dim)]
        load_projection(inner.q_b_proj, source, q_b, rank, kinds["q_b_proj"])
        load_kv_b(inner, source, f"{prefix}.kv_b_proj", heads)
        out = [(f"{prefix}.o_proj", hidden)]
        load_projection(inner.o_proj, source, out, heads * config.v_head_dim, kinds["o_proj"])

    def forward(self, x: torch.Tensor, positions: torch.Tensor, ctx: HostContext) -> torch.Tensor:
        """[tokens, in_features] -> [tokens, hidden_size]; rows are cached as the metadata says."""
        out: torch.Tensor = self.inner(positions, x, ctx.attn_metadata)
        return out


class HostBlocks:
    """Implements `models.interfaces.Blocks`.

    Args:
        host: The host.
        model_config: The draft's ModelConfig.
        formats: Format of each projection.
        rows_per_request: Rows that a request verifies at once.
        needs_logits: Whether all logits of the draft are read, not only the largest.
    """

    def __init__(
        self,
        host: Host,
        model_config: Any,
        formats: Formats,
        rows_per_request: int,
        *,
        needs_logits: bool = False,
    ) -> None:
        self.host, self.formats, self.needs_logits = host, formats, needs_logits
        self.rows_per_request = rows_per_request
        self.mapping = model_config.mapping
        self.is_attention_dp = bool(self.mapping.enable_attention_dp)
        self.dtype: torch.dtype = model_config.torch_dtype
        self.device = torch.get_default_device()

    def embedding(self, name: str, num_embeddings: int, hidden_size: int) -> nn.Module:
        """See `Blocks.embedding`."""
        return _Embedding(self.host, num_embeddings, hidden_size, self.dtype)

    def linear(
        self, name: str, in_features: int, out_features: int, parallel: str = "replicated"
    ) -> nn.Module:
        """See `Blocks.linear`; whole on every rank: fc is read once per step."""
        kind = self.formats.of(name)
        inner = self.bare_linear(in_features, out_features)
        _create(inner, self.formats, kind)
        return _Linear(inner, out_features, in_features, kind)

    def rms_norm(self, name: str, hidden_size: int, eps: float) -> nn.Module:
        """See `Blocks.rms_norm`."""
        return _Norm(self.host, hidden_size, eps, self.dtype)

    def mla_attention(
        self, name: str, config: MLAConfig, layer_idx: int, in_features: int, hidden_size: int
    ) -> nn.Module:
        """See `Blocks.mla_attention`."""
        return _Attention(self, name, config, layer_idx, in_features, hidden_size)

    def gated_mlp(self, name: str, hidden_size: int, intermediate_size: int) -> nn.Module:
        """See `Blocks.gated_mlp`."""
        return _GatedMLP(self, name, hidden_size, intermediate_size)

    def lm_head(self, name: str, hidden_size: int, vocab_size: int) -> HeadModule:
        """See `Blocks.lm_head`: split over ranks and gathered, whole under attention-DP.

        A quantized head is a plain linear layer of the host, which every version quantizes; its
        own head class does so only in the newest.
        """
        size = self.mapping.tp_size
        is_split = not self.is_attention_dp and size > 1 and vocab_size % size == 0
        kind = self.formats.of(name)
        if is_split and kind == "nvfp4" and vocab_size // size % 16:
            is_split = False
        mode = self.host.symbol("TensorParallelMode").COLUMN if is_split else None
        inner = self.bare_linear(hidden_size, vocab_size, mode=mode, gather_output=is_split)
        _create(inner, self.formats, kind)
        if not self.needs_logits and (kind == "packed" or (is_split and kind == "float")):
            tell_max(inner)
            return _GreedyHead(inner, vocab_size, hidden_size, kind)
        return _Linear(inner, vocab_size, hidden_size, kind)

    def draft_input(self, name: str, hidden_size: int, eps: float) -> nn.Module:
        """See `Blocks.draft_input`."""
        return _DraftInput(self.host, hidden_size, eps, self.dtype)

    def captured_norm(
        self, name: str, num_captured: int, hidden_size: int, eps: float
    ) -> nn.Module:
        """See `Blocks.captured_norm`."""
        return _CapturedNorm(self.host, num_captured, hidden_size, eps, self.dtype)

    def bare_linear(
        self, in_features: int, out_features: int, *, mode: Any = None, gather_output: bool = False
    ) -> Any:
        """A linear layer of the host without weights yet."""
        return self.host.symbol("Linear")(
            in_features,
            out_features,
            bias=False,
            dtype=self.dtype,
            mapping=self.mapping if mode is not None else None,
            tensor_parallel_mode=mode,
            gather_output=gather_output,
            skip_create_weights_in_init=True,
        )


def rope_parameters(host: Host, config: MLAConfig) -> Any:
    """The draft's own rotary settings in the host's terms.

    The kernels of MLA read a table in which every pair stands twice, and only YaRN's has that
    layout in every version; an unscaled table is YaRN's with a factor of 1.
    """
    values = _rope_values(config.rope, config.qk_rope_head_dim)
    values["scale_type"] = host.symbol("RotaryScalingType").yarn
    return host.symbol("PositionalEmbeddingParams")(
        type=host.symbol("PositionEmbeddingType").yarn,
        rope=host.symbol("RopeParams")(**values),
        is_neox=False,
    )


def _rope_values(rope: RopeConfig, dim: int) -> dict[str, Any]:
    values: dict[str, Any] = {
        "dim": dim,
        "theta": rope.theta,
        "max_positions": rope.max_position_embeddings,
    }
    if rope.yarn is None:
        # With a factor of 1 no frequency changes, and no magnitude.
        values |= {"scale": 1.0, "original_max_positions": rope.max_position_embeddings}
        values |= {"beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 0.0}
    else:
        values |= {
            "scale": rope.yarn.factor,
            "original_max_positions": rope.yarn.original_max_position_embeddings,
            "beta_fast": rope.yarn.beta_fast,
            "beta_slow": rope.yarn.beta_slow,
            # An absent key is 1 for cos and sin, and no factor of the softmax scale.
            "mscale": rope.yarn.mscale or 1.0,
            "mscale_all_dim": rope.yarn.mscale_all_dim or 0.0,
        }
    return values


def _create(linear: Any, formats: Formats, kind: str) -> None:
    """Gives a projection its format, and only then its weights."""
    linear.quant_config = formats.config(kind)
    linear.create_weights()
    if kind == "packed":
        hold_packed(linear)


__all__ = ["HostBlocks", "HostContext", "rope_parameters"]
