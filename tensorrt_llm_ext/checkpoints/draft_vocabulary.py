# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Chooses a reduced vocabulary for a draft from how often tokens occur.

A draft's head is most of the bytes of a draft step, and few tokens make up nearly all text. What is
left out is never drafted, which costs acceptance and nothing else.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tensorrt_llm_ext.errors import CheckpointError, ConfigError

Ids = npt.NDArray[np.int64]

# What the keys of a JSONL line may be called that hold its token ids.
_ID_KEYS: Final = ("input_ids", "token_ids", "ids", "tokens")
_COUNTS_NAME: Final = "counts"
_BATCH: Final = 1 << 20
MAX_VOCAB_SIZE: Final = 1 << 24  # 64 times the largest public one; tables are made of this size
FORMATS: Final = (
    'JSON {"token id": count}, JSON or JSONL lists of token ids, text of token ids, .npy or '
    ".safetensors with one count per token id"
)


@dataclass(frozen=True, kw_only=True)
class DraftVocabulary:
    """A wish for a reduced vocabulary.

    Attributes:
        size: Number of tokens to keep, D.
        counts: [V] int64: how often each target id occurs.
        keep: Target ids that are kept however rare they are.
        keep_if_present: Likewise, but only where the draft has a row for them.
        source: Where the counts come from, for reports.
    """

    size: int
    counts: Ids = field(repr=False)
    keep: tuple[int, ...] = ()
    keep_if_present: tuple[int, ...] = ()
    source: str = ""


@dataclass(frozen=True, kw_only=True)
class VocabularyChoice:
    """A reduced vocabulary.

    Attributes:
        target_ids: [D] int64, ascending: the target id of each draft id.
        rows: [D] int64, ascending: the row of the present head that each one has.
        vocab_size: V, of the target.
        coverage: Share of all counted tokens that the draft can propose.
        coverage_before: The same before pruning.
        num_unseen: Number of kept tokens that were never counted.
        source: Where the counts come from.
    """

    target_ids: Ids = field(repr=False)
    rows: Ids = field(repr=False)
    vocab_size: int
    coverage: float
    coverage_before: float
    num_unseen: int
    source: str

    @property
    def d2t(self) -> Ids:
        """[D] int64 offsets: target id = draft id + d2t[draft id]."""
        return self.target_ids - np.arange(len(self.target_ids), dtype=np.int64)

    def to_dict(self) -> dict[str, Any]:
        """Returns sizes and coverage as plain data."""
        return {
            "draft_vocab_size": len(self.target_ids),
            "vocab_size": self.vocab_size,
            "coverage": self.coverage,
            "coverage_before": self.coverage_before,
            "num_unseen": self.num_unseen,
            "source": self.source,
        }


def read_draft_vocabulary(
    path: str | os.PathLike[str],
    *,
    size: int,
    vocab_size: int,
    keep: Sequence[int] = (),
    keep_if_present: Sequence[int] = (),
) -> DraftVocabulary:
    """Reads token counts, or counts the tokens of a corpus.

    Args:
        path: One of: `.json` with `{"token id": count}`, with a list of token ids or with a list of
            such lists; `.jsonl` with one list of token ids per line, or an object that has one as
            input_ids, token_ids, ids or tokens; `.npy` or `.safetensors` with one integer per
            target id (in .safetensors the only tensor, or the one named counts); any other file is
            text: token ids between blanks or commas.
        size: Number of tokens to keep, D.
        vocab_size: Size of the target's vocabulary, V.
        keep: Target ids that are kept however rare they are.
        keep_if_present: Likewise, but only where the draft has a row for them.

    Raises:
        CheckpointError: If the file is missing or holds anything else.
        ConfigError: If a size or an id to keep is out of range.
    """
    check_vocab_size(vocab_size)
    file = Path(path)
    if not file.is_file():
        raise CheckpointError(f"--draft-vocab: {file} is no file. Expected {FORMATS}.")
    try:
        if file.suffix in (".npy", ".safetensors"):
            counts = _stored_counts(file, vocab_size)
        else:
            counts = _text_counts(file, vocab_size)
    except (OSError, UnicodeDecodeError, RecursionError) as error:
        raise CheckpointError(f"{file} cannot be read ({error}). Expected {FORMATS}.") from None
    if not counts.any():
        raise CheckpointError(f"{file} counts no token at all, so nothing can be chosen by it.")
    wrong = [token for token in (*keep, *keep_if_present) if not 0 <= token < vocab_size]
    if wrong:
        raise ConfigError(f"Tokens to keep, {wrong}, must lie within 0..{vocab_size - 1}.")
    return DraftVocabulary(
        size=size,
        counts=counts,
        keep=tuple(keep),
        keep_if_present=tuple(keep_if_present),
        source=file.name,
    )


