# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Speculation: modes, metadata, the one-model worker's loop."""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import trtllm_double
from trtllm_double.basics import Mapping


class SpeculativeDecodingMode(enum.IntEnum):
    """Ways of speculation."""

    EAGLE3 = 4
    EAGLE3_ONE_MODEL = 5
    NONE = 11

    def is_eagle3_one_model(self) -> bool:
        return self is SpeculativeDecodingMode.EAGLE3_ONE_MODEL

    def use_one_engine(self) -> bool:
        return self.is_eagle3_one_model()

    def need_load_draft_weights(self) -> bool:
        return self.is_eagle3_one_model()

    def support_overlap_scheduler(self) -> bool:
        return self.is_eagle3_one_model()


@dataclass(kw_only=True)
class SpecMetadata:
    """What a pass needs for speculation."""

    max_num_requests: int
    max_draft_len: int
    max_total_draft_tokens: int
    spec_dec_mode: Any = SpeculativeDecodingMode.NONE
    num_generations: int = 0
    is_cuda_graph: bool = False
    gather_ids: torch.Tensor | None = None
    request_ids: list[int] | None = None
    draft_tokens: torch.Tensor | None = None
    num_tokens: int = 0
    num_layers: int = 0
    all_rank_num_tokens: list[int] | None = None
    all_rank_num_seqs: list[int] | None = None
    allow_advanced_sampling: bool = False
    runtime_draft_len: int = 0

    def prepare(self) -> None:
        """Called before each pass."""

    def is_layer_capture(self, layer_id: int) -> bool:
        return False

    def maybe_capture_hidden_states(
        self, layer_id: int, hidden_states: torch.Tensor, residual: torch.Tensor | None = None
    ) -> None:
        """Nothing by default."""


