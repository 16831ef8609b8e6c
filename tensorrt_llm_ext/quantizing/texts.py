# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""The texts that a draft is calibrated and judged on, and what it borrows from its target."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import torch

from tensorrt_llm_ext.checkpoints.names import target_tensor_map
from tensorrt_llm_ext.checkpoints.normalize import TargetCheckpoint
from tensorrt_llm_ext.checkpoints.source import SafetensorsSource
from tensorrt_llm_ext.configs.draft import DraftConfig
from tensorrt_llm_ext.configs.target import TargetConfig
from tensorrt_llm_ext.engine.loading import LoadedModels
from tensorrt_llm_ext.engine.teacher_capture import states_from_prompts
from tensorrt_llm_ext.engine.teacher_states import TeacherStates
from tensorrt_llm_ext.engine.tokenizer import Tokenizer
from tensorrt_llm_ext.errors import ConfigError, RequestError
from tensorrt_llm_ext.models.deepseek import DeepseekV3
from tensorrt_llm_ext.quantizing.dense import BorrowedEnds

MIN_TEXTS: Final = 4
_HELD_OUT: Final = 4  # every fourth text


@dataclass(frozen=True, kw_only=True)
class SplitTexts:
    """Texts to calibrate and train on, and others to judge by.

    Attributes:
        train: The former.
        held_out: The latter; the same ones when there are too few to split.
        held_out_indices: Which of the texts those are.
        is_split: Whether the two have nothing in common.
    """

    train: TeacherStates = field(repr=False)
    held_out: TeacherStates = field(repr=False)
    held_out_indices: tuple[int, ...]
    is_split: bool


def split_texts(states: TeacherStates) -> SplitTexts:
    """Keeps every fourth text for judging, if at least four of each kind remain."""
    total = len(states.sequences)
    held = tuple(range(_HELD_OUT - 1, total, _HELD_OUT))
    if len(held) < MIN_TEXTS:
        everything = tuple(range(total))
        return SplitTexts(
            train=states, held_out=states, held_out_indices=everything, is_split=False
        )
    chosen = set(held)
    rest = tuple(i for i in range(total) if i not in chosen)
    return SplitTexts(
        train=_subset(states, rest),
        held_out=_subset(states, held),
        held_out_indices=held,
        is_split=True,
    )


def _subset(states: TeacherStates, indices: Sequence[int]) -> TeacherStates:
    return TeacherStates(
        sequences=tuple(states.sequences[i] for i in indices),
        source=states.source,
        labels=states.labels,
    )


def encode_prompts(
    tokenizer: Tokenizer | None,
    prompts: Sequence[str | Sequence[int]],
    chat_template: Path | None,
) -> list[list[int]]:
    """Returns the token ids of prompts.

    Args:
        tokenizer: The target's; None when all prompts are ids.
        prompts: Texts, or token ids.
        chat_template: A Jinja template that makes each text the user's turn of a conversation.

    Raises:
        RequestError: If there is no prompt, or a text has no tokenizer or no valid template.
        ConfigError: If the template cannot be read.
    """
    if not prompts:
        raise RequestError("There is no prompt to calibrate on. Give several.")
    template = None
    if chat_template is not None:
        try:
            template = chat_template.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"The chat template {chat_template} cannot be read: {error}"
            ) from None
    ids = []
    for prompt in prompts:
        if not isinstance(prompt, str):
            ids.append([int(token) for token in prompt])
        elif tokenizer is None:
            raise RequestError("Prompts are texts, but there is no tokenizer. Give token ids.")
        elif template is None:
            ids.append(tokenizer.encode(prompt))
        else:
            ids.append(_in_chat(tokenizer, prompt, template))
    return ids


def _in_chat(tokenizer: Tokenizer, prompt: str, template: str) -> list[int]:
    from jinja2 import TemplateError

    try:
        text: str = tokenizer.hf_tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}],
            chat_template=template,  # rendered in a sandbox
            tokenize=False,
            add_generation_prompt=True,
        )
    except TemplateError as error:
        raise RequestError(f"The chat template refuses a prompt: {error}") from None
    return tokenizer.encode(text, add_special_tokens=False)


def capture(
    models: LoadedModels,
    ids: Sequence[Sequence[int]],
    config: DraftConfig,
    *,
    max_tokens: int,
    steps: int,
    progress: Callable[[int, int], None] | None = None,
) -> TeacherStates:
    """Lets the target write, and captures what the draft needs.

    Args:
        models: The loaded target.
        ids: Prompts.
        config: The draft.
        max_tokens: Most tokens per answer.
        steps: Drafts per chain.
        progress: Called with what is done and what there is.

    Raises:
        ConfigError: If the target is of another kind.
        RequestError: If a prompt is empty or too long.
    """
    target = models.target
    if not isinstance(target, DeepseekV3):
        raise ConfigError(f"States cannot be captured from a {type(target).__name__}.")
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress(done, 2 * len(ids))

    return states_from_prompts(
        target,
        ids,
        boundaries=config.boundaries,
        max_tokens=max_tokens,
        max_draft_len=steps,
        eos_token_ids=models.eos_token_ids,
        progress=advance,
    )


def borrowed_ends(
    config: DraftConfig, checkpoint: TargetCheckpoint, target: TargetConfig
) -> BorrowedEnds:
    """Reads what a draft takes from its target; nothing when it has both ends of its own.

    Raises:
        CheckpointError: If the target's files lack what is needed.
    """
    if config.has_own_embedding and config.has_own_lm_head:
        return BorrowedEnds()
    files = checkpoint.files
    source = SafetensorsSource(files, target_tensor_map(files.entries, target), label="target")

    def read(name: str, is_own: bool) -> torch.Tensor | None:
        return None if is_own else source.peek(name)

    head = "lm_head.weight"
    if target.tie_word_embeddings:
        head = "model.embed_tokens.weight"
    return BorrowedEnds(
        embed_tokens=read("model.embed_tokens.weight", config.has_own_embedding),
        lm_head=read(head, config.has_own_lm_head),
    )
