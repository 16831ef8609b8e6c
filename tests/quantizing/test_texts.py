# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from pathlib import Path

import pytest

from tensorrt_llm_ext.checkpoints.normalize import (
    draft_config,
    open_draft,
    open_target,
    target_config,
)
from tensorrt_llm_ext.errors import ConfigError, RequestError
from tensorrt_llm_ext.quantizing.texts import borrowed_ends, encode_prompts, split_texts
from tests.support.quantizing import quantizable_json, texts
from tests.support.tiny_checkpoints import write_draft


def test_every_fourth_text_is_kept_apart() -> None:
    states = texts(tuple(8 + i for i in range(17)))
    split = split_texts(states)
    assert split.is_split
    assert split.held_out_indices == (3, 7, 11, 15)
    lengths = [s.length for s in (*split.train.sequences, *split.held_out.sequences)]
    assert sorted(lengths) == [s.length for s in states.sequences]


def test_few_texts_are_used_twice() -> None:
    states = texts(tuple(8 + i for i in range(15)))
    split = split_texts(states)
    assert not split.is_split
    assert split.train is split.held_out is states
    assert split.held_out_indices == tuple(range(15))


def test_prompts_of_ids_need_no_tokenizer() -> None:
    assert encode_prompts(None, [[1, 2], (3,)], None) == [[1, 2], [3]]
    with pytest.raises(RequestError, match="no tokenizer"):
        encode_prompts(None, ["text"], None)
    with pytest.raises(RequestError, match="no prompt"):
        encode_prompts(None, [], None)


def test_chat_template_wraps_prompts(tmp_path: Path) -> None:
    class Words:
        def apply_chat_template(
            self, messages: list, *, chat_template: str, **options: object
        ) -> str:
            assert options == {"tokenize": False, "add_generation_prompt": True}
            return chat_template.replace("X", messages[0]["content"])

    class Letters:
        hf_tokenizer = Words()

        def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
            return [0] * add_special_tokens + [ord(letter) for letter in text]

    template = tmp_path / "t.jinja"
    template.write_text("<X>", encoding="utf-8")
    assert encode_prompts(Letters(), ["a"], template) == [[60, 97, 62]]
    assert encode_prompts(Letters(), ["a"], None) == [[0, 97]]
    with pytest.raises(ConfigError, match="cannot be read"):
        encode_prompts(Letters(), ["a"], tmp_path / "none")


def test_only_what_is_missing_is_borrowed(pair: tuple[Path, Path], tmp_path: Path) -> None:
    target = open_target(pair[0])
    config = target_config(target)
    ends = borrowed_ends(draft_config(open_draft(pair[1]), config), target, config)
    assert ends.embed_tokens is not None
    assert ends.embed_tokens.shape == (64, 32)
    assert ends.lm_head is None
    write_draft(tmp_path / "headless", quantizable_json(), head=False)
    drafted = draft_config(open_draft(tmp_path / "headless"), config)
    assert borrowed_ends(drafted, target, config).lm_head is not None