@dataclass(kw_only=True)
class Eagle3OneModelSpecMetadata(SpecMetadata):
    """Captured states of the one-model mode."""

    hidden_states: torch.Tensor | None = None
    batch_indices_cuda: torch.Tensor | None = None
    layers_to_capture: Any = None
    hidden_size: int = 0
    max_num_tokens: int = 0
    dtype: torch.dtype = torch.bfloat16
    subseq_all_rank_num_tokens: list[int] | None = None

    def __post_init__(self) -> None:
        if not self.layers_to_capture:
            if self.num_layers == 1:
                self.layers_to_capture = (0,)
            elif self.num_layers <= 5:
                raise ValueError("Not enough hidden layers for default EAGLE3 capture")
            else:
                n = self.num_layers
                self.layers_to_capture = (1, n // 2 - 1, n - 4)
        self.layers_to_capture = tuple(sorted(set(self.layers_to_capture)))
        self.num_capture_layers = len(self.layers_to_capture)
        shape = (self.max_num_tokens, self.hidden_size * self.num_capture_layers)
        self.hidden_states = torch.full(shape, float("nan"), dtype=self.dtype)

    def is_layer_capture(self, layer_id: int) -> bool:
        return layer_id in self.layers_to_capture

    def prepare(self) -> None:
        self.batch_indices_cuda = torch.arange(len(self.request_ids or []))

    def maybe_capture_hidden_states(
        self, layer_id: int, hidden_states: torch.Tensor, residual: torch.Tensor | None = None
    ) -> None:
        if layer_id not in self.layers_to_capture:
            return
        place = self.layers_to_capture.index(layer_id) * self.hidden_size
        value = hidden_states if residual is None else hidden_states + residual
        self.hidden_states[: value.shape[0], place : place + self.hidden_size] = value


class SpecWorkerBase(nn.Module):
    """What all workers share."""

    def __init__(self, use_separate_draft_kv_cache: bool = False) -> None:
        super().__init__()
        self.use_separate_draft_kv_cache = use_separate_draft_kv_cache
        self._d2t: torch.Tensor | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if trtllm_double.ERA == "E3" and "forward" in vars(cls):
            raise TypeError(f"{cls.__name__} must define _forward_impl, not forward")

    def set_draft_model(self, draft_model: nn.Module) -> None:
        self._d2t = getattr(draft_model.model, "d2t", None)  # a parameter is the worker's too

    def _forward_impl(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    def _prepare_attn_metadata_for_spec_dec(self, attn_metadata: Any) -> None:
        attn_metadata.prepare_for_spec_dec(
            "_seq_lens", "_seq_lens_cuda", "kv_lens_cuda", "host_request_types"
        )

    def _restore_attn_metadata_from_spec_dec(self, attn_metadata: Any) -> None:
        attn_metadata.restore_from_spec_dec()
        attn_metadata.on_update()

    def _sample_and_accept_draft_tokens_base(
        self,
        logits: torch.Tensor,
        draft_tokens: torch.Tensor,
        num_contexts: int,
        batch_size: int,
        spec_metadata: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Greedy acceptance: contexts have one row of logits, generations k + 1."""
        k = draft_tokens.shape[1]
        tokens = logits.argmax(-1)
        accepted = torch.zeros(batch_size, k + 1, dtype=torch.long)
        lengths = torch.ones(batch_size, dtype=torch.long)
        accepted[:num_contexts, 0] = tokens[:num_contexts]
        target = tokens[num_contexts:].view(-1, k + 1)
        accepted[num_contexts:] = target
        lengths[num_contexts:] += (draft_tokens == target[:, :-1]).long().cumprod(-1).sum(-1)
        return accepted, lengths

    def _prepare_context_input_ids(
        self,
        input_ids: torch.Tensor,
        num_ctx_tokens: int,
        gather_ids: torch.Tensor,
        accepted_tokens: torch.Tensor,
        num_contexts: int,
    ) -> torch.Tensor:
        """Shifted by one; the last row of a context, also of a chunk, takes the sampled token."""
        shifted = input_ids[:num_ctx_tokens].roll(-1)
        shifted[gather_ids[:num_contexts]] = accepted_tokens[:num_contexts, 0]
        return shifted

    def _prepare_next_new_tokens(
        self,
        accepted_tokens: torch.Tensor,
        next_draft_tokens: torch.Tensor,
        batch_indices_cuda: torch.Tensor,
        batch_size: int,
        num_accepted_tokens: torch.Tensor,
    ) -> torch.Tensor:
        last = accepted_tokens[batch_indices_cuda[:batch_size], num_accepted_tokens - 1]
        return torch.cat((last.unsqueeze(1), next_draft_tokens), 1)


class WorkerLoop(SpecWorkerBase):
    """The draft loop of the one-model Eagle3 worker, as all eras run it."""

    def _configure(self, spec_config: Any, mapping: Mapping | None) -> None:
        self.spec_config, self.mapping = spec_config, mapping or Mapping()
        self.max_draft_len = spec_config.max_draft_len

    def _to_target(self, draft_ids: torch.Tensor, draft_model: nn.Module) -> torch.Tensor:
        is_e3 = trtllm_double.ERA == "E3"
        d2t = self._d2t if is_e3 else getattr(draft_model.model, "d2t", None)
        return draft_ids if d2t is None else draft_ids + d2t[draft_ids].to(draft_ids.dtype)

    def _step_tokens(self, spec_metadata: Any) -> list[int] | None:
        if trtllm_double.ERA == "E1":
            return spec_metadata.all_rank_num_seqs
        return spec_metadata.subseq_all_rank_num_tokens

    def _draft(self, draft_model: nn.Module, inputs: dict[str, Any], counts: Any) -> Any:
        if trtllm_double.ERA == "E1":
            inputs["attn_metadata"].all_rank_num_tokens = counts
            return draft_model.model(**inputs)
        return draft_model.model(**inputs, all_rank_num_tokens=counts)

    def _run(
        self,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor,
        logits: torch.Tensor,
        attn_metadata: Any,
        spec_metadata: Any,
        draft_model: nn.Module,
    ) -> dict[str, torch.Tensor]:
        batch, contexts = attn_metadata.num_seqs, attn_metadata.num_contexts
        k = self.max_draft_len
        saved_counts, saved_contexts = attn_metadata.all_rank_num_tokens, contexts
        accepted, lengths = self._sample_and_accept_draft_tokens_base(
            logits, spec_metadata.draft_tokens, contexts, batch, spec_metadata
        )
        self._prepare_attn_metadata_for_spec_dec(attn_metadata)
        inputs, last = self._first_inputs(
            input_ids, position_ids, accepted, lengths, attn_metadata, spec_metadata, draft_model
        )
        drafts = []
        counts = spec_metadata.all_rank_num_tokens
        with self._restoring(attn_metadata, saved_contexts, saved_counts):
            for step in range(k):
                hidden, to_save = self._draft(draft_model, inputs, counts)
                rows = last if step == 0 else torch.arange(batch)
                scores = draft_model.logits_processor(
                    hidden[rows], draft_model.lm_head, attn_metadata, True
                )
                token = self._to_target(scores.argmax(-1), draft_model)
                drafts.append(token)
                positions = inputs["position_ids"].flatten()[rows] + 1
                attn_metadata._seq_lens.fill_(1)
                attn_metadata._seq_lens_cuda.fill_(1)
                if step == 0:
                    attn_metadata.host_request_types[:contexts].fill_(1)
                    attn_metadata.num_contexts = 0
                    attn_metadata.kv_lens_cuda[contexts:] -= (k + 1 - lengths[contexts:]).int()
                    attn_metadata.kv_lens_cuda[:contexts] += 1
                    attn_metadata.kv_lens_cuda[contexts:] += 1
                else:
                    attn_metadata.kv_lens_cuda += 1
                attn_metadata.on_update()
                counts = self._step_tokens(spec_metadata)
                inputs = {
                    **inputs,
                    "input_ids": token,
                    "position_ids": positions,
                    "hidden_states": to_save[rows],
                }
        next_drafts = torch.stack(drafts, 1)
        following = self._prepare_next_new_tokens(
            accepted, next_drafts, spec_metadata.batch_indices_cuda, batch, lengths
        )
        return {
            "logits": logits,
            "new_tokens": accepted,
            "new_tokens_lens": lengths,
            "next_draft_tokens": next_drafts,
            "next_new_tokens": following,
        }

    @contextlib.contextmanager
    def _restoring(self, attn_metadata: Any, contexts: int, counts: Any) -> Iterator[None]:
        try:
            yield
        finally:
            attn_metadata.num_contexts = contexts
            attn_metadata.all_rank_num_tokens = counts
            self._restore_attn_metadata_from_spec_dec(attn_metadata)

    def _first_inputs(
        self,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor,
        accepted: torch.Tensor,
        lengths: torch.Tensor,
        attn_metadata: Any,
        spec_metadata: Any,
        draft_model: nn.Module,
    ) -> tuple[dict[str, Any], torch.Tensor]:
        """All rows of the step; drafting goes on at the last accepted row of each sequence."""
        contexts, ctx_tokens = attn_metadata.num_contexts, attn_metadata.num_ctx_tokens
        ends = attn_metadata.seq_lens_cuda.long().cumsum(0)
        begins = ends - attn_metadata.seq_lens_cuda.long()
        last = torch.where(torch.arange(ends.numel()) < contexts, ends - 1, begins + lengths - 1)
        ids = self._prepare_context_input_ids(input_ids, ctx_tokens, ends - 1, accepted, contexts)
        ids = torch.cat((ids, accepted[contexts:].flatten()))
        captured = spec_metadata.hidden_states[: ids.numel()]
        inputs = {
            "input_ids": ids,
            "position_ids": position_ids,
            "hidden_states": draft_model.apply_eagle3_fc(captured),
            "attn_metadata": attn_metadata,
            "spec_metadata": spec_metadata,
        }
        return inputs, last


def make_worker() -> type:
    """The worker class of this era."""

    def init_e1(self: Any, spec_config: Any, mapping: Any) -> None:
        SpecWorkerBase.__init__(self)
        self._configure(spec_config, mapping)

    def __init__(
        self: Any,
        spec_config: Any,
        mapping: Any = None,
        model_config: Any = None,
        use_separate_draft_kv_cache: bool = False,
    ) -> None:
        SpecWorkerBase.__init__(self, use_separate_draft_kv_cache)
        self._configure(spec_config, mapping)

    def forward(
        self: Any,
        input_ids: Any,
        position_ids: Any,
        hidden_states: Any,
        logits: Any,
        attn_metadata: Any,
        spec_metadata: Any,
        draft_model: Any,
        resource_manager: Any = None,
    ) -> dict[str, torch.Tensor]:
        return self._run(input_ids, position_ids, logits, attn_metadata, spec_metadata, draft_model)

    members = {
        "E1": {"__init__": init_e1, "forward": forward},
        "E2": {"__init__": __init__, "forward": forward},
        "E3": {"__init__": __init__, "_forward_impl": forward},
    }[trtllm_double.ERA]
    made = type("Eagle3OneModelWorker", (WorkerLoop,), members)
    for function in members.values():
        function.__name__ = next(n for n, f in members.items() if f is function)
    return made


def base_forward(self: Any, *args: Any, **kwargs: Any) -> Any:
    """E3: `SpecWorkerBase.forward`."""
    return self._forward_impl(*args, **kwargs)


def get_num_spec_layers(spec_config: Any) -> int:
    """Layers of the cache for the draft."""
    if trtllm_double.ERA == "E3":
        return spec_config._num_draft_hidden_layers or 1
    return spec_config.num_eagle_layers


def get_num_extra_kv_tokens(spec_config: Any) -> int:
    """Slots that the draft loop needs beyond the verified ones."""
    return 0 if spec_config is None else spec_config.max_draft_len - 1


def get_spec_metadata(
    spec_config: Any,
    model_config: Any,
    max_num_requests: int,
    max_num_tokens: int,
    spec_resource_manager: Any = None,
    is_draft_model: bool = False,
    **_: Any,
) -> Eagle3OneModelSpecMetadata:
    """`model_config` is the pretrained config."""
    return Eagle3OneModelSpecMetadata(
        max_num_requests=max_num_requests,
        max_draft_len=spec_config.max_draft_len,
        max_total_draft_tokens=spec_config.max_total_draft_tokens,
        spec_dec_mode=spec_config.spec_dec_mode,
        num_layers=model_config.num_hidden_layers,
        hidden_size=model_config.hidden_size,
        max_num_tokens=max_num_tokens,
        layers_to_capture=spec_config.eagle3_layers_to_capture,
        dtype=getattr(model_config, "double_dtype", torch.bfloat16),
    )
