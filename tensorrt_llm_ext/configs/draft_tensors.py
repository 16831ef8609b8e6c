# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""What the tensors of a draft say about it, by canonical name and shape; free of torch."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tensorrt_llm_ext.configs.draft import DraftConfig
from tensorrt_llm_ext.errors import ConfigError, UnsupportedError

_LAYER = re.compile(r"layers\.(\d+)\.")
_FC_NORM = re.compile(r"fc_norm\.(\d+)\.weight")


def mha_draft_error(found: str) -> UnsupportedError:
    """Builds the error for a draft with ordinary attention."""
    return UnsupportedError(
        f"This is an MHA draft, not an MLA one: {found}. It needs no extension: use "
        "TensorRT-LLM's built-in Eagle3 path, which gives such a draft a KV cache of its own. For "
        "this package choose an MLA draft (with kv_a_proj_with_mqa), for instance "
        "lightseekorg/kimi-k2.5-eagle3-mla."
    )


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
                    "from 0. Tensors are missing, or the names are of another layout."
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
        if not any("kv_a_proj_with_mqa" in name for name in names):
            plain = [n for n in names if re.search(r"\.(k_proj|v_proj|qkv_proj)\.", n)]
            if not plain:
                raise ConfigError(
                    "The draft has no attention tensors: expected layers.0.self_attn."
                    f"kv_a_proj_with_mqa.weight, found {sorted(self.shapes)[:8]}. Is this the "
                    "folder of an Eagle3 draft?"
                )
            raise mha_draft_error(f"it has {plain[0]} and no kv_a_proj_with_mqa")
        gated = next((name for name in names if ".g_proj." in name), None)
        if gated is not None:
            raise UnsupportedError(
                f"The draft has {gated}: gated MLA (Kimi-K3 style) is another draft architecture, "
                "which this package does not run."
            )
        experts = next((name for name in names if ".mlp.experts." in name), None)
        if experts is not None:
            raise UnsupportedError(
                f"The draft has {experts}: only dense drafts are supported, as all public Eagle3 "
                "drafts are."
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
                f"{self.num_layers} layers."
            )
        self._check_norms(draft)
        self._check_vocabulary(draft)
        if tied and self.has_embedding and not self.has_lm_head:
            raise UnsupportedError(
                "config.json ties the draft's head to its own embedding. Write the embedding a "
                "second time as lm_head.weight; a missing head means the target's."
            )

    def _check_norms(self, draft: DraftConfig) -> None:
        if draft.fc_norm != bool(self.num_fc_norms):
            raise ConfigError(
                f"config.json: fc_norm is {draft.fc_norm}, but the checkpoint has "
                f"{self.num_fc_norms} fc_norm tensors. Set fc_norm to what the draft was trained "
                "with; a wrong value costs acceptance silently."
            )
        if draft.fc_norm and self.num_fc_norms != draft.num_captured:
            raise ConfigError(
                f"The checkpoint has {self.num_fc_norms} fc_norm tensors for {draft.num_captured} "
                f"captured layers (boundaries {list(draft.boundaries)}); one each is needed."
            )
        if draft.norm_before_fc != ("input_norm.weight" in self.shapes):
            raise ConfigError(
                f"config.json: norm_before_fc is {draft.norm_before_fc}, but the checkpoint has "
                f"{'no' if draft.norm_before_fc else 'an'} input_norm.weight. They belong together."
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
                    "one of them only."
                )
        if draft.draft_vocab_size < draft.vocab_size and not self.has_d2t:
            raise ConfigError(
                f"draft_vocab_size {draft.draft_vocab_size} is smaller than vocab_size "
                f"{draft.vocab_size}, but the checkpoint has no d2t to map draft ids to target ids."
            )
        if not self.has_lm_head and draft.draft_vocab_size != draft.vocab_size:
            raise ConfigError(
                f"The checkpoint has no lm_head.weight, so draft_vocab_size "
                f"{draft.draft_vocab_size} must equal vocab_size {draft.vocab_size}."
            )
