# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""The draft as the host's one-model worker calls it, around `models.eagle3`."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tensorrt_llm_ext.configs.target import TargetConfig
from tensorrt_llm_ext.models.eagle3 import Eagle3Draft
from tensorrt_llm_ext.models.interfaces import HeadModule, TargetTokenId
from tensorrt_llm_ext.trtllm.blocks import HostBlocks, HostContext
from tensorrt_llm_ext.trtllm.capture import HostDraft
from tensorrt_llm_ext.trtllm.host import host
from tensorrt_llm_ext.trtllm.loading import draft_formats, open_source
from tensorrt_llm_ext.trtllm.quant import Formats

_logger = logging.getLogger(__name__)


class DraftBody(nn.Module):
    """`draft_model.model`: one pass of the draft's layers.

    Args:
        core: The draft.

    Attributes:
        d2t: [draft_vocab_size] int32 offsets to target ids, None for a full vocabulary.
    """

    d2t: torch.Tensor | None

    def __init__(self, core: Eagle3Draft) -> None:
        super().__init__()
        self.core = core
        # No parameter, which a worker that keeps it would own too, and the target's loader ask the
        # checkpoint for. int32: masks of guided decoding take no other.
        size = None if core.d2t is None else core.d2t.shape
        self.register_buffer("d2t", None if size is None else torch.empty(size, dtype=torch.int32))

    @property
    def embed_tokens(self) -> nn.Module | None:
        """The draft's own embedding or the target's."""
        return self.core.embed_tokens

    def forward(
        self,
        attn_metadata: Any,
        input_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        spec_metadata: Any = None,
        hidden_states: torch.Tensor | None = None,
        all_rank_num_tokens: Any = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Runs the draft on one row per token.

        Args:
            attn_metadata: The host's, which says where rows are cached.
            input_ids: [rows]: the successor of each row's position.
            position_ids: [rows] or [1, rows]; the host's attention counts for itself.
            inputs_embeds: Not used: images are not drafted for.
            spec_metadata: Not used.
            hidden_states: [rows, hidden_size]: combined captured states, or the recurrent state.
            all_rank_num_tokens: Rows of each rank, under attention-DP; absent in 1.2.

        Returns:
            Normed states for the head, and the states that the next step starts from, both
            [rows, hidden_size].
        """
        ctx = HostContext(attn_metadata, all_rank_num_tokens)
        if input_ids is None or hidden_states is None or position_ids is None:
            raise ValueError("the draft needs input_ids, position_ids and hidden_states")
        state = self.core(hidden_states, TargetTokenId(input_ids), position_ids, ctx)
        return self.core.normed(state), state


@dataclass
class _TargetEnds:
    """What `Eagle3Draft.share_with` needs of the host's target."""

    config: TargetConfig
    embed_tokens: nn.Module
    lm_head: HeadModule


class DraftMethods:
    """What makes a model of the host an MLA Eagle3 draft; `draft_class` joins it with the host's.

    Attributes:
        model: The body.
        lm_head: The draft's own head or the target's.
        load_lm_head_from_target: As the host's own draft says it.
    """

    model: DraftBody
    lm_head: Any
    load_lm_head_from_target: bool
    _draft: HostDraft
    _is_sealed: bool

    def __init__(self, model_config: Any, start_layer_idx: int, draft: HostDraft) -> None:
        core = _build(model_config, start_layer_idx, draft)
        # Its patterns speak of other names; each projection has its format already.
        model_config.quant_config = Formats(host(), model_config, {}).config("float")
        root = host().symbol("DecoderModelForCausalLM")
        root.__init__(
            self,
            DraftBody(core),
            config=model_config,
            hidden_size=draft.config.hidden_size,
            vocab_size=draft.config.draft_vocab_size,
        )
        self._draft = draft
        self._is_sealed = True  # see named_modules
        self.load_lm_head_from_target = not draft.config.has_own_lm_head
        if draft.config.has_own_lm_head:
            self.lm_head = core.lm_head

    def named_modules(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Module]]:
        """Hides the draft from walks over its target until its weights are loaded.

        After building, the target gives its own quantization patterns to every module below it,
        the draft's too, and newer versions then make their weights anew, unquantized.
        """
        if self.__dict__.get("_is_sealed", False):
            return iter(())
        found: Iterator[tuple[str, nn.Module]] = nn.Module.named_modules(
            self,  # type: ignore[arg-type]
            *args,
            **kwargs,
        )
        return found

    def load_weights(self, weights: Any, weight_mapper: Any = None) -> None:
        """Loads from the draft's folder; the names and mapper of the host are not used."""
        self._is_sealed = False
        source = open_source(self._draft.checkpoint, self._draft.config)
        core = self.model.core
        core.load_weights(source)
        source.finish()
        if self.model.d2t is not None and core.d2t is not None:
            with torch.no_grad():
                self.model.d2t.copy_(core.d2t)

    def load_weights_from_target_model(self, target_model: Any) -> None:
        """Borrows the target's embedding and head where the draft has none of its own."""
        self._is_sealed = False
        core = self.model.core
        ends: Any = _TargetEnds(
            self._draft.target, target_model.model.embed_tokens, target_model.lm_head
        )
        core.share_with(ends)
        self.lm_head = core.lm_head

    def apply_eagle3_fc(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """[rows, L * target_hidden_size] captured states -> [rows, hidden_size].

        The worker calls it once per step, on captured states; only a width that can be nothing
        but a combined state is passed through.
        """
        config = self._draft.config
        width = config.num_captured * config.target_hidden_size
        if hidden_states.shape[-1] != width:
            return hidden_states
        combined: torch.Tensor = self.model.core.combine(hidden_states)
        return combined


@functools.cache
def draft_class() -> type:
    """Returns the draft's class in the installed host, made when first asked for.

    It derives from the host's own draft so that type tests hold, and uses none of its construction.

    Raises:
        HostError: If the host lacks what it is made from.
    """
    bases = (DraftMethods, host().symbol("Eagle3ForCausalLM"))
    made: Any = type(
        bases[1]
    )  # the host's metaclass, which finishes models after their constructor
    found: type = made("ExtEagle3ForCausalLM", bases, {"__module__": __name__})
    return found


def _build(model_config: Any, start_layer_idx: int, draft: HostDraft) -> Eagle3Draft:
    formats = draft_formats(draft.checkpoint)
    for fact in draft.checkpoint.detection.facts:
        _logger.warning("draft: %s", fact)
    spec = model_config.spec_config
    rows = getattr(spec, "tokens_per_gen_step", None) or spec.max_total_draft_tokens + 1
    blocks = HostBlocks(
        host(),
        model_config,
        Formats(host(), model_config, formats),
        rows,
        needs_logits=draft.needs_logits,
    )
    return Eagle3Draft(draft.config, blocks, start_layer_idx).eval()


__all__ = ["DraftBody", "draft_class"]
