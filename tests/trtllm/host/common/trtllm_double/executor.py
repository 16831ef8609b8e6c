# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""The executor: continuous batching, chunked prefill, overlap, attention-DP."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

import trtllm_double
from trtllm_double.args import TorchLlmArgs
from trtllm_double.attention import KVCacheManager, TrtllmAttentionMetadata
from trtllm_double.basics import KvCacheParams, Mapping
from trtllm_double.spec import get_num_extra_kv_tokens, get_num_spec_layers

DUMMY_ID = 0  # of what an idle rank runs; requests begin above
COUNTERS = ("verify_steps", "drafted", "accepted", "idle_passes")


@dataclass
class Request:
    """A prompt and what was made of it."""

    request_id: int
    tokens: list[int]
    max_tokens: int
    end_id: int
    num_prompt: int = 0
    num_computed: int = 0
    drafts: torch.Tensor | None = None
    is_done: bool = False
    num_steps: int = 0

    @property
    def output(self) -> list[int]:
        return self.tokens[self.num_prompt :]


@dataclass
class Batch:
    """One launched pass, whose results may not have been read yet."""

    contexts: list[tuple[Request, int]]
    gens: list[Request]
    result: dict[str, torch.Tensor] = field(default_factory=dict)
    unfinished: set[int] = field(default_factory=set)  # contexts that were no last chunk

    def row(self, request: Request) -> int | None:
        order = [r for r, _ in self.contexts] + self.gens
        return next((i for i, r in enumerate(order) if r is request), None)


