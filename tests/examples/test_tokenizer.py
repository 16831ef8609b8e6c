# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""The tokenizer: reproducible, lossless, and read by transformers as it was trained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import problems
import pytest
import tokenizer as tiny_tokenizer
from accuracy import MAX_NEW_TOKENS
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers import AutoTokenizer

FOLDER = Path(tiny_tokenizer.__file__).parent


@pytest.fixture(scope="module")
def committed() -> Tokenizer:
    return Tokenizer.from_file(str(FOLDER / "tokenizer.json"))


@pytest.fixture(scope="module")
def hf_tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(str(FOLDER))


def test_build_gives_the_committed_files(committed: Tokenizer, tmp_path: Path) -> None:
    built = tiny_tokenizer.build(tiny_tokenizer.corpus())
    assert built.get_vocab() == committed.get_vocab()
    tiny_tokenizer.save(built, tmp_path)
    # Other versions of the library may lay tokenizer.json out in another way.
    merges = [json.loads((f / "tokenizer.json").read_text())["model"] for f in (tmp_path, FOLDER)]
    assert merges[0] == merges[1]
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        assert (tmp_path / name).read_text() == (FOLDER / name).read_text()


@given(text=st.text())
@example(text="Ana has 12 äpfel 🍎\r\n\t  and\x00")
@example(text="<|eos|> is a token, <|eos is not")
def test_any_text_comes_back(text: str, committed: Tokenizer, hf_tokenizer: Any) -> None:
    ids = committed.encode(text).ids
    assert committed.decode(ids, skip_special_tokens=False) == text
    assert hf_tokenizer.encode(text) == ids
    assert hf_tokenizer.decode(ids) == text


def test_vocabulary(committed: Tokenizer, hf_tokenizer: Any) -> None:
    assert committed.get_vocab_size() == len(hf_tokenizer) == 896
    ids = [hf_tokenizer.pad_token_id, hf_tokenizer.bos_token_id, hf_tokenizer.eos_token_id]
    assert ids == [0, 1, 2]
    special = {"<|pad|>", "<|bos|>", "<|eos|>"}
    assert {committed.id_to_token(i) for i in range(3)} == special


def test_digits_are_tokens_of_their_own(committed: Tokenizer) -> None:
    assert committed.encode("a1234 567").tokens == ["a", *"1234", "Ġ", *"567"]
    digits = set("0123456789")
    assert not [t for t in committed.get_vocab() if set(t) & digits and len(t) > 1 and t[0] != "<"]


def test_nothing_is_added(hf_tokenizer: Any) -> None:
    assert hf_tokenizer("").input_ids == []
    ids = hf_tokenizer("Question").input_ids
    assert not {0, 1, 2} & set(ids)


def test_prompt_and_answer_split_at_a_token(committed: Tokenizer) -> None:
    for problem in problems.generate("test", 8, 100):
        prompt = committed.encode(problems.format_prompt(problem)).ids
        answer = committed.encode(f" {problem.answer}").ids
        assert committed.encode(problems.format_text(problem)).ids == prompt + answer
        assert len(answer) < MAX_NEW_TOKENS


def test_chat_template(hf_tokenizer: Any) -> None:
    first, second = problems.generate("test", 9, 2)
    turns = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": first.question},
        {"role": "assistant", "content": first.answer},
        {"role": "user", "content": [{"type": "text", "text": second.question}]},
    ]
    shown = problems.format_text(first) + "\n\n" + problems.format_prompt(second)

    def render(turns: list[dict[str, Any]], *, prompt: bool) -> str:
        return hf_tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=prompt)

    assert render(turns, prompt=True) == shown
    assert render(turns, prompt=False) == shown.removesuffix("\nAnswer:")
    assert render(turns[:2], prompt=True) == problems.format_prompt(first)
    assert render(turns[:3], prompt=True) == problems.format_text(first)


@pytest.mark.parametrize(
    ("turn", "word"),
    [
        ({"role": "tool", "content": "x"}, "tool"),
        ({"role": "user", "content": [{"type": "image", "image": "x"}]}, "image"),
    ],
)
def test_chat_template_refuses(turn: dict[str, Any], word: str, hf_tokenizer: Any) -> None:
    with pytest.raises(Exception, match=word):
        hf_tokenizer.apply_chat_template([turn], tokenize=False)
