# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tensorrt_llm_ext.engine.detokenizer import (
    REPLACEMENT,
    IncrementalDetokenizer,
    StopStringMatcher,
)
from tensorrt_llm_ext.engine.tokenizer import Tokenizer
from tests.support.tiny_tokenizers import (
    TEXTS,
    VOCAB_SIZE,
    byte_level_tokenizer,
    metaspace_tokenizer,
)

TOKENIZERS = {"byte_level": byte_level_tokenizer, "metaspace": metaspace_tokenizer}


def chunked(data: st.DataObject, ids: list[int]) -> list[list[int]]:
    """Cuts ids into runs of 1 to 9 tokens, as verification steps would emit them."""
    runs = []
    while ids:
        size = data.draw(st.integers(1, 9))
        runs.append(ids[:size])
        ids = ids[size:]
    return runs


def stream(tokenizer: Tokenizer, runs: list[list[int]], *, skip: bool) -> list[str]:
    detokenizer = IncrementalDetokenizer(tokenizer, skip_special_tokens=skip)
    return [*(detokenizer.feed(run) for run in runs), detokenizer.flush()]


@given(st.data(), st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=80), st.booleans())
def test_random_ids_join_to_the_decoded_whole(
    data: st.DataObject, ids: list[int], skip: bool
) -> None:
    tokenizer = byte_level_tokenizer()
    pieces = stream(tokenizer, chunked(data, ids), skip=skip)
    assert "".join(pieces) == tokenizer.decode(ids, skip_special_tokens=skip)
    # Only what ends the text may be half a character.
    assert not any(piece.endswith(REPLACEMENT) for piece in pieces[:-1])


@given(st.data(), st.text(max_size=40), st.sampled_from(list(TOKENIZERS)))
@example(data=None, text="👩‍👩‍👧‍👦", name="byte_level")
def test_texts_never_show_half_a_character(
    data: st.DataObject | None, text: str, name: str
) -> None:
    tokenizer = TOKENIZERS[name]()
    ids = tokenizer.encode(text)
    runs = [[i] for i in ids] if data is None else chunked(data, ids)
    pieces = stream(tokenizer, runs, skip=True)
    whole = tokenizer.decode(ids)
    assert "".join(pieces) == whole
    if REPLACEMENT not in whole:
        assert not any(REPLACEMENT in piece for piece in pieces)


@pytest.mark.parametrize("make", TOKENIZERS.values(), ids=TOKENIZERS)
def test_long_texts_slide_the_window(make: Callable[[], Tokenizer]) -> None:
    tokenizer = make()
    ids = tokenizer.encode(" ".join(TEXTS * 8))
    calls: list[int] = []

    class Counting(Tokenizer):
        def decode(self, token_ids, *, skip_special_tokens=True):  # type: ignore[no-untyped-def]
            calls.append(len(token_ids))
            return super().decode(token_ids, skip_special_tokens=skip_special_tokens)

    pieces = stream(Counting(tokenizer.hf_tokenizer), [[i] for i in ids], skip=True)
    assert "".join(pieces) == tokenizer.decode(ids)
    assert max(calls) < 64  # the cost of a token does not grow with the text
    assert len(ids) > 256


def test_bytes_that_never_become_text_keep_the_window_small() -> None:
    tokenizer = byte_level_tokenizer()
    lone = [i for i in range(VOCAB_SIZE) if tokenizer.decode([i]) == REPLACEMENT][:40]
    ids = lone * 20
    largest = 0
    detokenizer = IncrementalDetokenizer(tokenizer)
    pieces = []
    for token_id in ids:
        pieces.append(detokenizer.feed([token_id]))
        largest = max(largest, len(detokenizer._window))
    pieces.append(detokenizer.flush())
    assert "".join(pieces) == tokenizer.decode(ids)
    assert largest < 200 < len(ids)


def first_stop(text: str, stops: list[str]) -> tuple[int, int] | None:
    """The stop string that is complete first when the text is read character by character."""
    for end in range(1, len(text) + 1):
        starts = [end - len(stop) for stop in stops if text[:end].endswith(stop)]
        if starts:
            return min(starts), end
    return None


WORDS = st.text(alphabet="ab", min_size=1, max_size=4)


@given(st.text(alphabet="abc", max_size=30), st.lists(WORDS, min_size=1, max_size=3), st.data())
def test_stop_strings_are_found_as_if_read_by_character(
    text: str, stops: list[str], data: st.DataObject
) -> None:
    matcher = StopStringMatcher(stops)
    seen = ""
    found = None
    shown = 0
    while len(seen) < len(text) and found is None:
        delta = text[len(seen) : len(seen) + data.draw(st.integers(1, 5))]
        seen += delta
        match = matcher.find(seen, len(delta))
        if match is not None:
            found = (match.start, match.end)
            assert seen[match.start : match.end] == match.stop
        else:
            shown = max(shown, len(seen) - matcher.num_held_back(seen))
    assert found == first_stop(text, stops)
    if found is not None:
        assert shown <= found[0]  # no part of the stop string was shown


def test_held_back_text_is_the_longest_possible_beginning() -> None:
    matcher = StopStringMatcher(["END", "\n\nQuestion"])
    assert matcher.num_held_back("some text E") == 1
    assert matcher.num_held_back("some text EN") == 2
    assert matcher.num_held_back("done\n") == 1
    assert matcher.num_held_back("done\n\nQ") == 3
    assert matcher.num_held_back("done\nQ") == 0
    assert matcher.num_held_back("some text END") == 0  # complete: find() has it
    assert StopStringMatcher([]).num_held_back("anything") == 0
