# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Acceptance on the embedded engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tensorrt_llm_ext.benchmarking.acceptance.dataset import Question
from tensorrt_llm_ext.benchmarking.acceptance.measurement import Answer, Measurement
from tensorrt_llm_ext.configs.sampling import SamplingParams
from tensorrt_llm_ext.engine.llm import LLM
from tensorrt_llm_ext.errors import ConfigError
from tensorrt_llm_ext.speculative.stats import AcceptanceStats


def measure_embedded(
    llm: LLM,
    questions: Sequence[Question],
    sampling: SamplingParams,
    progress: Callable[[int], None] = lambda _: None,
) -> Measurement:
    """Answers all questions.

    Args:
        llm: With a draft.
        questions: Texts, or conversations for the tokenizer's template.
        sampling: Of all answers.
        progress: Told how many are done.

    Raises:
        ConfigError: If there is no tokenizer.
    """
    tokenizer = llm.tokenizer
    if tokenizer is None:
        raise ConfigError("Acceptance is measured on texts, and the model has no tokenizer.")
    prompts: list[str | list[int]] = []
    for question in questions:
        if question.messages:
            text = tokenizer.apply_chat_template(list(question.messages))
            prompts.append(tokenizer.encode(text, add_special_tokens=False))
        else:
            prompts.append(question.text or "")
    handles = [llm.generate_async(prompt, sampling) for prompt in prompts]
    answers, total = [], AcceptanceStats()
    for question, handle in zip(questions, handles, strict=True):
        output = handle.result()
        total.merge(output.acceptance)
        answers.append(
            Answer(
                category=question.category,
                num_prompt_tokens=len(output.prompt_token_ids),
                num_tokens=len(output.outputs[0].token_ids),
                text=output.outputs[0].text,
                stats=output.acceptance,
            )
        )
        progress(1)
    return Measurement(
        source="embedded engine",
        stats=total,
        answers=tuple(answers),
        has_template=all(q.messages for q in questions),
    )


__all__ = ["measure_embedded"]
