# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Teacher states from prompts: the embedded engine writes, one forward pass per text captures."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from tensorrt_llm_ext.configs.sampling import SamplingParams
from tensorrt_llm_ext.engine.core import EngineCore
from tensorrt_llm_ext.engine.kv_cache import allocate_pool
from tensorrt_llm_ext.engine.settings import EngineConfig
from tensorrt_llm_ext.engine.teacher_states import TeacherSequence, TeacherStates
from tensorrt_llm_ext.models.deepseek import DeepseekV3
from tensorrt_llm_ext.models.interfaces import ForwardContext, TargetTokenId
from tensorrt_llm_ext.ops.attention.metadata import MLAMetadata, PrefillMetadata

_BLOCK_SIZE = 32
_BATCH_SIZE = 8

# Called with the number of texts that are done.
Progress = Callable[[int], None]


def states_from_prompts(
    target: DeepseekV3,
    prompts: Sequence[Sequence[int]],
    *,
    boundaries: Sequence[int],
    max_tokens: int,
    max_draft_len: int,
    eos_token_ids: tuple[int, ...] = (),
    progress: Progress | None = None,
) -> TeacherStates:
    """Lets the target continue prompts greedily and captures its states over the whole texts.

    Each text goes on for `max_draft_len` tokens behind its end, because an engine judges drafts
    there as well.

    Args:
        target: The loaded target.
        prompts: Token ids of each prompt.
        boundaries: Residual-stream boundaries to keep.
        max_tokens: Most generated tokens per text.
        max_draft_len: Longest chain that is to be judged.
        eos_token_ids: The target's end tokens.
        progress: Called with the number of texts done, twice per text.

    Raises:
        RequestError: If a prompt is empty or too long.
    """
    table = target.config.max_position_embeddings
    room = table - max_draft_len  # for what lies behind the end
    texts = _continue(target, prompts, max_tokens, room, eos_token_ids, progress)
    behind = _continue(target, texts, max_draft_len, table, (), None)
    sequences = []
    for prompt, text, longer in zip(prompts, texts, behind, strict=True):
        sequences.append(_capture(target, longer, len(prompt), len(text), tuple(boundaries)))
        if progress is not None:
            progress(1)
    return TeacherStates(
        sequences=tuple(sequences),
        source=f"{len(prompts)} prompt(s), continued greedily by the target",
        labels="the target's own greedy text",
    )


def _continue(
    target: DeepseekV3,
    prompts: Sequence[Sequence[int]],
    max_tokens: int,
    max_seq_len: int,
    eos_token_ids: tuple[int, ...],
    progress: Progress | None,
) -> list[list[int]]:
    """Returns each prompt with its greedy continuation."""
    longest = max(map(len, prompts)) + max_tokens + 1
    config = EngineConfig(
        max_batch_size=_BATCH_SIZE,
        max_seq_len=min(longest, max_seq_len),
        enable_block_reuse=False,
    )
    core = EngineCore(target, None, config)
    sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=not eos_token_ids)
    texts: dict[int, list[int]] = {}
    for prompt in prompts:
        request = core.add_request(list(prompt), sampling, eos_token_ids=eos_token_ids)
        texts[request] = list(prompt)
    while core.has_unfinished():
        for update in core.step():
            texts[update.request_id].extend(update.new_token_ids)
            if progress is not None and update.finish_reason is not None:
                progress(1)
    return list(texts.values())


@torch.inference_mode()
def _capture(
    target: DeepseekV3,
    token_ids: list[int],
    num_prompt: int,
    num_text: int,
    boundaries: tuple[int, ...],
) -> TeacherSequence:
    """Runs the target once over a text; tokens from `num_text` on lie behind its end."""
    hidden, captured = forward_text(target, token_ids, boundaries)
    ids = torch.tensor(token_ids)
    labels = torch.empty_like(ids)
    # The engine's own choice, so that a near-tie cannot make a label contradict the text.
    labels[:-1] = ids[1:]
    labels[-1] = target.compute_logits(hidden[-1:]).argmax()
    counted = torch.zeros(len(token_ids), dtype=torch.bool)
    # The engine's steps start at committed tokens from the first generated one to the last but one.
    counted[num_prompt - 1 : num_text - 2] = True
    chunks = captured.chunk(len(boundaries), dim=-1)
    return TeacherSequence(
        input_ids=ids,
        states={b: chunk.cpu().clone() for b, chunk in zip(boundaries, chunks, strict=True)},
        labels=labels,
        counted=counted,
    )


def forward_text(
    target: DeepseekV3, token_ids: Sequence[int], boundaries: tuple[int, ...]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Runs the target over a whole text at once, in a cache of its own.

    Returns:
        The stream after the last layer, [length, hidden_size], and the captured states,
        [length, boundaries * hidden_size].
    """
    config, length = target.config, len(token_ids)
    weight = next(target.parameters())
    num_blocks = -(-length // _BLOCK_SIZE)
    caches = allocate_pool(
        config.num_layers,
        num_blocks + 1,
        _BLOCK_SIZE,
        config.mla.latent_size,
        dtype=weight.dtype,
        device=weight.device,
    )
    positions = torch.arange(length, device=weight.device)
    table = torch.arange(1, num_blocks + 1, device=weight.device)
    chunk = PrefillMetadata(block_table=table, start=0, num_tokens=length, block_size=_BLOCK_SIZE)
    metadata = MLAMetadata(slot_mapping=positions + _BLOCK_SIZE, prefill=(chunk,))
    ids = torch.tensor(token_ids, device=weight.device)
    hidden, captured = target.forward(
        TargetTokenId(ids), positions, ForwardContext(caches, metadata), boundaries
    )
    if captured is None:
        captured = hidden.new_empty((length, 0))
    return hidden, captured