def check_vocab_size(vocab_size: int) -> None:
    """Refuses a vocabulary that no tokenizer has, before a table of its size is made.

    Raises:
        ConfigError: If it is larger than `MAX_VOCAB_SIZE`.
    """
    if vocab_size > MAX_VOCAB_SIZE:
        raise ConfigError(
            f"vocab_size is {vocab_size}, more than {MAX_VOCAB_SIZE}. config.json is damaged; give "
            "the number of tokens of the target's tokenizer.",
            check="V8",
        )


def choose_vocabulary(wish: DraftVocabulary, available: Ids | None = None) -> VocabularyChoice:
    """Chooses the most frequent tokens; of equally frequent ones the lower id.

    Args:
        wish: Counts, size and tokens to keep.
        available: [R] int64, ascending: target id of each row of the present head; None when the
            head has a row for every target id.

    Raises:
        ConfigError: If more tokens are asked for than there are, or a token to keep has no row.
    """
    vocab_size = len(wish.counts)
    ids = np.arange(vocab_size, dtype=np.int64) if available is None else available
    if not 1 <= wish.size <= len(ids):
        raise ConfigError(
            f"A draft vocabulary of {wish.size} tokens was asked for, but the draft's head has "
            f"{len(ids)} rows. Choose between 1 and {len(ids)}."
        )
    keep = np.unique(np.asarray(wish.keep, dtype=np.int64))
    absent = np.setdiff1d(keep, ids)
    if absent.size:
        raise ConfigError(
            f"Tokens {absent[:8].tolist()} are to be kept, but the draft was pruned before and has "
            "no rows for them. Prune the full draft instead, or do not ask for them."
        )
    keep = np.union1d(keep, np.intersect1d(np.asarray(wish.keep_if_present, dtype=np.int64), ids))
    if keep.size > wish.size:
        raise ConfigError(
            f"{keep.size} tokens are to be kept, more than the vocabulary of {wish.size}. Ask for "
            "a larger one."
        )
    counts = wish.counts[ids]
    is_kept = np.isin(ids, keep)
    # The last key sorts first: kept ones, then by falling count, then by rising id.
    order = np.lexsort((ids, -counts, ~is_kept))
    rows = np.sort(order[: wish.size]).astype(np.int64)
    total = int(wish.counts.sum())
    return VocabularyChoice(
        target_ids=ids[rows],
        rows=rows,
        vocab_size=vocab_size,
        coverage=int(counts[rows].sum()) / total,
        coverage_before=int(counts.sum()) / total,
        num_unseen=int((counts[rows] == 0).sum()),
        source=wish.source,
    )


def _stored_counts(file: Path, vocab_size: int) -> Ids:
    """Counts of a .npy or .safetensors file."""
    try:
        if file.suffix == ".npy":
            counts = np.load(file, allow_pickle=False)
        else:
            counts = _safetensors_counts(file)
    except (ValueError, EOFError) as error:
        raise CheckpointError(f"{file} cannot be read: {error}.") from None
    if counts.ndim != 1 or counts.dtype.kind not in "iu" or len(counts) != vocab_size:
        raise CheckpointError(
            f"{file} holds {counts.dtype} {list(counts.shape)}, expected one integer count for "
            f"each of {vocab_size} target ids. Was it counted with the target's tokenizer?"
        )
    if counts.dtype.kind == "i" and bool((counts < 0).any()):
        raise CheckpointError(f"{file} holds negative counts.")
    result: Ids = counts.astype(np.int64)
    return result


