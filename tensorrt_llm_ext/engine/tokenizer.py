# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""The only contact with tokenizers: loading one, text to ids, ids to text, chat templates.

`transformers` takes seconds to import, so it is imported when a tokenizer is loaded, not before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tensorrt_llm_ext.errors import CheckpointError, ConfigError, RequestError

# Any of these makes a folder one that a tokenizer can be loaded from.
_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "tiktoken.model",
    "vocab.json",
)
_SKIP_HINT = (
    "Pass tokenizer=FOLDER, or skip_tokenizer_init=True to work with token ids and without text."
)


class Tokenizer:
    """A `transformers` tokenizer, reduced to what the engine needs."""

    def __init__(self, hf_tokenizer: Any) -> None:
        """Wraps a tokenizer.

        Args:
            hf_tokenizer: A `PreTrainedTokenizerBase`, or an object with its `encode`, `decode` and
                `__len__`.

        Raises:
            ConfigError: If the object has no `encode` or no `decode`.
        """
        for name in ("encode", "decode", "__len__"):
            if not hasattr(hf_tokenizer, name):
                raise ConfigError(
                    f"tokenizer is a {type(hf_tokenizer).__name__} without {name}(), expected a "
                    f"folder or a transformers tokenizer. {_SKIP_HINT}"
                )
        self.hf_tokenizer = hf_tokenizer

    @property
    def num_tokens(self) -> int:
        """Number of ids that the tokenizer may produce: its vocabulary and its added tokens."""
        return len(self.hf_tokenizer)

    @property
    def eos_token_id(self) -> int | None:
        """The tokenizer's own end-of-sequence id, None when it has none."""
        return getattr(self.hf_tokenizer, "eos_token_id", None)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Returns the ids of `text`, with the tokenizer's BOS or the like unless told otherwise."""
        return list(self.hf_tokenizer.encode(text, add_special_tokens=add_special_tokens))

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Returns the text of `token_ids`, byte for byte: no clean-up of spaces."""
        text: str = self.hf_tokenizer.decode(
            list(token_ids),
            skip_special_tokens=skip_special_tokens,
            clean_up_tokenization_spaces=False,
        )
        return text

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        **template_arguments: Any,
    ) -> str:
        """Returns the prompt text of a conversation.

        Args:
            messages: `{"role": …, "content": …}`, oldest first.
            add_generation_prompt: Whether to open the assistant's answer.
            **template_arguments: Handed to the template, for instance `tools`.

        Raises:
            RequestError: If the tokenizer has no template, or the template refuses the messages.
        """
        from jinja2 import TemplateError

        if not getattr(self.hf_tokenizer, "chat_template", None):
            raise RequestError(
                "The tokenizer has no chat template, so a conversation has no prompt. Pass a "
                "prompt as text, or add chat_template.jinja to the tokenizer's folder."
            )
        try:
            text: str = self.hf_tokenizer.apply_chat_template(
                list(messages),
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
                **template_arguments,
            )
        except TemplateError as error:
            raise RequestError(f"The chat template refuses these messages: {error}") from error
        return text


def load_tokenizer(
    folder: str | Path, *, trust_remote_code: bool = False, use_fast: bool = True
) -> Tokenizer:
    """Loads the tokenizer of a checkpoint folder; never from the network.

    Args:
        folder: A folder with `tokenizer.json` or the like.
        trust_remote_code: Whether Python files of that folder may run. Off by default: Kimi-K2
            checkpoints ask for it, DeepSeek-V3 ones do not.
        use_fast: Whether to prefer the Rust implementation.

    Raises:
        CheckpointError: If the folder has no tokenizer, or `transformers` cannot load it.
    """
    path = Path(folder)
    if not path.is_dir():
        raise CheckpointError(
            f"The tokenizer folder {str(folder)!r} does not exist. Names of a model hub are not "
            f"resolved: download the folder first. {_SKIP_HINT}"
        )
    if not any((path / name).is_file() for name in _TOKENIZER_FILES):
        raise CheckpointError(
            f"There is no tokenizer in {path}: none of {', '.join(_TOKENIZER_FILES)}. {_SKIP_HINT}"
        )
    from transformers import AutoTokenizer

    try:
        hf_tokenizer = AutoTokenizer.from_pretrained(
            str(path),
            trust_remote_code=trust_remote_code,
            use_fast=use_fast,
            local_files_only=True,
        )
    except Exception as error:
        # Not narrower: the Rust parser raises plain Exception.
        raise CheckpointError(_loading_message(path, error, trust_remote_code)) from error
    return Tokenizer(hf_tokenizer)


def _loading_message(path: Path, error: Exception, trust_remote_code: bool) -> str:
    reason = " ".join(str(error).split())
    if "trust_remote_code" in reason and not trust_remote_code:
        return (
            f"The tokenizer in {path} needs Python code from that folder. Read that code, then "
            "pass trust_remote_code=True if you trust it, or skip_tokenizer_init=True to work "
            "with token ids."
        )
    return f"transformers cannot load the tokenizer in {path}: {reason[:300]}. {_SKIP_HINT}"


def check_vocabulary(tokenizer: Tokenizer, vocab_size: int) -> None:
    """Refuses a tokenizer that could produce ids which the model does not embed.

    Raises:
        CheckpointError: If the tokenizer knows more ids than `vocab_size`. Fewer are fine: models
            pad their vocabulary.
    """
    if tokenizer.num_tokens > vocab_size:
        raise CheckpointError(
            f"Vocabulary mismatch: the tokenizer has {tokenizer.num_tokens} tokens, the model "
            f"embeds {vocab_size}. Tokenizer and weights are of different models: pass the "
            "matching folder as tokenizer=."
        )


def resolve_eos_token_ids(
    model_ids: Sequence[int], tokenizer: Tokenizer | None, vocab_size: int
) -> tuple[int, ...]:
    """Returns the ids that end a text.

    Args:
        model_ids: What `generation_config.json` and `config.json` name.
        tokenizer: Asked only when the model's files name none.
        vocab_size: Ids must be below it.

    Raises:
        CheckpointError: If an id is not one of the vocabulary.
    """
    ids = tuple(model_ids)
    if not ids and tokenizer is not None and tokenizer.eos_token_id is not None:
        ids = (tokenizer.eos_token_id,)
    for token_id in ids:
        if not 0 <= token_id < vocab_size:
            raise CheckpointError(
                f"eos_token_id {token_id} is outside of the model's vocabulary of {vocab_size} "
                "tokens, so no text could end. Correct generation_config.json or config.json."
            )
    return ids