class PyExecutor:
    """Runs requests to their end."""

    def __init__(self, args: TorchLlmArgs, mapping: Mapping) -> None:
        from trtllm_double import modules

        for name, value in (args.env_overrides or {}).items():
            os.environ[name] = str(value)
        self.args, self.mapping, self.spec = args, mapping, args.speculative_config
        loader = modules.namespace("_torch.pyexecutor.model_loader")["ModelLoader"](
            args, mapping, self.spec
        )
        with torch.no_grad():
            self.model, self.model_config = loader.load(str(args.model), None)
        self._check_caches(mapping)
        config = self.model_config.pretrained_config
        layers = config.num_hidden_layers + (get_num_spec_layers(self.spec) if self.spec else 0)
        size = args.kv_cache_config.tokens_per_block
        self.manager = KVCacheManager(
            num_layers=layers,
            head_dim=config.kv_lora_rank + config.qk_rope_head_dim,
            num_blocks=(args.kv_cache_config.max_tokens or 8192) // size,
            tokens_per_block=size,
            dtype=config.double_dtype,
        )
        self.k = self.spec.max_draft_len if self.spec else 0
        self.spec_metadata = None
        if self.spec:
            make = modules.namespace("_torch.speculative.utils")["get_spec_metadata"]
            self.spec_metadata = make(self.spec, config, args.max_batch_size, args.max_num_tokens)
        self.stats: dict[str, Any] = dict.fromkeys(COUNTERS, 0) | {"per_position": [0] * self.k}
        self.is_dp = mapping.enable_attention_dp and mapping.tp_size > 1

    def _check_caches(self, mapping: Mapping) -> None:
        """Newer versions make a second cache by these settings, and the worker looks by its own."""
        name = "_allow_separate_draft_kv_cache"
        if self.spec is None or mapping.enable_attention_dp or trtllm_double.ERA == "E1":
            return
        if getattr(self.spec, name) != getattr(self.model_config.spec_config, name):
            raise KeyError("the draft's layers have no slot in the cache that the worker reads")

    @torch.no_grad()
    def run(self, requests: list[Request]) -> None:
        """Serves requests until all are done, on every rank."""
        pending: Batch | None = None
        while True:
            live = [r for r in requests if not r.is_done]
            if not self._any(bool(live) or pending is not None):
                return
            launched = self._launch(live, pending) if self._any(bool(live)) else None
            if pending is not None:
                self._read(pending)
            pending = launched
            if self.args.disable_overlap_scheduler and pending is not None:
                self._read(pending)
                pending = None

    def _any(self, flag: bool) -> bool:
        if not self.is_dp:
            return flag
        return any(self._gathered(int(flag)))

    def _gathered(self, value: int) -> list[int]:
        parts = [torch.zeros(1, dtype=torch.long) for _ in range(self.mapping.world_size)]
        dist.all_gather(parts, torch.tensor([value]))
        return [int(part) for part in parts]

    def _schedule(self, live: list[Request], pending: Batch | None) -> Batch:
        budget = self.args.max_num_tokens
        started = [r for r in live if r.num_computed >= r.num_prompt]
        gens = [r for r in started if r.drafts is not None or self._is_pending(r, pending)]
        gens = gens[: self.args.max_batch_size]
        budget -= len(gens) * (self.k + 1)
        contexts = []
        for request in live:
            left = request.num_prompt - request.num_computed
            room = self.args.max_batch_size - len(gens) - len(contexts)
            if left <= 0 or room <= 0 or budget <= 0:
                continue
            count = min(left, budget) if self.args.enable_chunked_prefill else left
            if count > budget:
                continue
            contexts.append((request, count))
            budget -= count
        return Batch(contexts, gens)

    def _is_pending(self, request: Request, pending: Batch | None) -> bool:
        return pending is not None and pending.row(request) is not None

    def _launch(self, live: list[Request], pending: Batch | None) -> Batch:
        batch = self._schedule(live, pending)
        ids, positions, seq_lens, cached, names, back = [], [], [], [], [], []
        for request, count in batch.contexts:
            begin = request.num_computed
            ids.append(torch.tensor(request.tokens[begin : begin + count]))
            positions.append(torch.arange(begin, begin + count))
            self._place(request.request_id, begin, count, seq_lens, cached, names)
            back.append(torch.tensor(0))
            request.num_computed += count
            if request.num_computed < request.num_prompt:
                batch.unfinished.add(request.request_id)
        drafts = []
        for request in batch.gens:
            rows, begin, upper, late = self._generation_rows(request, pending)
            ids.append(rows)
            drafts.append(rows[1:])
            positions.append(begin + torch.arange(self.k + 1))
            self._place(request.request_id, upper, self.k + 1, seq_lens, cached, names)
            back.append(late)
        if not ids:  # an idle rank still takes part in collectives
            self.stats["idle_passes"] += 1
            ids.append(torch.zeros(self.k + 1, dtype=torch.long))
            drafts.append(torch.zeros(self.k, dtype=torch.long))
            positions.append(torch.arange(self.k + 1))
            self._place(DUMMY_ID, 0, self.k + 1, seq_lens, cached, names)
            back.append(torch.tensor(0))
        metadata = TrtllmAttentionMetadata(
            kv_cache_manager=self.manager,
            mapping=self.mapping,
            request_ids=names,
            kv_cache_params=KvCacheParams(num_cached_tokens_per_seq=cached),
            num_contexts=len(batch.contexts),
            is_spec_dec_tree=bool(getattr(self.spec, "use_dynamic_tree", False)),
        )
        metadata.seq_lens = torch.tensor(seq_lens, dtype=torch.int32)
        metadata.prepare()
        metadata.kv_lens_cuda -= torch.stack(back).int()
        batch.result = self._forward(torch.cat(ids), torch.cat(positions), metadata, drafts)
        return batch

    def _generation_rows(
        self, request: Request, pending: Batch | None
    ) -> tuple[torch.Tensor, torch.Tensor, int, torch.Tensor]:
        """Rows, first position, the host's bound of cached tokens, and how much too high it is."""
        row = None if pending is None else pending.row(request)
        if row is None:
            rows = torch.tensor([request.tokens[-1]])
            if self.k:
                rows = torch.cat((rows, request.drafts))
            begin = len(request.tokens) - 1
            return rows, torch.tensor(begin), begin, torch.tensor(0)
        result = pending.result
        was_context = row < len(pending.contexts)
        before = request.num_prompt if was_context else len(request.tokens) - 1
        most = 0 if was_context else self.k + 1
        lengths = result["new_tokens_lens"][row]
        late = torch.tensor(0) if was_context else most - lengths
        return result["next_new_tokens"][row], before + most - late, before + most, late

    def _place(
        self,
        request_id: int,
        begin: int,
        count: int,
        seq_lens: list[int],
        cached: list[int],
        names: list[int],
    ) -> None:
        extra = get_num_extra_kv_tokens(self.spec) + (self.k + 1)
        self.manager.reserve(request_id, begin + count + extra)
        seq_lens.append(count)
        cached.append(begin)
        names.append(request_id)

    def _forward(
        self,
        ids: torch.Tensor,
        positions: torch.Tensor,
        metadata: TrtllmAttentionMetadata,
        drafts: list[torch.Tensor],
    ) -> dict[str, torch.Tensor]:
        counts = self._gathered(ids.numel()) if self.is_dp else None
        metadata.all_rank_num_tokens = counts
        kwargs: dict[str, Any] = {}
        if self.spec_metadata is not None:
            spec = self.spec_metadata
            spec.request_ids = metadata.request_ids
            spec.num_generations = metadata.num_generations
            spec.draft_tokens = (
                torch.stack(drafts) if drafts else torch.zeros(0, self.k, dtype=torch.long)
            )
            spec.all_rank_num_tokens = counts
            spec.runtime_draft_len = self.k
            if self.is_dp:
                seqs = self._gathered(metadata.num_seqs)
                spec.all_rank_num_seqs = spec.subseq_all_rank_num_tokens = seqs
            spec.gather_ids = self._gather_ids(metadata)
            spec.prepare()
            kwargs["spec_metadata"] = spec
        out = self.model.forward(
            attn_metadata=metadata, input_ids=ids, position_ids=positions[None], **kwargs
        )
        if isinstance(out, dict):
            return out
        tokens = out.argmax(-1)
        last = torch.ones(tokens.numel(), dtype=torch.long)
        following = tokens[:, None]
        return {"new_tokens": following, "new_tokens_lens": last, "next_new_tokens": following}

    def _gather_ids(self, metadata: TrtllmAttentionMetadata) -> torch.Tensor:
        ends = metadata.seq_lens.long().cumsum(0)
        contexts = ends[: metadata.num_contexts] - 1
        return torch.cat((contexts, torch.arange(metadata.num_ctx_tokens, metadata.num_tokens)))

    def _read(self, batch: Batch) -> None:
        result = batch.result
        for row, request in enumerate([r for r, _ in batch.contexts] + batch.gens):
            if request.is_done:
                continue
            is_context = row < len(batch.contexts)
            if is_context and request.request_id in batch.unfinished:
                continue
            count = int(result["new_tokens_lens"][row])
            if self.k:
                request.drafts = result["next_draft_tokens"][row]
            else:
                request.drafts = torch.zeros(0, dtype=torch.long)
            if not is_context:
                self._count(count)
            request.num_steps += 1
            self._append(request, result["new_tokens"][row, :count].tolist())
            if request.is_done:
                self.manager.free_resources(request.request_id)

    def _count(self, count: int) -> None:
        if not self.k:
            return
        self.stats["verify_steps"] += 1
        self.stats["drafted"] += self.k
        self.stats["accepted"] += count - 1
        for place in range(count - 1):
            self.stats["per_position"][place] += 1

    def _append(self, request: Request, tokens: list[int]) -> None:
        for token in tokens:
            request.tokens.append(token)
            if token == request.end_id or len(request.output) >= request.max_tokens:
                request.is_done = True
                return


def split_requests(requests: list[Request], mapping: Mapping) -> Iterator[Request]:
    """The requests of this rank under attention-DP: unevenly, so that a rank runs idle."""
    for index, request in enumerate(requests):
        if (0 if index % 3 else 1) % mapping.tp_size == mapping.tp_rank:
            yield request