def _safetensors_counts(file: Path) -> npt.NDArray[Any]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="numpy") as tensors:
            names = list(tensors.keys())
            name = names[0] if len(names) == 1 else _COUNTS_NAME
            if name not in names:
                raise CheckpointError(
                    f"{file} holds the tensors {names[:8]}; name the one with the counts "
                    f"{_COUNTS_NAME!r}."
                )
            counts: npt.NDArray[Any] = tensors.get_tensor(name)
    except SafetensorError as error:
        raise CheckpointError(f"{file} is no safetensors file: {error}.") from None
    return counts


def _text_counts(file: Path, vocab_size: int) -> Ids:
    """Counts of JSON, JSONL and text."""
    if file.suffix == ".json":
        document = _json(file.read_text(encoding="utf-8"), str(file))
        if isinstance(document, dict):
            return _table_counts(file, document, vocab_size)
        return _count(_flat(document, str(file)), vocab_size, str(file))
    with file.open(encoding="utf-8") as lines:
        ids = _jsonl_ids(lines, file) if file.suffix == ".jsonl" else _plain_ids(lines, file)
        return _count(ids, vocab_size, str(file))


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise CheckpointError(f"{where} is not valid JSON: {error}. Expected {FORMATS}.") from None


def _table_counts(file: Path, table: dict[str, Any], vocab_size: int) -> Ids:
    counts = np.zeros(vocab_size, dtype=np.int64)
    for key, count in table.items():
        if not key.isdecimal() or not _is_count(count):
            raise CheckpointError(
                f'{file}: {key!r}: {count!r} is no token id with a count. Expected {{"123": 4567}}.'
            )
        _check_id(int(key), vocab_size, str(file))
        counts[int(key)] += count
    return counts


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**48


def _check_id(token: int, vocab_size: int, where: str) -> None:
    if not 0 <= token < vocab_size:
        raise CheckpointError(
            f"{where}: token id {token} is outside 0..{vocab_size - 1}. The counts belong to "
            "another tokenizer."
        )


def _jsonl_ids(lines: Iterable[str], file: Path) -> Iterator[int]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f"{file}, line {number}"
        value = _json(line, where)
        if isinstance(value, dict):
            value = next((value[key] for key in _ID_KEYS if key in value), value)
        yield from _flat(value, where)


def _flat(value: Any, where: str) -> Iterator[int]:
    """Token ids of a list, or of a list of lists."""
    if not isinstance(value, list):
        raise CheckpointError(f"{where} holds no list of token ids. Expected {FORMATS}.")
    for item in value:
        if isinstance(item, list):
            yield from _flat(item, where)
        elif isinstance(item, bool) or not isinstance(item, int):
            raise CheckpointError(f"{where}: {item!r} is no token id. Expected {FORMATS}.")
        else:
            yield item


def _plain_ids(lines: Iterable[str], file: Path) -> Iterator[int]:
    for number, line in enumerate(lines, start=1):
        for word in line.replace(",", " ").split():
            if not word.isdecimal():
                raise CheckpointError(
                    f"{file}, line {number}: {word!r} is no token id. Expected {FORMATS}."
                )
            yield int(word)


def _count(ids: Iterable[int], vocab_size: int, where: str) -> Ids:
    """Counts ids in batches, so that a corpus needs no memory of its size."""
    counts = np.zeros(vocab_size, dtype=np.int64)
    batch: list[int] = []
    for token in ids:
        _check_id(token, vocab_size, where)
        batch.append(token)
        if len(batch) == _BATCH:
            counts += np.bincount(batch, minlength=vocab_size)
            batch.clear()
    if batch:
        counts += np.bincount(batch, minlength=vocab_size)
    return counts
