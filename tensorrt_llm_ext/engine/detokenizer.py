# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Token ids to text, a few tokens at a time, and the search for stop strings in that text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tensorrt_llm_ext.engine.tokenizer import Tokenizer

# What a decoder writes in place of bytes that are not (or not yet) a whole character.
REPLACEMENT = "\ufffd"

# Tokens that stay in the decoding window before it slides, and how many of them it may keep. Some
# tokenizers strip the first space of what they decode, so a window never starts empty.
_WINDOW_SIZE = 16
_WINDOW_KEEPS = range(4, 13)
# Bytes that never become a character would grow the window without end; from this size on, the
# part of it that is decided whatever follows is let go.
_GARBAGE_WINDOW_SIZE = 128


class IncrementalDetokenizer:
    """Turns a growing sequence of token ids into text whose pieces join to the decoded whole.

    Only a window of the last tokens is decoded each time. A tail of replacement characters is held
    back, because the next token may complete them to a character; `flush` hands it out when the
    sequence ends.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._window: list[int] = []
        self._num_emitted = 0  # characters of the window's text that were handed out

    def feed(self, token_ids: Iterable[int]) -> str:
        """Appends tokens and returns the text that they decide, possibly none."""
        self._window.extend(token_ids)
        text = self._decode(self._window)
        decided = len(text.rstrip(REPLACEMENT))
        delta = text[self._num_emitted : decided]
        self._num_emitted = max(self._num_emitted, decided)
        if decided == len(text) and len(self._window) > _WINDOW_SIZE:
            self._slide(text)
        elif len(self._window) > _GARBAGE_WINDOW_SIZE:
            delta += self._drop_garbage(text)
        return delta

    def flush(self) -> str:
        """Returns what was held back; the sequence is over."""
        text = self._decode(self._window)
        delta = text[self._num_emitted :]
        self._num_emitted = len(text)
        return delta

    def _decode(self, token_ids: Sequence[int]) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=self._skip_special_tokens)

    def _slide(self, text: str) -> None:
        """Shortens a window that ends with a whole character, where its end decodes alike alone."""
        for keep in _WINDOW_KEEPS:
            tail = self._window[-keep:]
            tail_text = self._decode(tail)
            if text.endswith(tail_text):
                self._window = tail
                self._num_emitted = len(tail_text)
                return

    def _drop_garbage(self, text: str) -> str:
        """Lets go of a head that decodes alike alone, and returns its text not handed out yet."""
        keep = _WINDOW_KEEPS.stop
        head = self._decode(self._window[:-keep])
        if head + self._decode(self._window[-keep:]) != text:
            return ""
        self._window = self._window[-keep:]
        delta = head[self._num_emitted :]
        self._num_emitted = max(0, self._num_emitted - len(head))
        return delta


@dataclass(frozen=True, kw_only=True, slots=True)
class StopMatch:
    """A stop string found in a text: it stands at `text[start:end]`."""

    stop: str
    start: int
    end: int


class StopStringMatcher:
    """Finds stop strings in a growing text.

    Of several that occur, the one that is complete first wins, and of those that end together the
    longest, so that the answer does not depend on how the text was cut into tokens.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._max_len = max((len(stop) for stop in self._stops), default=0)

    def find(self, text: str, num_new: int) -> StopMatch | None:
        """Searches for a stop string that ends within the last `num_new` characters of `text`."""
        first_new = len(text) - num_new
        matches = []
        for stop in self._stops:
            start = text.find(stop, max(0, first_new - len(stop) + 1))
            if start >= 0:
                matches.append(StopMatch(stop=stop, start=start, end=start + len(stop)))
        return min(matches, key=lambda match: (match.end, match.start), default=None)

    def num_held_back(self, text: str) -> int:
        """Length of the longest end of `text` that could be the beginning of a stop string."""
        for length in range(min(len(text), self._max_len - 1), 0, -1):
            tail = text[-length:]
            if any(len(stop) > length and stop.startswith(tail) for stop in self._stops):
                return length
        return 0
