# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tensorrt_llm_ext.engine.tokenizer import (
    Tokenizer,
    check_vocabulary,
    load_tokenizer,
    resolve_eos_token_ids,
)
from tensorrt_llm_ext.errors import CheckpointError, ConfigError, RequestError
from tests.support.tiny_tokenizers import EOS, TEXTS, VOCAB_SIZE, byte_level_tokenizer

TEMPLATE = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    byte_level_tokenizer().hf_tokenizer.save_pretrained(tmp_path)
    return tmp_path


def test_a_saved_tokenizer_loads_and_round_trips(folder: Path) -> None:
    tokenizer = load_tokenizer(folder)
    for text in [*TEXTS, "  two  spaces , and a comma .", "\n\ttabs", ""]:
        assert tokenizer.decode(tokenizer.encode(text)) == text
        assert tokenizer.encode(text) == byte_level_tokenizer().encode(text)
    assert tokenizer.num_tokens == VOCAB_SIZE
    assert tokenizer.eos_token_id == tokenizer.encode(EOS)[0]
    assert tokenizer.decode(tokenizer.encode(f"a{EOS}b")) == "ab"
    assert tokenizer.decode(tokenizer.encode(f"a{EOS}b"), skip_special_tokens=False) == f"a{EOS}b"


def test_folders_without_a_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no tokenizer in.*skip_tokenizer_init"):
        load_tokenizer(tmp_path)
    with pytest.raises(CheckpointError, match=r"does not exist.*download"):
        load_tokenizer("moonshotai/Kimi-K2.5")


def test_a_broken_file_is_named_with_its_reason(folder: Path) -> None:
    (folder / "tokenizer.json").write_text('{"version": 1}', encoding="utf-8")
    with pytest.raises(CheckpointError, match="cannot load the tokenizer"):
        load_tokenizer(folder)


def test_code_of_a_checkpoint_runs_only_when_trusted(folder: Path) -> None:
    marker = folder / "was_run"
    (folder / "custom.py").write_text(
        "from pathlib import Path\n"
        "from transformers import PreTrainedTokenizerFast\n"
        f"Path({str(marker)!r}).touch()\n"
        "class CustomTokenizer(PreTrainedTokenizerFast):\n"
        "    pass\n",
        encoding="utf-8",
    )
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["tokenizer_class"] = "CustomTokenizer"
    config["auto_map"] = {"AutoTokenizer": [None, "custom.CustomTokenizer"]}
    path.write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(CheckpointError, match="trust_remote_code=True"):
        load_tokenizer(folder)
    assert not marker.exists()
    assert load_tokenizer(folder, trust_remote_code=True).encode("a")
    assert marker.exists()


def test_chat_template(folder: Path) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    with pytest.raises(RequestError, match="no chat template"):
        load_tokenizer(folder).apply_chat_template(messages)
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    tokenizer = load_tokenizer(folder)
    assert tokenizer.apply_chat_template(messages) == "<system>Be brief.<user>Hi<assistant>"
    closed = tokenizer.apply_chat_template(messages, add_generation_prompt=False)
    assert closed == "<system>Be brief.<user>Hi"


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",  # leaves the sandbox
    ],
)
def test_a_template_that_refuses_or_misbehaves(folder: Path, template: str) -> None:
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    with pytest.raises(RequestError, match="chat template refuses"):
        load_tokenizer(folder).apply_chat_template([{"role": "user", "content": "Hi"}])


def test_objects_that_are_no_tokenizer() -> None:
    with pytest.raises(ConfigError, match="without encode"):
        Tokenizer(object())


def test_vocabularies() -> None:
    check_vocabulary(byte_level_tokenizer(), VOCAB_SIZE)
    check_vocabulary(byte_level_tokenizer(), VOCAB_SIZE + 100)  # padded models are common
    with pytest.raises(CheckpointError, match=f"{VOCAB_SIZE} tokens, the model embeds 64"):
        check_vocabulary(byte_level_tokenizer(), 64)


def test_end_tokens_come_from_the_model_and_else_from_the_tokenizer() -> None:
    tokenizer = byte_level_tokenizer()
    assert resolve_eos_token_ids((5, 7), tokenizer, 100) == (5, 7)
    assert resolve_eos_token_ids((), tokenizer, VOCAB_SIZE) == (tokenizer.eos_token_id,)
    assert resolve_eos_token_ids((), None, VOCAB_SIZE) == ()
    with pytest.raises(CheckpointError, match="eos_token_id 100 is outside"):
        resolve_eos_token_ids((5, 100), tokenizer, 100)
