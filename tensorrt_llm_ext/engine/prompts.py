# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""The forms in which a caller may hand over prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from tensorrt_llm_ext.configs.sampling import SamplingParams
from tensorrt_llm_ext.errors import RequestError

# A text, its token ids, or a mapping with `prompt` or `prompt_token_ids`.
PromptInputs: TypeAlias = "str | Sequence[int] | Mapping[str, Any]"


def is_single_prompt(inputs: Any) -> bool:
    """Whether `inputs` is one prompt, and not a list of prompts."""
    if isinstance(inputs, (str, Mapping)):
        return True
    if not isinstance(inputs, Sequence):
        raise RequestError(
            f"inputs is a {type(inputs).__name__}, expected a text, token ids, a mapping with "
            "'prompt' or 'prompt_token_ids', or a list of these"
        )
    return len(inputs) > 0 and not isinstance(inputs[0], (str, Mapping, Sequence))


def parse_prompt(inputs: PromptInputs) -> tuple[str | None, list[int] | None]:
    """Splits a prompt into its text and its token ids; one of the two is None unless both came.

    Raises:
        RequestError: If it is neither a text, nor token ids, nor a mapping of these.
    """
    if isinstance(inputs, str):
        return inputs, None
    if not isinstance(inputs, Mapping):
        return None, _checked_ids(inputs)
    unknown = set(inputs) - {"prompt", "prompt_token_ids"}
    if unknown or not inputs:
        raise RequestError(
            f"A prompt mapping has 'prompt' or 'prompt_token_ids', got {sorted(inputs)}"
        )
    prompt, token_ids = inputs.get("prompt"), inputs.get("prompt_token_ids")
    if prompt is not None and not isinstance(prompt, str):
        raise RequestError(f"'prompt' must be a text, got a {type(prompt).__name__}")
    if token_ids is None and prompt is None:
        raise RequestError("The prompt mapping has neither a text nor token ids.")
    return prompt, None if token_ids is None else _checked_ids(token_ids)


def _checked_ids(values: Any) -> list[int]:
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise RequestError(f"Token ids must be a list of integers, got {values!r}")
    try:
        # What has __index__ is an integer, numpy's included; floats and texts are not.
        return [value.__index__() for value in values]
    except AttributeError as error:
        raise RequestError(f"Token ids must be integers: {error}") from error


def one_per_prompt(
    params: SamplingParams | Sequence[SamplingParams] | None, num_prompts: int
) -> list[SamplingParams]:
    """Returns one `SamplingParams` per prompt; greedy ones for None."""
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * num_prompts
    if len(params) != num_prompts:
        raise RequestError(
            f"sampling_params has {len(params)} entries for {num_prompts} prompts; pass one for "
            "all, or one per prompt"
        )
    return list(params)
