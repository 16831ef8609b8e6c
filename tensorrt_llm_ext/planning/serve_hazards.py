# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""What is known to go wrong with a way of serving, each hazard with the place that reported it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from tensorrt_llm_ext.planning.hosts import HostVerdict
from tensorrt_llm_ext.planning.serve_options import HOST_MAX_NUM_TOKENS, ServeOptions, ServePair

# Public measurements of MLA drafts: no gain beyond this many requests at once.
_CROWDED: Final = 128
_FORCE_ACCEPT: Final = "TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS"


@dataclass(frozen=True, kw_only=True)
class Situation:
    """Everything that hazards look at."""

    pair: ServePair
    options: ServeOptions
    verdict: HostVerdict
    kv_dtype: str

    @property
    def max_seq_len(self) -> int:
        """The longest sequence that will be served."""
        return self.options.max_seq_len or self.pair.target.max_position_embeddings


def hazards(situation: Situation) -> tuple[str, ...]:
    """Returns one warning per hazard that the situation has, the most serious first."""
    return tuple(text for find in _FINDERS for text in find(situation))


def _host(s: Situation) -> Iterator[str]:
    verdict = s.verdict
    if not verdict.can_serve:
        rest = (
            "With this package's extension (--custom_module_dirs in the launch line) it does; the "
            f"extension was {verdict.extension}."
            if verdict.with_extension
            else "Not even this package's extension would: choose another version, target or draft."
        )
        yield f"The stock host {verdict.era} cannot serve this pair ({verdict.source}). {rest}"
    for reason in verdict.reasons:
        yield f"{verdict.era}, stock host: {reason}"
    for reason in verdict.extension_reasons:
        if reason not in verdict.reasons:
            yield f"{verdict.era}, with the extension: {reason}"
    for caution in verdict.cautions:
        yield f"{verdict.era}, take care: {caution}"


def impossibilities(situation: Situation) -> tuple[str, ...]:
    """Returns why the pair cannot be laid out over these GPUs at all; empty when it can."""
    return tuple(_division(situation))


