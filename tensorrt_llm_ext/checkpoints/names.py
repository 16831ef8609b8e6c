# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Canonical tensor names, and where each canonical tensor lies in a checkpoint.

Targets keep the names of `DeepseekV3ForCausalLM`. Drafts are named as in `models.eagle3`: no
prefix, `layers.{i}.`, split a-projections, split gate and up projections.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tensorrt_llm_ext.configs.target import TargetConfig
from tensorrt_llm_ext.errors import CheckpointError

DRAFT_PREFIXES: Final = ("model.", "draft_model.", "eagle_module.")
_PREFIXES: Final = re.compile(f"^(?:{'|'.join(map(re.escape, DRAFT_PREFIXES))})+")
# Buffers that old checkpoints saved; they follow from the config.
_DERIVED: Final = re.compile(r"(^|\.)rotary_emb\.inv_freq$")
_MIDLAYER: Final = re.compile(r"^midlayer\.(?:(\d+)\.)?")
_EMBED_NORM: Final = re.compile(r"^(layers\.\d+\.)embed_layernorm\.")
# Each group of a fused projection's name: what precedes it, and which tensor of it this is.
_FUSED_A: Final = re.compile(r"^(.*\.self_attn\.)fused_qkv_a_proj(?:_with_mqa)?\.(\w+)$")
_KV_A: Final = re.compile(r"^(.*\.self_attn\.)kv_a_proj_with_mqa\.(\w+)$")
_FUSED_GATE_UP: Final = re.compile(r"^(.*\.mlp\.)gate_up_proj\.(\w+)$")
_WEIGHTS: Final = ("weight", "weight_packed")
_SCALE_BLOCK: Final = 128  # rows that share a row of a block-wise FP8 scale
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
    name = _PREFIXES.sub("", name)
    name = _MIDLAYER.sub(lambda match: f"layers.{match[1] or 0}.", name)
    return _EMBED_NORM.sub(r"\1input_layernorm.", name)


def draft_tensor_map(
    shapes: Mapping[str, Sequence[int]],
    *,
    q_lora_rank: int | None,
    latent_size: int,
    rename: Callable[[str], str] = canonical_draft_name,
) -> TensorMap:
    """Maps a draft's tensors to canonical names, splitting fused projections.

    The scales of a fused projection follow its weight: those with a row (or a block of rows) per
    output row are split, those of the whole tensor belong to both parts.

    Args:
        shapes: The checkpoint's tensors.
        q_lora_rank: Rows of q_a_proj, which come first in a fused a-projection; None when the draft
            has a full-rank q_proj.
        latent_size: Rows of kv_a_proj_with_mqa: kv_lora_rank + qk_rope_head_dim.
        rename: Stored name to canonical name, fused projections left fused.

    Raises:
        CheckpointError: If two tensors have the same canonical name, or a fused projection has
            another number of rows than its parts.
    """
    renamed = {name: rename(name) for name in shapes}
    by_canonical: dict[str, str] = {}
    skipped: Counter[str] = Counter()
    for name, canonical in renamed.items():
        if _DERIVED.search(canonical):
            skipped["rotary_emb.inv_freq"] += 1
        elif canonical in by_canonical:
            raise _both(by_canonical[canonical], name, canonical)
        else:
            by_canonical[canonical] = name
    fusions = _fusions(
        {canonical: tuple(shapes[name]) for canonical, name in by_canonical.items()},
        q_lora_rank or 0,
        latent_size,
    )
    refs: dict[str, TensorRef] = {}
    for canonical, name in by_canonical.items():
        module = canonical.rpartition(".")[0]
        fusion = fusions.get(module)
        parts = (
            {canonical: None} if fusion is None else fusion.split(canonical, tuple(shapes[name]))
        )
        for part, rows in parts.items():
            if part in refs:
                raise _both(refs[part].name, name, part)
            refs[part] = TensorRef(name, rows)
    _rename_later_norms(refs)
    return TensorMap(refs=refs, skipped=dict(skipped))


def _both(first: str, second: str, canonical: str) -> CheckpointError:
    return CheckpointError(
        f"Tensors {first!r} and {second!r} of the draft are both {canonical!r}. "
        "Remove the one that does not belong to it.",
        check="V5",
    )


def _rename_later_norms(refs: dict[str, TensorRef]) -> None:
    for canonical in list(refs):
        match = _LATER_LAYER_NORM.match(canonical)
        # Producers that share one class between layers call the only input norm hidden_norm.
        if match is not None and f"{match[1]}input_layernorm.weight" not in refs:
            refs[f"{match[1]}input_layernorm.weight"] = refs.pop(canonical)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Fusion:
    """A module that holds two projections one above the other."""

    parts: tuple[str, str]
    rows: tuple[int, int]

    def split(self, canonical: str, shape: tuple[int, ...]) -> dict[str, tuple[int, int] | None]:
        """Returns the parts of one tensor of the module with their row ranges."""
        kind = canonical.rpartition(".")[2]
        names = [f"{part}.{kind}" for part in self.parts]
        first, total = self.rows[0], sum(self.rows)
        if shape and shape[0] == total:
            return {names[0]: (0, first), names[1]: (first, total)}
        if shape in ((), (1,)) or kind in ("weight_shape", "pre_quant_scale"):
            return dict.fromkeys(names)
        blocks = -(-total // _SCALE_BLOCK)
        if shape[0] == blocks and first % _SCALE_BLOCK == 0:
            edge = first // _SCALE_BLOCK
            return {names[0]: (0, edge), names[1]: (edge, blocks)}
        raise CheckpointError(
            f"{canonical} has shape {list(shape)}, which has no row per output row ({total}), per "
            f"block of {_SCALE_BLOCK} rows, or for the whole tensor: it cannot be split between "
            f"{names[0]} and {names[1]}. Export the projections apart from each other.",
            check="V23",
        )


def _fusions(
    shapes: Mapping[str, tuple[int, ...]], q_lora_rank: int, latent_size: int
) -> dict[str, _Fusion]:
    """Finds the fused modules of a draft, by canonical name of the module."""
    fused_rows = q_lora_rank + latent_size
    found: dict[str, _Fusion] = {}
    for canonical, shape in shapes.items():
        module, _, kind = canonical.rpartition(".")
        if kind not in _WEIGHTS:
            continue
        match = _FUSED_A.match(canonical)
        if match is None and q_lora_rank and shape[:1] == (fused_rows,):
            # The host fuses under the name of the second part.
            match = _KV_A.match(canonical)
        if match is not None:
            if shape[:1] != (fused_rows,):
                raise CheckpointError(
                    f"{canonical} has shape {list(shape)}, expected {fused_rows} rows: q_lora_rank "
                    f"{q_lora_rank} + kv_lora_rank + qk_rope_head_dim ({latent_size}).",
                    check="V6",
                )
            parts = (f"{match[1]}q_a_proj", f"{match[1]}kv_a_proj_with_mqa")
            found[module] = _Fusion(parts=parts, rows=(q_lora_rank, latent_size))
        match = _FUSED_GATE_UP.match(canonical)
        if match is not None and shape and shape[0] % 2 == 0:
            parts = (f"{match[1]}gate_proj", f"{match[1]}up_proj")
            found[module] = _Fusion(parts=parts, rows=(shape[0] // 2, shape[0] // 2))
    return found
