# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Acceptance per position, counted on the device and written per rank.

The host reports none for Eagle3. Counters are tensors that a captured graph updates; a thread
reads them every few seconds and appends one JSON line with the totals since the start.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import threading
import time
from pathlib import Path
from typing import Any, Final

import torch

from tensorrt_llm_ext import envs

_logger = logging.getLogger(__name__)
VARIABLE: Final = "TRTLLM_EXT_ACCEPT_STATS_DIR"
_SECONDS: Final = 5.0
# Ids of dummy requests lie at the end of the range of 64 bits.
_FIRST_DUMMY: Final = 1 << 62
_MASK: Final = "_trtllm_ext_is_real"


def is_wanted() -> bool:
    """Whether counters are asked for."""
    return envs.get(VARIABLE) is not None


def mark_real_requests(spec_metadata: Any) -> None:
    """Writes which rows of the batch are real requests into a buffer that graphs read."""
    size = spec_metadata.max_num_requests
    ids = list(spec_metadata.request_ids or ())
    real = [int(0 <= i < _FIRST_DUMMY) for i in ids] + [0] * max(0, size - len(ids))
    mask = getattr(spec_metadata, _MASK, None)
    if mask is None or mask.numel() < len(real):
        mask = torch.zeros(len(real), dtype=torch.int64, device=_device(spec_metadata))
        setattr(spec_metadata, _MASK, mask)
    mask[: len(real)].copy_(torch.tensor(real), non_blocking=True)


def _device(spec_metadata: Any) -> torch.device:
    captured = spec_metadata.hidden_states
    return captured.device if captured is not None else torch.device("cpu")


class AcceptanceCounters:
    """Counters of one rank.

    Args:
        max_draft_len: Draft tokens per step.
        folder: Where the lines go.
        rank: Of this process.
        device: Of the counters.
    """

    def __init__(self, max_draft_len: int, folder: Path, rank: int, device: torch.device) -> None:
        self.max_draft_len = max_draft_len
        # [k + 1]: real verify steps by number of accepted drafts.
        self.histogram = torch.zeros(max_draft_len + 1, dtype=torch.int64, device=device)
        self.path = folder / f"acceptance-rank{rank}-{os.getpid()}.jsonl"
        self.rank = rank
        self._written: list[int] | None = None
        folder.mkdir(parents=True, exist_ok=True)
        self._stop = threading.Event()
        thread = threading.Thread(target=self._run, name="trtllm-ext-acceptance", daemon=True)
        thread.start()
        atexit.register(self.close)

    def observe(self, lengths: torch.Tensor, is_real: torch.Tensor) -> None:
        """Counts one step; runs inside a captured graph.

        Args:
            lengths: [generations] tokens that each request got: accepted drafts and one more.
            is_real: [generations] int64, 0 for dummy requests.
        """
        accepted = (lengths.long() - 1).clamp(0, self.max_draft_len)
        self.histogram.index_add_(0, accepted, is_real[: accepted.shape[0]])

    def totals(self) -> dict[str, Any]:
        """The counts since the start, in the terms of DESIGN section 4."""
        counts = self.histogram.tolist()
        steps, k = sum(counts), self.max_draft_len
        accepted = sum(i * n for i, n in enumerate(counts))
        return {
            "rank": self.rank,
            "max_draft_len": k,
            "verify_steps": steps,
            "drafted": steps * k,
            "accepted": accepted,
            "accepted_per_position": [sum(counts[i:]) for i in range(1, k + 1)],
            "acceptance_length": 1 + accepted / steps if steps else None,
        }

    def flush(self) -> None:
        """Appends a line when something was counted since the last one."""
        counts = self.histogram.tolist()
        if counts == self._written or not any(counts):
            return
        self._written = counts
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"time": time.time(), **self.totals()}) + "\n")

    def close(self) -> None:
        """Writes what is left; called at the end of the process."""
        self._stop.set()
        try:
            self.flush()
        except (OSError, RuntimeError):
            _logger.warning("the last acceptance counters could not be written", exc_info=True)

    def _run(self) -> None:
        while not self._stop.wait(_SECONDS):
            try:
                self.flush()
            except (OSError, RuntimeError):  # a full disk must not stop a server
                _logger.warning("acceptance counters could not be written", exc_info=True)


_counters: dict[int, AcceptanceCounters] = {}


def observe(result: Any, model_config: Any, attn_metadata: Any, spec_metadata: Any) -> None:
    """Counts what the worker of a target's forward pass accepted, where counters are asked for."""
    if spec_metadata is None or not isinstance(result, dict) or "new_tokens_lens" not in result:
        return
    folder = envs.get(VARIABLE)
    if folder is None:
        return
    rank, contexts = model_config.mapping.rank, attn_metadata.num_contexts
    lengths = result["new_tokens_lens"][contexts:]
    counters = _counters.get(rank)
    if counters is None:
        counters = AcceptanceCounters(
            spec_metadata.max_draft_len, Path(folder), rank, lengths.device
        )
        _counters[rank] = counters
    mask = getattr(spec_metadata, _MASK, None)
    if mask is None:  # the class was not patched: count every row
        mask = torch.ones(contexts + lengths.shape[0], dtype=torch.int64, device=lengths.device)
    counters.observe(lengths, mask[contexts : contexts + lengths.shape[0]])


__all__ = ["AcceptanceCounters", "is_wanted", "mark_real_requests", "observe"]
