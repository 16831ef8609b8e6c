# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""What the tensors of a draft say about it, by canonical name and shape; free of torch."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tensorrt_llm_ext.configs.draft import DraftConfig
from tensorrt_llm_ext.errors import ConfigError, UnsupportedError

_LAYER = re.compile(r"layers\.([0-9]{1,9})\.")
_EAGLE_1 = re.compile(r"(^|\.)(enorm|hnorm|eh_proj)\.")
_FC_NORM = re.compile(r"fc_norm\.([0-9]{1,9})\.weight")


def mha_draft_error(found: str) -> UnsupportedError:
    """Builds the error for a draft with ordinary attention."""
    return UnsupportedError(
        f"This is an MHA draft, not an MLA one: {found}. It needs no extension: use "
        "TensorRT-LLM's built-in Eagle3 path, which gives such a draft a KV cache of its own. For "
        "this package choose an MLA draft (with kv_a_proj_with_mqa), for instance "
        "lightseekorg/kimi-k2.5-eagle3-mla.",
        check="V2",
    )


def expected_shapes(draft: DraftConfig) -> dict[str, tuple[int, ...]]:
    """Shape of every tensor that a draft of this config must have, by canonical name."""
    hidden, captured = draft.hidden_size, draft.num_captured * draft.target_hidden_size
    shapes: dict[str, tuple[int, ...]] = {"norm.weight": (hidden,)}
    if draft.has_fc:
        shapes["fc.weight"] = (hidden, captured)
    if draft.fc_norm:
        for index in range(draft.num_captured):
            shapes[f"fc_norm.{index}.weight"] = (draft.target_hidden_size,)
    if draft.norm_before_fc:
        shapes["input_norm.weight"] = (captured,)
    if draft.has_own_embedding:
        shapes["embed_tokens.weight"] = (draft.vocab_size, hidden)
    if draft.has_own_lm_head:
        shapes["lm_head.weight"] = (draft.draft_vocab_size, hidden)
    if draft.has_d2t:
        shapes["d2t"] = (draft.draft_vocab_size,)
    for index in range(draft.num_layers):
        norms = ["input_layernorm", "post_attention_layernorm"] + ["hidden_norm"] * (index == 0)
        layer: dict[str, tuple[int, ...]] = {f"{norm}.weight": (hidden,) for norm in norms}
        layer |= _attention_shapes(draft, 2 * hidden if index == 0 else hidden)
        layer["mlp.gate_proj.weight"] = (draft.intermediate_size, hidden)
        layer["mlp.up_proj.weight"] = (draft.intermediate_size, hidden)
        layer["mlp.down_proj.weight"] = (hidden, draft.intermediate_size)
        shapes |= {f"layers.{index}.{name}": shape for name, shape in layer.items()}
    return shapes


def _attention_shapes(draft: DraftConfig, in_features: int) -> dict[str, tuple[int, ...]]:
    mla = draft.mla
    query_rows = mla.num_heads * mla.qk_head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "kv_a_proj_with_mqa.weight": (mla.latent_size, in_features),
        "kv_a_layernorm.weight": (mla.kv_lora_rank,),
        "kv_b_proj.weight": (
            mla.num_heads * (mla.qk_nope_head_dim + mla.v_head_dim),
            mla.kv_lora_rank,
        ),
        "o_proj.weight": (draft.hidden_size, mla.num_heads * mla.v_head_dim),
    }
    if mla.q_lora_rank is None:
        shapes["q_proj.weight"] = (query_rows, in_features)
    else:
        shapes["q_a_proj.weight"] = (mla.q_lora_rank, in_features)
        shapes["q_a_layernorm.weight"] = (mla.q_lora_rank,)
        shapes["q_b_proj.weight"] = (query_rows, mla.q_lora_rank)
    return {f"self_attn.{name}": shape for name, shape in shapes.items()}


