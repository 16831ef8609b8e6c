# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from tensorrt_llm_ext.checkpoints import draft_vocabulary
from tensorrt_llm_ext.checkpoints.draft_vocabulary import (
    DraftVocabulary,
    choose_vocabulary,
    read_draft_vocabulary,
)
from tensorrt_llm_ext.errors import CheckpointError, ConfigError

COUNTS = {2: 5, 7: 5, 1: 9, 4: 1}


def wish(size: int, counts: dict[int, int] | None = None, **more: object) -> DraftVocabulary:
    table = np.zeros(10, dtype=np.int64)
    for token, count in (counts or COUNTS).items():
        table[token] = count
    return DraftVocabulary(size=size, counts=table, **more)  # type: ignore[arg-type]


def test_most_frequent_first_and_ties_to_the_lower_id() -> None:
    assert choose_vocabulary(wish(1)).target_ids.tolist() == [1]
    assert choose_vocabulary(wish(2)).target_ids.tolist() == [1, 2]
    assert choose_vocabulary(wish(3)).target_ids.tolist() == [1, 2, 7]
    choice = choose_vocabulary(wish(6))  # two that were never seen: the lowest
    assert choice.target_ids.tolist() == [0, 1, 2, 3, 4, 7]
    assert choice.num_unseen == 2
    assert choice.coverage == 1.0
    assert choose_vocabulary(wish(2)).coverage == pytest.approx(14 / 20)


def test_tokens_to_keep_are_kept() -> None:
    choice = choose_vocabulary(wish(3, keep=(9, 4)))
    assert choice.target_ids.tolist() == [1, 4, 9]
    assert choice.d2t.tolist() == [1, 3, 7]
    assert choice.rows.tolist() == [1, 4, 9]
    with pytest.raises(ConfigError, match="2 tokens are to be kept, more than"):
        choose_vocabulary(wish(1, keep=(9, 4)))


def test_pruning_again_composes_the_maps() -> None:
    first = choose_vocabulary(wish(4))
    assert first.target_ids.tolist() == [1, 2, 4, 7]
    second = choose_vocabulary(wish(2, {7: 9, 4: 8, 3: 99}), first.target_ids)
    assert second.target_ids.tolist() == [4, 7]
    assert second.rows.tolist() == [2, 3]  # rows of the present head
    assert second.d2t.tolist() == [4, 6]
    assert second.coverage == second.coverage_before == pytest.approx(17 / 116)
    with pytest.raises(ConfigError, match=r"\[3\] are to be kept, but the draft was pruned"):
        choose_vocabulary(wish(2, keep=(3,)), first.target_ids)
    soft = choose_vocabulary(wish(2, keep_if_present=(3, 4)), first.target_ids)
    assert soft.target_ids.tolist() == [1, 4]
    with pytest.raises(ConfigError, match=r"of 5 tokens.*has 4 rows"):
        choose_vocabulary(wish(5), first.target_ids)


@given(
    counts=st.lists(st.integers(0, 5), min_size=1, max_size=30).filter(any),
    data=st.data(),
)
def test_choice_is_the_sorted_head_of_the_frequency_order(
    counts: list[int], data: st.DataObject
) -> None:
    size = data.draw(st.integers(1, len(counts)))
    table = DraftVocabulary(size=size, counts=np.asarray(counts, dtype=np.int64))
    choice = choose_vocabulary(table)
    order = sorted(range(len(counts)), key=lambda token: (-counts[token], token))
    assert choice.target_ids.tolist() == sorted(order[:size])
    assert (np.arange(size) + choice.d2t).tolist() == choice.target_ids.tolist()
    assert choice.coverage == pytest.approx(sum(counts[t] for t in order[:size]) / sum(counts))


CORPUS = [[1, 2, 2], [7], [2, 1, 9]]
EXPECTED = Counter(token for row in CORPUS for token in row)