def _division(s: Situation) -> Iterator[str]:
    tp, ep, gpus = s.options.attention_parallel_size, s.options.expert_parallel_size, s.options.gpus
    for owner, mla in (("target", s.pair.target.mla), ("draft", s.pair.draft.mla)):
        if mla.num_heads % tp:
            yield (
                f"The {owner}'s {mla.num_heads} attention heads cannot be split over {tp} GPUs. "
                "Use a number of GPUs that divides them, or attention-DP."
            )
    moe = s.pair.target.moe
    if moe is not None and moe.num_experts % ep:
        yield f"The target's {moe.num_experts} experts cannot be spread over {ep} GPUs."
    if moe is not None and moe.intermediate_size % (gpus // ep):
        yield (
            f"An expert's {moe.intermediate_size} columns cannot be split over {gpus // ep} GPUs. "
            "Spread the experts over more GPUs (expert parallelism)."
        )


def _chunked_prefill(s: Situation) -> Iterator[str]:
    if s.options.enable_chunked_prefill:
        if s.kv_dtype == "fp8":
            yield (
                "FP8 KV with chunked prefill and an MLA Eagle3 draft lost accuracy on 1.3.0rc16 "
                "(GPQA 76 % in place of 90 %, NVIDIA/TensorRT-LLM#14825; no cause given). Compare "
                "answers with and without the draft before serving, or switch one of the two off."
            )
        yield (
            "enable_chunked_prefill with Eagle3 has a history of failures, and for MLA it needs "
            "SM 100 or newer on some versions. Switch it off first when acceptance or accuracy is "
            "low."
        )
    elif s.options.num_tokens < s.max_seq_len:
        yield (
            f"Prompts longer than max_num_tokens {s.options.num_tokens} are refused without "
            f"chunked prefill, and max_seq_len is {s.max_seq_len}. Raise max_num_tokens (it costs "
            "memory) or enable chunked prefill."
        )


def _schedule(s: Situation) -> Iterator[str]:
    schedule, era = s.options.draft_len_schedule, s.options.era
    if schedule is None:
        if s.options.max_batch_size > _CROWDED:
            yield (
                f"max_batch_size {s.options.max_batch_size}: public measurements show no gain "
                f"from drafting beyond 32 to {_CROWDED} requests at once (0.94x at 128). Consider "
                "draft_len_schedule."
            )
        return
    if era == "1.2":
        yield "draft_len_schedule has no effect on one-model Eagle3 in 1.2.x: it is left out."
        return
    if era == "1.3" and 1 not in schedule:
        yield "Early 1.3.0rc need key 1 in draft_len_schedule, mapped to max_draft_len."
    if s.options.guided_decoding and (
        max(schedule) < s.options.max_batch_size or 0 in schedule.values()
    ):
        yield (
            "Guided decoding crashes where draft_len_schedule reaches 0, which it does above its "
            "largest size (NVIDIA/TensorRT-LLM#15022). Map a size of at least max_batch_size "
            f"{s.options.max_batch_size} to 1 or more, or serve without structured output."
        )


def _layout(s: Situation) -> Iterator[str]:
    if s.options.layout == "adp":
        if s.options.gpus == 1:
            yield "Attention-DP on one GPU changes nothing. Use the layout tp."
        yield (
            "Attention-DP: measure acceptance in this layout too. The draft's head is replicated "
            "on every GPU, its KV shares the target's manager, and enable_lm_head_tp_in_adp does "
            "not work with Eagle3. Other engines lost a third of the acceptance length here."
        )
    if s.options.disaggregated and s.options.era != "1.2":
        yield (
            "Disaggregated serving: with a separate draft KV cache the draft's prompt KV is not "
            "transferred, and acceptance length is 4 to 25 % lower (NVIDIA/TensorRT-LLM#17371)."
        )


def _kv(s: Situation) -> Iterator[str]:
    declared = s.pair.draft_quant.kv_cache_algo
    if s.kv_dtype == "fp8":
        yield (
            "FP8 KV: the host forces the draft's KV to the target's dtype, with scale 1 where the "
            "draft has none. Compare acceptance with BF16 KV once."
        )
        if s.options.era == "1.2":
            yield "FP8 KV with MLA is limited on Hopper in 1.2.x."
    elif declared is not None:
        yield f"The draft declares {declared} KV, which the host replaces by the target's."
    layers, length = s.pair.draft.num_layers, s.options.max_draft_len
    if layers > length and s.options.era in ("1.2", "1.3"):
        yield (
            f"The draft has {layers} layers, but {s.options.era} reserves KV for max_draft_len "
            f"({length}) of them. Raise max_draft_len to {layers}."
        )


def _length(s: Situation) -> Iterator[str]:
    rope, needed = s.pair.draft.mla.rope, s.max_seq_len
    if s.options.max_seq_len is not None:
        needed += s.options.max_draft_len
    if rope.max_position_embeddings < needed:
        yield (
            f"The draft's max_position_embeddings is {rope.max_position_embeddings}, and sequences "
            f"of {s.max_seq_len} tokens need {needed}. Hosts grow the table, but acceptance falls "
            "beyond what the draft was made for; set max_seq_len to what you serve."
        )
    scaled = s.pair.target.mla.rope.yarn
    if rope.yarn is None and scaled is not None:
        window = scaled.original_max_position_embeddings
        if s.max_seq_len > window:
            yield (
                f"The target's rope is scaled and the draft's is not: acceptance will collapse "
                f"beyond about {window} tokens, unless the draft was trained so."
            )
    elif rope.yarn is not None and s.max_seq_len > rope.yarn.original_max_position_embeddings:
        yield (
            "The draft's rope is scaled up from "
            f"{rope.yarn.original_max_position_embeddings} tokens, the usual training window of "
            f"public drafts: expect acceptance to decay towards {s.max_seq_len} tokens."
        )


def _environment(s: Situation) -> Iterator[str]:
    if _FORCE_ACCEPT in s.options.env:
        yield f"{_FORCE_ACCEPT} forces acceptance: speeds measured with it are not real."


def _memory(s: Situation) -> Iterator[str]:
    needed = s.options.max_batch_size * (1 + s.options.max_draft_len)
    if s.options.num_tokens < needed:
        yield (
            f"max_num_tokens {s.options.num_tokens} is less than max_batch_size x "
            f"(max_draft_len + 1) = {needed}: a full batch does not fit into one pass. Raise it to "
            f"{max(needed, HOST_MAX_NUM_TOKENS)}."
        )


_FINDERS: Final[tuple[Callable[[Situation], Iterator[str]], ...]] = (
    _division,
    _host,
    _chunked_prefill,
    _schedule,
    _memory,
    _layout,
    _kv,
    _length,
    _environment,
)
