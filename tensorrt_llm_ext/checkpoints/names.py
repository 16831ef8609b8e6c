# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Canonical tensor names, and where each canonical tensor lies in a checkpoint.

Targets keep the names of `DeepseekV3ForCausalLM`. Drafts are named as in `models.eagle3`: no
prefix, `layers.{i}.`, split a-projections, split gate and up projections.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tensorrt_llm_ext.configs.target import TargetConfig
from tensorrt_llm_ext.errors import CheckpointError

DRAFT_PREFIXES: Final = ("model.", "draft_model.", "eagle_module.")
# Buffers that old checkpoints saved; they follow from the config.
_DERIVED: Final = re.compile(r"(^|\.)rotary_emb\.inv_freq$")
_MIDLAYER: Final = re.compile(r"^midlayer\.(?:(\d+)\.)?")
_FUSED_A: Final = re.compile(r"^(.*\.self_attn\.)fused_qkv_a_proj(?:_with_mqa)?\.weight$")
_KV_A: Final = re.compile(r"^(.*\.self_attn\.)kv_a_proj_with_mqa\.weight$")
_FUSED_GATE_UP: Final = re.compile(r"^(.*\.mlp\.)gate_up_proj\.weight$")
_LATER_LAYER_NORM: Final = re.compile(r"^(layers\.[1-9]\d*\.)hidden_norm\.weight$")

# Config keys that decide a tensor's shape, by the end of its name.
_SHAPE_KEYS: Final[tuple[tuple[str, str], ...]] = (
    ("embed_tokens.weight", "vocab_size, hidden_size"),
    ("lm_head.weight", "vocab_size (draft_vocab_size in a draft), hidden_size"),
    ("fc.weight", "hidden_size, target_hidden_size, number of captured layers"),
    ("input_norm.weight", "target_hidden_size, number of captured layers"),
    ("q_a_proj.weight", "q_lora_rank, hidden_size (twice in a draft's first layer)"),
    ("q_a_layernorm.weight", "q_lora_rank"),
    ("q_b_proj.weight", "num_attention_heads, qk_nope_head_dim, qk_rope_head_dim, q_lora_rank"),
    ("q_proj.weight", "num_attention_heads, qk_nope_head_dim, qk_rope_head_dim, hidden_size"),
    (
        "kv_a_proj_with_mqa.weight",
        "kv_lora_rank, qk_rope_head_dim, hidden_size (twice in a draft's first layer)",
    ),
    ("kv_a_layernorm.weight", "kv_lora_rank"),
    ("kv_b_proj.weight", "num_attention_heads, qk_nope_head_dim, v_head_dim, kv_lora_rank"),
    ("o_proj.weight", "hidden_size, num_attention_heads, v_head_dim"),
    ("mlp.gate.weight", "n_routed_experts, hidden_size"),
    ("e_score_correction_bias", "n_routed_experts"),
    ("d2t", "draft_vocab_size"),
    ("t2d", "vocab_size"),
)


def shape_keys(name: str) -> str:
    """Returns the config keys that decide the shape of a canonical tensor, for error messages."""
    for suffix, keys in _SHAPE_KEYS:
        if name == suffix or name.endswith("." + suffix):
            return keys
    if ".mlp.experts." in name:
        return "moe_intermediate_size, hidden_size"
    if ".mlp.shared_experts." in name:
        return "moe_intermediate_size, n_shared_experts, hidden_size"
    if ".mlp." in name:
        return "intermediate_size, hidden_size"
    return "hidden_size"


@dataclass(frozen=True, slots=True)
class TensorRef:
    """A tensor of the checkpoint, or a range of its rows.

    Attributes:
        name: The tensor's name in the checkpoint.
        rows: First row and the row after the last; None means the whole tensor.
    """

    name: str
    rows: tuple[int, int] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorMap:
    """Where each canonical tensor lies, and what is left out on purpose.

    Attributes:
        refs: By canonical name.
        skipped: Number of tensors left out, by the reason or prefix that names them.
    """

    refs: Mapping[str, TensorRef] = field(repr=False)
    skipped: Mapping[str, int]

    def shapes(self, files: Mapping[str, Sequence[int]]) -> dict[str, tuple[int, ...]]:
        """Returns the shape of each canonical tensor, from the shapes in the checkpoint."""
        result = {}
        for canonical, ref in self.refs.items():
            shape = tuple(files[ref.name])
            if ref.rows is not None:
                shape = (ref.rows[1] - ref.rows[0], *shape[1:])
            result[canonical] = shape
        return result


