# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Checks of vocabulary, vocabulary map and embedding: V8, V21 and V22."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import torch

from tensorrt_llm_ext.checkpoints.checks.base import CheckContext, Finding
from tensorrt_llm_ext.checkpoints.checks.examination import DRAFT, TARGET, Examination
from tensorrt_llm_ext.checkpoints.checks.rules import (
    check,
    info,
    not_applicable,
    not_checked,
    passed,
    warning,
)
from tensorrt_llm_ext.checkpoints.normalize import DraftCheckpoint, TargetCheckpoint
from tensorrt_llm_ext.checkpoints.rows import MAX_SMALL_BYTES, read_rows, read_tensor
from tensorrt_llm_ext.checkpoints.store import CheckpointStore
from tensorrt_llm_ext.checkpoints.vocabulary import (
    TableKind,
    allows_identity,
    check_vocabulary_tables,
    decide_vocabulary_map,
)
from tensorrt_llm_ext.configs.target import TargetConfig

_EMBEDDING: Final = "embed_tokens.weight"
_TOKENIZERS: Final = ("tokenizer.json", "tiktoken.model", "tokenizer.model")
_FLOATS: Final = ("F64", "F32", "F16", "BF16")
_LOCAL_ROWS: Final = 64
_REMOTE_ROWS: Final = 16  # one request each
_GIB: Final = 1 << 30


@check("V8", "vocabulary", needs=(DRAFT,))
def vocabulary(ctx: CheckContext, found: Examination) -> Iterable[Finding]:
    """Head, map and embedding have the sizes that config and target say."""
    if found.draft is None:
        return
    draft = found.draft
    owned = [
        name
        for name, present in (
            ("lm_head", draft.has_own_lm_head),
            ("embed_tokens", draft.has_own_embedding),
            ("d2t", draft.has_d2t),
        )
        if present
    ]
    reduced = draft.draft_vocab_size < draft.vocab_size
    size = f"{draft.draft_vocab_size} of {draft.vocab_size}" if reduced else f"{draft.vocab_size}"
    same = "" if found.target is None else ", as the target"
    yield passed(
        "V8",
        f"Vocabulary {size}{same}; of its own: {', '.join(owned) or 'nothing'}.",
        vocab_size=draft.vocab_size,
        draft_vocab_size=draft.draft_vocab_size,
        own=owned,
    )
    if ctx.target is None:
        yield not_checked("V8", "whether the target has the same vocabulary: no target was given")
        return
    yield from _tokenizers(ctx.draft.files.store, ctx.target.files.store)


def _tokenizers(draft: CheckpointStore, target: CheckpointStore) -> Iterable[Finding]:
    """Compares tokenizer files that both have: a draft's is never used, but tells its origin."""
    present = set(draft.names()) & set(target.names())
    for name in _TOKENIZERS:
        if name not in present:
            continue
        sizes = draft.size(name), target.size(name)
        same = sizes[0] == sizes[1]
        if same and sizes[0] <= MAX_SMALL_BYTES:
            same = draft.read(name, 0, sizes[0]) == target.read(name, 0, sizes[0])
        if not same:
            yield warning(
                "V8",
                f"Draft and target bring different {name} ({sizes[0]} and {sizes[1]} bytes). The "
                "target's is used. If the draft was trained with another one, its ids mean other "
                "tokens: choose a draft made for this target.",
            )


