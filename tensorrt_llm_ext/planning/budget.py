# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""What a draft costs: bytes of weights read per draft step, and KV bytes per token.

At small batches a draft step takes the time of reading its weights once, so these bytes are the
upper bound of what quantizing or pruning a module can gain. The head outweighs the rest: 70 % of a
Kimi-K2.x draft with the full vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from tensorrt_llm_ext.configs.draft import DraftConfig
from tensorrt_llm_ext.configs.target import TargetConfig
from tensorrt_llm_ext.errors import ConfigError, unknown_key_error

BF16_BITS: Final = 16.0

# Bits per weight with its scales, by the kinds of `checkpoints.quantized`.
WEIGHT_BITS: Final[Mapping[str, float]] = MappingProxyType(
    {
        "float": BF16_BITS,
        "fp8": 8.0,
        "fp8_block": 8.0 + 32 / 128**2,  # one float32 per 128 x 128 block
        "nvfp4": 4.0 + 8 / 16,  # one e4m3 per 16 values
        "int4": 4.0 + 16 / 32,  # one bfloat16 per 32 values
    }
)

_FC: Final = "fc"
_HEAD: Final = "lm_head"
_EMBEDDING: Final = "embed_tokens"
# Run once per round, on the captured states, and not in the steps that follow.
_ONCE_PER_ROUND: Final = (_FC, "fc_norm.", "input_norm")


@dataclass(frozen=True, kw_only=True, slots=True)
class StepBudget:
    """Bytes of weights that one draft step reads, whole model, all ranks together.

    Attributes:
        body: Decoder layers and norms, once per step.
        head: The head, once per step; also when it is the target's.
        fc: The projection of the captured states and its norms, once per round.
        embedding_row: One row of the embedding, once per drafted token.
        modules: Bytes of each module by canonical name; the embedding counts with one row.
    """

    body: float
    head: float
    fc: float
    embedding_row: float
    modules: Mapping[str, float] = field(repr=False)

    @property
    def total_recurrent(self) -> float:
        """Bytes of every draft step after the first: body and head and one embedding row."""
        return self.body + self.head + self.embedding_row

    @property
    def head_share(self) -> float:
        """Share of the head in `total_recurrent`, 0 to 1."""
        return self.head / self.total_recurrent

    def round_total(self, max_draft_len: int) -> float:
        """Bytes of a round of `max_draft_len` draft steps."""
        return self.fc + max_draft_len * self.total_recurrent

    def to_dict(self) -> dict[str, Any]:
        """Returns everything as plain data, in bytes."""
        return {
            "body": self.body,
            "head": self.head,
            "fc_per_round": self.fc,
            "embedding_row": self.embedding_row,
            "total_recurrent": self.total_recurrent,
            "head_share": self.head_share,
            "modules": dict(self.modules),
        }


def draft_modules(draft: DraftConfig) -> dict[str, int]:
    """Returns the number of weights that each module of a draft reads per use.

    Names are canonical (`layers.0.self_attn.o_proj`, `fc`, `lm_head`); `embed_tokens` counts with
    one row. The head is listed whether the draft brings one or uses the target's.
    """
    hidden = draft.hidden_size
    captured = draft.num_captured * draft.target_hidden_size
    sizes = {_EMBEDDING: hidden, _HEAD: draft.draft_vocab_size * hidden, "norm": hidden}
    if draft.has_fc:
        sizes[_FC] = hidden * captured
    if draft.fc_norm:
        sizes |= {f"fc_norm.{i}": draft.target_hidden_size for i in range(draft.num_captured)}
    if draft.norm_before_fc:
        sizes["input_norm"] = captured
    for index in range(draft.num_layers):
        sizes |= {f"layers.{index}.{name}": n for name, n in _layer_modules(draft, index)}
    return sizes


def _layer_modules(draft: DraftConfig, index: int) -> Iterator[tuple[str, int]]:
    hidden, mla = draft.hidden_size, draft.mla
    # The first layer sees the embedding beside the hidden state (DESIGN section 3).
    width = hidden if index else 2 * hidden
    if not index:
        yield "hidden_norm", hidden
    yield "input_layernorm", hidden
    yield "post_attention_layernorm", hidden
    if mla.q_lora_rank is None:
        yield "self_attn.q_proj", mla.num_heads * mla.qk_head_dim * width
    else:
        yield "self_attn.q_a_proj", mla.q_lora_rank * width
        yield "self_attn.q_a_layernorm", mla.q_lora_rank
        yield "self_attn.q_b_proj", mla.num_heads * mla.qk_head_dim * mla.q_lora_rank
    yield "self_attn.kv_a_proj_with_mqa", mla.latent_size * width
    yield "self_attn.kv_a_layernorm", mla.kv_lora_rank
    kv_rows = mla.num_heads * (mla.qk_nope_head_dim + mla.v_head_dim)
    yield "self_attn.kv_b_proj", kv_rows * mla.kv_lora_rank
    yield "self_attn.o_proj", hidden * mla.num_heads * mla.v_head_dim
    for name in ("gate_proj", "up_proj", "down_proj"):
        yield f"mlp.{name}", hidden * draft.intermediate_size


def step_budget(draft: DraftConfig, module_bits: Mapping[str, float] | None = None) -> StepBudget:
    """Returns the bytes of weights that a draft step reads.

    Args:
        draft: The draft.
        module_bits: Bits per weight of modules by canonical name, see `WEIGHT_BITS`; 16 for every
            module that is not named.

    Returns:
        The budget of the whole model; under tensor parallelism fc and the a-projections are
        replicated, everything else is divided.

    Raises:
        ConfigError: If a name is no module of this draft, or its bits are not positive.
    """
    sizes = draft_modules(draft)
    bits = dict(module_bits or {})
    for name, value in bits.items():
        if name not in sizes:
            raise unknown_key_error("module_bits", name, sizes)
        if not value > 0:
            raise ConfigError(f"module_bits[{name!r}] must be positive, got {value!r}.")
    modules = {name: size * bits.get(name, BF16_BITS) / 8 for name, size in sizes.items()}
    once = {name for name in modules if name.startswith(_ONCE_PER_ROUND)}
    body = [name for name in modules if name not in once | {_HEAD, _EMBEDDING}]
    return StepBudget(
        body=sum(modules[name] for name in body),
        head=modules[_HEAD],
        fc=sum(modules[name] for name in sorted(once)),
        embedding_row=modules[_EMBEDDING],
        modules=modules,
    )


def kv_bytes_per_token(
    target: TargetConfig,
    draft: DraftConfig | None,
    *,
    kv_dtype_bytes: int,
    reserved_draft_layers: int | None = None,
) -> int:
    """Returns the bytes of KV cache that one token takes, all layers.

    Args:
        target: The target; each layer keeps one latent row.
        draft: The draft, or None to count the target alone.
        kv_dtype_bytes: Bytes per value: 2 for BF16, 1 for FP8.
        reserved_draft_layers: Layers that a host reserves for the draft, where that is not the
            draft's own number (1.2.x and 1.3.0rc reserve `max_draft_len`).
    """
    values = target.num_layers * target.mla.latent_size
    if draft is not None:
        layers = draft.num_layers if reserved_draft_layers is None else reserved_draft_layers
        values += layers * draft.mla.latent_size
    return values * kv_dtype_bytes


__all__ = [
    "BF16_BITS",
    "WEIGHT_BITS",
    "StepBudget",
    "draft_modules",
    "kv_bytes_per_token",
    "step_budget",
]