@dataclass(frozen=True, kw_only=True, slots=True)
class DraftTensors:
    """Facts read from tensor names and shapes.

    Attributes:
        shapes: Shape by canonical name.
        num_layers: Number of decoder layers that have tensors.
        num_fc_norms: Number of `fc_norm.{i}` tensors.
    """

    shapes: Mapping[str, tuple[int, ...]] = field(repr=False)
    num_layers: int
    num_fc_norms: int

    @classmethod
    def from_shapes(cls, shapes: Mapping[str, Sequence[int]]) -> DraftTensors:
        """Collects the facts from canonical names (see `checkpoints.names`)."""
        layers = {int(match[1]) for name in shapes if (match := _LAYER.match(name))}
        norms = {int(match[1]) for name in shapes if (match := _FC_NORM.fullmatch(name))}
        for what, found in (("layers", layers), ("fc_norm", norms)):
            if found != set(range(len(found))):
                raise ConfigError(
                    f"The draft's tensors have {what} numbered {sorted(found)}, expected a run "
                    "from 0. Tensors are missing, or the names are of another layout.",
                    check="V5",
                )
        return cls(
            shapes={name: tuple(shape) for name, shape in shapes.items()},
            num_layers=len(layers),
            num_fc_norms=len(norms),
        )

    @property
    def has_fc(self) -> bool:
        """Whether captured states pass through `fc`."""
        return "fc.weight" in self.shapes

    @property
    def fc_columns(self) -> int | None:
        """Input width of `fc`."""
        shape = self.shapes.get("fc.weight")
        return shape[1] if shape is not None and len(shape) == 2 else None

    @property
    def has_embedding(self) -> bool:
        """Whether the draft brings its own embedding."""
        return "embed_tokens.weight" in self.shapes

    @property
    def has_lm_head(self) -> bool:
        """Whether the draft brings its own head."""
        return "lm_head.weight" in self.shapes

    @property
    def has_d2t(self) -> bool:
        """Whether the draft has a map from its vocabulary to the target's."""
        return "d2t" in self.shapes

    def check_kind(self) -> None:
        """Refuses drafts with another attention or another MLP than ours.

        Raises:
            UnsupportedError: For MHA, gated MLA and MoE drafts, with advice.
            ConfigError: If there is no attention at all.
        """
        names = [name for name in self.shapes if _LAYER.match(name)]
        older = next((name for name in self.shapes if _EAGLE_1.search(name)), None)
        if older is not None:
            raise UnsupportedError(
                f"The draft has {older}: it is an EAGLE-1 or multi-token-prediction layer, which "
                "reads one state of the target. TensorRT-LLM runs such a layer as decoding_type "
                "MTP; this package runs EAGLE-3 drafts, which read several.",
                check="V2",
            )
        if not any("kv_a_proj_with_mqa" in name for name in names):
            plain = [n for n in names if re.search(r"\.(k_proj|v_proj|qkv_proj)\.", n)]
            if not plain:
                raise ConfigError(
                    "The draft has no attention tensors: expected layers.0.self_attn."
                    f"kv_a_proj_with_mqa.weight, found {sorted(self.shapes)[:8]}. Is this the "
                    "folder of an Eagle3 draft?",
                    check="V2",
                )
            raise mha_draft_error(f"it has {plain[0]} and no kv_a_proj_with_mqa")
        gated = next((name for name in names if ".g_proj." in name), None)
        if gated is not None:
            raise UnsupportedError(
                f"The draft has {gated}: gated MLA (Kimi-K3 style) is another draft architecture, "
                "which this package does not run: it has no rotary part and a gate on its output. "
                "Choose a rotary MLA draft, for instance lightseekorg/kimi-k3-eagle3.1-mla.",
                check="V2",
            )
        experts = next((name for name in names if ".mlp.experts." in name), None)
        if experts is not None:
            raise UnsupportedError(
                f"The draft has {experts}: only dense drafts are supported, as all public Eagle3 "
                "drafts are. Choose a draft with one dense MLP per layer.",
                check="V7",
            )

    def check(self, draft: DraftConfig, *, tied: bool) -> None:
        """Cross-checks flags and sizes of the config against the tensors.

        Args:
            draft: The draft as read from its config.
            tied: Whether its config ties head and embedding.

        Raises:
            ConfigError: If config and tensors disagree; the message says which key.
            UnsupportedError: If the head is tied to the draft's own embedding.
        """
        if self.num_layers != draft.num_layers:
            raise ConfigError(
                f"config.json: num_hidden_layers is {draft.num_layers}, but the checkpoint has "
                f"{self.num_layers} layers. Correct the number, or complete the tensors.",
                check="V6",
            )
        self._check_norms(draft)
        self._check_vocabulary(draft)
        if tied and self.has_embedding and not self.has_lm_head:
            raise UnsupportedError(
                "config.json ties the draft's head to its own embedding. Write the embedding a "
                "second time as lm_head.weight; a missing head means the target's.",
                check="V8",
            )

    def _check_norms(self, draft: DraftConfig) -> None:
        if draft.fc_norm != bool(self.num_fc_norms):
            raise ConfigError(
                f"config.json: fc_norm is {draft.fc_norm}, but the checkpoint has "
                f"{self.num_fc_norms} fc_norm tensors. Set fc_norm to what the draft was trained "
                "with; a wrong value costs acceptance silently.",
                check="V18",
            )
        if draft.fc_norm and self.num_fc_norms != draft.num_captured:
            raise ConfigError(
                f"The checkpoint has {self.num_fc_norms} fc_norm tensors for {draft.num_captured} "
                f"captured layers (boundaries {list(draft.boundaries)}); one each is needed: "
                "complete the tensors, or correct the captured layers.",
                check="V18",
            )
        if draft.norm_before_fc != ("input_norm.weight" in self.shapes):
            raise ConfigError(
                f"config.json: norm_before_fc is {draft.norm_before_fc}, but the checkpoint has "
                f"{'no' if draft.norm_before_fc else 'an'} input_norm.weight. They belong "
                "together: set norm_before_fc to what the draft was trained with, or restore the "
                "tensor.",
                check="V20",
            )

    def _check_vocabulary(self, draft: DraftConfig) -> None:
        for name, rows, key in (
            ("lm_head.weight", draft.draft_vocab_size, "draft_vocab_size (or vocab_size)"),
            ("embed_tokens.weight", draft.vocab_size, "vocab_size"),
            ("d2t", draft.draft_vocab_size, "draft_vocab_size"),
            ("t2d", draft.vocab_size, "vocab_size"),
        ):
            shape = self.shapes.get(name)
            if shape is not None and (not shape or shape[0] != rows):
                raise ConfigError(
                    f"{name} has shape {list(shape)}, expected {rows} rows from {key}. The config "
                    "and the tensors belong to different drafts, or the vocabulary was pruned in "
                    "one of them only.",
                    check="V8",
                )
        if draft.draft_vocab_size < draft.vocab_size and not self.has_d2t:
            raise ConfigError(
                f"draft_vocab_size {draft.draft_vocab_size} is smaller than vocab_size "
                f"{draft.vocab_size}, but the checkpoint has no d2t to map draft ids to target "
                "ids. Restore the tensor from the export, or correct draft_vocab_size.",
                check="V21",
            )
        if not self.has_lm_head and draft.draft_vocab_size != draft.vocab_size:
            raise ConfigError(
                f"The checkpoint has no lm_head.weight, so draft_vocab_size "
                f"{draft.draft_vocab_size} must equal vocab_size {draft.vocab_size}: the target's "
                "head, which it borrows, has them all. Restore the head.",
                check="V8",
            )