@check("V21", "vocabulary map", needs=(DRAFT,))
def vocabulary_map(ctx: CheckContext, found: Examination) -> Iterable[Finding]:
    """`d2t` is an offset table, and `t2d` its inverse."""
    if found.draft is None:
        return
    files, refs = ctx.draft.files, ctx.draft.tensors.refs
    tables = {name: refs[name].name for name in ("d2t", "t2d") if name in refs}
    if not tables:
        yield not_applicable("V21", "The draft speaks the target's whole vocabulary.")
        return
    for stored in tables.values():
        if files.entries[stored].nbytes > MAX_SMALL_BYTES and not ctx.deep:
            yield not_checked(
                "V21", f"{stored} has {files.entries[stored].nbytes} bytes (doctor --deep)"
            )
            return
    values = {n: read_tensor(files, stored, allow_large=True) for n, stored in tables.items()}
    d2t, t2d = values.get("d2t"), values.get("t2d")
    draft_size, size = found.draft.draft_vocab_size, found.draft.vocab_size
    check_vocabulary_tables(
        d2t,
        t2d,
        draft_vocab_size=draft_size,
        vocab_size=size,
        allow_identity=allows_identity(ctx.draft.config),
    )
    if d2t is None:
        yield passed("V21", "No d2t, and t2d marks every target id.")
        return
    table = decide_vocabulary_map(d2t, t2d, draft_vocab_size=draft_size, vocab_size=size)
    first, last = int(table.target_ids[0]), int(table.target_ids[-1])
    data = {"kind": table.kind.value, "rows": draft_size, "first": first, "last": last}
    if table.kind is TableKind.IDENTITY:
        yield info("V21", f"d2t: {table.reason}, and config.json says that it is meant.", **data)
        return
    yield passed(
        "V21",
        f"d2t is an offset table: {draft_size} draft ids map to target ids {first}..{last}."
        f"{' t2d agrees.' if t2d is not None else ''}",
        **data,
    )


@check("V22", "embedding", needs=(DRAFT,))
def embedding(ctx: CheckContext, found: Examination) -> Iterable[Finding]:
    """Says whether the draft's embedding is the target's; sampled rows decide."""
    if found.draft is None:
        return
    if not found.draft.has_own_embedding:
        yield info("V22", "No embed_tokens in the draft: the target's is shared.", own=False)
        return
    missing = found.missing((TARGET,))
    if missing or ctx.target is None or found.target is None:
        yield not_checked("V22", f"whether the embedding is the target's: {missing}")
        return
    yield _compared(ctx.draft, ctx.target, found.target)


def _compared(draft: DraftCheckpoint, target: TargetCheckpoint, config: TargetConfig) -> Finding:
    own = draft.tensors.refs[_EMBEDDING].name
    theirs = f"{config.weight_prefix}model.{_EMBEDDING}"
    entries = draft.files.entries[own], target.files.entries.get(theirs)
    if entries[1] is None:
        return not_checked("V22", f"the target has no {theirs} to compare with")
    size = f"{entries[0].nbytes / _GIB:.2f} GiB"
    shapes: Mapping[str, Any] = {"draft": list(entries[0].shape), "target": list(entries[1].shape)}
    if entries[0].shape != entries[1].shape:
        return info(
            "V22",
            f"The draft's embedding {shapes['draft']} has another shape than the target's "
            f"{shapes['target']}: it keeps its own ({size}).",
            own=True,
            **shapes,
        )
    packed = [entry.dtype for entry in entries if entry and entry.dtype not in _FLOATS]
    if packed:
        return not_checked("V22", f"an embedding stored as {packed[0]} cannot be compared by rows")
    rows = _sampled(entries[0].shape[0], draft.files.store, target.files.store)
    mine, other = read_rows(draft.files, own, rows), read_rows(target.files, theirs, rows)
    # Compared as loaded: in the dtype of the target.
    differing = [
        row
        for row, a, b in zip(rows, mine.to(other.dtype), other, strict=True)
        if not torch.equal(a, b)
    ]
    data = {"own": True, "sampled_rows": len(rows), "differing_rows": differing}
    if not differing:
        return info(
            "V22",
            f"The draft's embedding equals the target's in {len(rows)} sampled rows: it is shared "
            f"when all rows are equal, which frees {size}.",
            **data,
        )
    return warning(
        "V22",
        f"The draft's embedding differs from the target's in {len(differing)} of {len(rows)} "
        f"sampled rows, the first is row {differing[0]}. It keeps its own here ({size}); "
        "TensorRT-LLM silently uses the target's where the widths are equal, so serve the draft "
        "through this package, or expect lower acceptance.",
        **data,
    )


def _sampled(count: int, *stores: CheckpointStore) -> list[int]:
    """Rows spread over a table, the first and the last among them."""
    remote = any(store.folder is None for store in stores)
    wanted = min(count, _REMOTE_ROWS if remote else _LOCAL_ROWS)
    return sorted({round(i * (count - 1) / max(wanted - 1, 1)) for i in range(wanted)})