def target_tensor_map(names: Iterable[str], config: TargetConfig) -> TensorMap:
    """Maps a target's tensors: the wrapper's prefix goes, vision and MTP tensors are left out.

    Args:
        names: The tensor names of the checkpoint.
        config: The target, which knows the prefixes.
    """
    refs: dict[str, TensorRef] = {}
    skipped: Counter[str] = Counter()
    for name in names:
        prefix = next((p for p in config.skipped_prefixes if name.startswith(p)), None)
        canonical = name.removeprefix(config.weight_prefix)
        if prefix is not None:
            skipped[prefix] += 1
        elif _DERIVED.search(name):
            skipped["rotary_emb.inv_freq"] += 1
        elif canonical == "lm_head.weight" and config.tie_word_embeddings:
            skipped["lm_head.weight (tied to the embedding)"] += 1
        else:
            refs[canonical] = TensorRef(name)
    return TensorMap(refs=refs, skipped=dict(skipped))


def canonical_draft_name(name: str) -> str:
    """Returns a draft tensor's name without producers' prefixes, `midlayer.` as `layers.0.`."""
    stripped = True
    while stripped:
        stripped = False
        for prefix in DRAFT_PREFIXES:
            if name.startswith(prefix):
                name, stripped = name[len(prefix) :], True
    return _MIDLAYER.sub(lambda match: f"layers.{match[1] or 0}.", name)


def draft_tensor_map(
    shapes: Mapping[str, Sequence[int]], *, q_lora_rank: int | None, latent_size: int
) -> TensorMap:
    """Maps a draft's tensors to canonical names, splitting fused projections.

    Args:
        shapes: The checkpoint's tensors.
        q_lora_rank: Rows of q_a_proj, which come first in a fused a-projection; None when the draft
            has a full-rank q_proj.
        latent_size: Rows of kv_a_proj_with_mqa: kv_lora_rank + qk_rope_head_dim.

    Raises:
        CheckpointError: If two tensors have the same canonical name, or a fused projection has
            another number of rows than its parts.
    """
    refs: dict[str, TensorRef] = {}
    skipped: Counter[str] = Counter()
    for name, shape in shapes.items():
        canonical = canonical_draft_name(name)
        if _DERIVED.search(canonical):
            skipped["rotary_emb.inv_freq"] += 1
            continue
        parts = _split(canonical, tuple(shape), q_lora_rank or 0, latent_size)
        for part, rows in parts.items():
            if part in refs:
                raise CheckpointError(
                    f"Tensors {refs[part].name!r} and {name!r} of the draft are both {part!r}. "
                    "Remove the one that does not belong to it."
                )
            refs[part] = TensorRef(name, rows)
    for canonical in list(refs):
        match = _LATER_LAYER_NORM.match(canonical)
        # Producers that share one class between layers call the only input norm hidden_norm.
        if match is not None and f"{match[1]}input_layernorm.weight" not in refs:
            refs[f"{match[1]}input_layernorm.weight"] = refs.pop(canonical)
    return TensorMap(refs=refs, skipped=dict(skipped))


def _split(
    canonical: str, shape: tuple[int, ...], q_lora_rank: int, latent_size: int
) -> dict[str, tuple[int, int] | None]:
    """Returns the canonical parts of a tensor with their row ranges."""
    fused_rows = q_lora_rank + latent_size
    match = _FUSED_A.match(canonical)
    if match is None and q_lora_rank and shape[:1] == (fused_rows,):
        # The host fuses under the name of the second part.
        match = _KV_A.match(canonical)
    if match is not None:
        if shape[:1] != (fused_rows,):
            raise CheckpointError(
                f"{canonical} has shape {list(shape)}, expected {fused_rows} rows: q_lora_rank "
                f"{q_lora_rank} + kv_lora_rank + qk_rope_head_dim ({latent_size})."
            )
        return {
            f"{match[1]}q_a_proj.weight": (0, q_lora_rank),
            f"{match[1]}kv_a_proj_with_mqa.weight": (q_lora_rank, fused_rows),
        }
    match = _FUSED_GATE_UP.match(canonical)
    if match is not None and shape and shape[0] % 2 == 0:
        half = shape[0] // 2
        return {
            f"{match[1]}gate_proj.weight": (0, half),
            f"{match[1]}up_proj.weight": (half, shape[0]),
        }
    return {canonical: None}
