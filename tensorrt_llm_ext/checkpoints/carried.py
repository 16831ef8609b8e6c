# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Files that travel unchanged with a draft: tokenizer, license and card."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tensorrt_llm_ext.checkpoints.store import CheckpointStore
from tensorrt_llm_ext.checkpoints.stream import CHUNK_BYTES

CARRIED: Final = (
    "LICENSE",
    "LICENSE.md",
    "LICENSE.txt",
    "NOTICE",
    "README.md",
    "chat_template.jinja",
    "generation_config.json",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer_config.json",
)
_MAX_CARRIED_BYTES: Final = 64 << 20


def carry_files(store: CheckpointStore, folder: Path) -> None:
    """Copies the files that travel unchanged; settings that name code stay behind.

    Raises:
        OSError: If the disk refuses.
    """
    for name in sorted(set(CARRIED).intersection(store.names())):
        size = store.size(name)
        if size > _MAX_CARRIED_BYTES:
            continue
        data = b"".join(
            store.read(name, begin, min(begin + CHUNK_BYTES, size))
            for begin in range(0, size, CHUNK_BYTES)
        )
        if not (name.endswith(".json") and b'"auto_map"' in data):
            (folder / name).write_bytes(data)