def written(tmp_path: Path) -> dict[str, Path]:
    table = np.asarray([EXPECTED[token] for token in range(10)])
    texts = {
        "counts.json": json.dumps({str(token): count for token, count in EXPECTED.items()}),
        "lists.json": json.dumps(CORPUS),
        "flat.json": json.dumps([token for row in CORPUS for token in row]),
        "rows.jsonl": "\n".join(map(json.dumps, CORPUS)) + "\n\n",
        "named.jsonl": "\n".join(json.dumps({"text": "x", "input_ids": row}) for row in CORPUS),
        "ids.txt": "1 2 2\n7\n2,1 9\n",
    }
    paths = {name: tmp_path / name for name in texts}
    for name, text in texts.items():
        paths[name].write_text(text)
    paths["counts.npy"] = tmp_path / "counts.npy"
    np.save(paths["counts.npy"], table)
    paths["one.safetensors"] = tmp_path / "one.safetensors"
    save_file({"whatever": table.astype(np.int32)}, paths["one.safetensors"])
    paths["two.safetensors"] = tmp_path / "two.safetensors"
    save_file({"counts": table, "other": table * 2}, paths["two.safetensors"])
    return paths


def test_every_format_gives_the_same_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draft_vocabulary, "_BATCH", 2)
    for name, path in written(tmp_path).items():
        read = read_draft_vocabulary(path, size=3, vocab_size=10)
        assert read.counts.tolist() == [EXPECTED[token] for token in range(10)], name
        assert read.source == name


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.json", '{"x": 1}', "no token id with a count"),
        ("a.json", '{"1": -1}', "no token id with a count"),
        ("a.json", '{"1": true}', "no token id with a count"),
        ("a.json", '{"12": 1}', "outside 0..9"),
        ("a.json", "[1, 2.5]", "2.5 is no token id"),
        ("a.json", "[-1]", "outside 0..9"),
        ("a.json", '"text"', "no list of token ids"),
        ("a.json", "{", "not valid JSON"),
        ("a.json", "[]", "counts no token at all"),
        ("a.json", "[" * 100_000, "cannot be read"),
        ("a.jsonl", "[1]\n{}\n", "line 2 holds no list"),
        ("a.jsonl", "[1]\nnonsense\n", "line 2 is not valid JSON"),
        ("a.txt", "1 two", "line 1: 'two' is no token id"),
        ("a.npy", "nonsense", "cannot be read"),
        ("a.safetensors", "nonsense", "no safetensors file"),
    ],
)
def test_bad_files_say_what_was_expected(
    tmp_path: Path, name: str, content: str, words: str
) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(CheckpointError) as error:
        read_draft_vocabulary(tmp_path / name, size=3, vocab_size=10)
    assert words in str(error.value)


def test_bad_arrays_say_what_was_expected(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    for array, words in (
        (np.ones(9, dtype=np.int64), "for each of 10 target ids"),
        (np.ones(10), "float64"),
        (np.full(10, -1), "negative"),
        (np.asarray([None] * 10, dtype=object), "cannot be read"),  # pickled
    ):
        np.save(path, array, allow_pickle=True)
        with pytest.raises(CheckpointError, match=words):
            read_draft_vocabulary(path, size=3, vocab_size=10)
    save_file({"a": np.ones(10), "b": np.ones(10)}, tmp_path / "b.safetensors")
    with pytest.raises(CheckpointError, match="name the one with the counts 'counts'"):
        read_draft_vocabulary(tmp_path / "b.safetensors", size=3, vocab_size=10)
    with pytest.raises(CheckpointError, match="is no file"):
        read_draft_vocabulary(tmp_path / "none.json", size=3, vocab_size=10)
    (tmp_path / "c.json").write_text('{"1": 1}')
    with pytest.raises(ConfigError, match=r"Tokens to keep, \[10\], must lie within 0\.\.9"):
        read_draft_vocabulary(tmp_path / "c.json", size=3, vocab_size=10, keep=(10,))


def test_an_absurd_vocabulary_is_refused_before_memory_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text('{"1": 1}')
    with pytest.raises(ConfigError, match=r"vocab_size is 1000000000000, more than"):
        read_draft_vocabulary(tmp_path / "c.json", size=3, vocab_size=10**12)
