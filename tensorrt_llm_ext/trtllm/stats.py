# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Acceptance per draft position, counted on the device and written per rank as JSON lines.

The host reports no acceptance per position for Eagle3. Each pass adds to static tensors, so that a
captured CUDA graph counts when it is replayed and nothing waits for the device. Lines are
cumulative: the last one is the state, and the difference of two is what happened between them.

Contexts never count. Of the generation rows, those whose request id says padding are left out: the
host gives padding of graphs ids from the top of 64 bits, and id 0, which no request has, to what an
idle rank of attention-DP runs. Warm-up requests cannot be told from real ones.
"""

from __future__ import annotations

import atexit
import contextlib
import contextvars
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch

from tensorrt_llm_ext import envs
from tensorrt_llm_ext.speculative.stats import AcceptanceStats

_logger = logging.getLogger(__name__)
FOLDER: Final = "TRTLLM_EXT_ACCEPT_STATS_DIR"
INTERVAL: Final = "TRTLLM_EXT_ACCEPT_STATS_INTERVAL"
FIRST_PADDING_ID: Final = 1 << 63
_IDLE_SECONDS: Final = 1.0
_LOOK_SECONDS: Final = 0.5
_FILES: Final = "acceptance-rank*.jsonl"
_ROWS: Final = "_trtllm_ext_counted_rows"


@dataclass(frozen=True, kw_only=True)
class Rank:
    """Who counts.

    Attributes:
        rank: Number of this process.
        world_size: Number of processes.
        attention_dp: Whether ranks serve different requests.
    """

    rank: int = 0
    world_size: int = 1
    attention_dp: bool = False

    @classmethod
    def of(cls, mapping: Any) -> Rank:
        """Reads the host's mapping; what it does not say has one rank."""
        return cls(
            rank=int(getattr(mapping, "rank", 0)),
            world_size=int(getattr(mapping, "world_size", 1)),
            attention_dp=bool(getattr(mapping, "enable_attention_dp", False)),
        )


@dataclass
class Recorder:
    """The counters of one process.

    Attributes:
        file: Where its lines go.
        rank: Who counts.
        max_draft_len: Most draft tokens of a step, K.
        interval: Seconds between lines.
    """

    file: Path
    rank: Rank
    max_draft_len: int
    interval: float
    _counters: torch.Tensor | None = None
    _positions: torch.Tensor | None = None
    _last_pass: float = 0.0
    _wanted: bool = False
    _copy: tuple[torch.Tensor, Any] | None = None
    _published: list[list[int]] | None = None
    _written: list[list[int]] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _ended: threading.Event = field(default_factory=threading.Event)

    def add(self, lengths: torch.Tensor, rows: torch.Tensor | None, num_drafts: int) -> None:
        """Counts the generation rows of one pass; captured into a CUDA graph like the pass.

        Args:
            lengths: [rows] new tokens of each row, its own token included.
            rows: [rows] bool, which of them count; all when None.
            num_drafts: Draft tokens of each row, at most K.
        """
        if num_drafts == 0 or lengths.numel() == 0:
            return
        counters, positions = self.allocate(lengths.device)
        accepted = lengths.unsqueeze(1) - 1 > positions[:num_drafts]
        drafted = torch.ones_like(accepted)
        if rows is not None:
            drafted = drafted & rows.unsqueeze(1)
            accepted = accepted & drafted
        counters[0, :num_drafts] += drafted.sum(0)
        counters[1, :num_drafts] += accepted.sum(0)

    def note_pass(self) -> None:
        """Called on the host side before each pass, outside of graphs: hands out snapshots."""
        self._last_pass = time.monotonic()
        if self._counters is None or not self._counters.is_cuda:
            return
        if torch.cuda.is_current_stream_capturing():
            return
        if self._copy is not None and self._copy[1].query():
            self._published = self._copy[0].tolist()
            self._copy = None
        if self._wanted and self._copy is None:
            kept = torch.empty(self._counters.shape, dtype=torch.int64, pin_memory=True)
            kept.copy_(self._counters, non_blocking=True)
            event: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
            self._copy, self._wanted = (kept, event), False

    def start(self) -> None:
        """Begins to write lines, now and then and at exit."""
        threading.Thread(target=self._run, name="acceptance", daemon=True).start()
        atexit.register(self.close)

    def close(self) -> None:
        """Writes the last line."""
        if not self._ended.is_set():
            self._ended.set()
            self.flush()

    def flush(self) -> None:
        """Reads the counters, which waits for the device, and writes them."""
        if self._counters is None:
            return
        try:
            self._write(self._counters.tolist())
        except (OSError, RuntimeError) as error:  # the device, or the disk, is gone
            _logger.warning("the acceptance counters cannot be written: %s", error)

    def _run(self) -> None:
        while not self._ended.wait(self.interval):
            self._tick()

    def _tick(self) -> None:
        counters = self._counters
        if counters is None:
            return
        is_idle = time.monotonic() - self._last_pass > _IDLE_SECONDS
        if not counters.is_cuda or is_idle:
            self.flush()
            return
        # A copy that another thread starts could fall into the capture of a graph: the engine's
        # own thread makes it before its next pass.
        self._wanted = True
        if self._published is not None:
            try:
                self._write(self._published)
            except OSError as error:
                _logger.warning("the acceptance counters cannot be written: %s", error)

    def allocate(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Counters and positions on a device, made once and before any graph is captured."""
        if self._counters is None or self._positions is None:
            shape = (2, self.max_draft_len)
            self._counters = torch.zeros(shape, dtype=torch.int64, device=device)
            self._positions = torch.arange(self.max_draft_len, device=device)
        return self._counters, self._positions

    def _write(self, counts: list[list[int]]) -> None:
        with self._lock:
            if counts == self._written:
                return
            line = json.dumps(self._line(counts))
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with self.file.open("a", encoding="utf-8") as stream:
                stream.write(f"{line}\n")
            self._written = counts

    def _line(self, counts: list[list[int]]) -> dict[str, Any]:
        stats = _from_counts(*counts)
        return {
            "time": time.time(),
            "rank": self.rank.rank,
            "world_size": self.rank.world_size,
            "attention_dp": self.rank.attention_dp,
            "pid": os.getpid(),
            "interval": self.interval,
            "verify_steps": stats.num_steps,
            "drafted": stats.num_drafted,
            "accepted": stats.num_accepted,
            "acceptance_length": stats.acceptance_length,
            "acceptance_rate": stats.acceptance_rate,
            "steps_per_position": stats.steps_per_position,
            "accepted_per_position": stats.accepted_per_position,
        }


_recorder: Recorder | None = None
_is_counting: contextvars.ContextVar[bool] = contextvars.ContextVar("is_counting", default=False)


def start(spec_config: Any, mapping: Any) -> None:
    """Begins to count in this process if `TRTLLM_EXT_ACCEPT_STATS_DIR` is set; once.

    It is read when a model is built, because the host sets the variables of its config file in
    worker processes just before.

    Args:
        spec_config: The host's settings of speculation, or None: then nothing is counted.
        mapping: The host's ranks.
    """
    global _recorder
    folder = envs.get(FOLDER)
    length = getattr(spec_config, "max_draft_len", None)
    if folder is None or not length or _recorder is not None:
        return
    rank = Rank.of(mapping)
    file = Path(folder) / f"acceptance-rank{rank.rank}-{os.getpid()}.jsonl"
    _recorder = Recorder(
        file=file, rank=rank, max_draft_len=int(length), interval=envs.get(INTERVAL)
    )
    _recorder.start()
    _logger.info("acceptance counters go to %s", file)


def stop() -> None:
    """Writes the last line and counts no more."""
    global _recorder
    if _recorder is not None:
        _recorder.close()
        atexit.unregister(_recorder.close)
        _recorder = None


def is_on() -> bool:
    """Whether this process counts."""
    return _recorder is not None


def mark_rows(spec_metadata: Any) -> None:
    """Says on the device which rows of the next pass count; called on the host side before it.

    Args:
        spec_metadata: The host's metadata, with `request_ids` in the order of the rows.
    """
    if _recorder is None:
        return
    # Here and not when the model is built, which may happen on the meta device, nor in the pass,
    # which may be captured: a replay would begin at zero.
    _recorder.allocate(_device_of(spec_metadata))
    _recorder.note_pass()
    ids = getattr(spec_metadata, "request_ids", None)
    if ids is None:
        return
    rows = getattr(spec_metadata, _ROWS, None)
    if rows is None or rows.numel() < len(ids):
        size = max(int(getattr(spec_metadata, "max_num_requests", 0) or 0), len(ids))
        # Static: a captured graph keeps reading this one.
        rows = torch.zeros(size, dtype=torch.bool, device=_device_of(spec_metadata))
        setattr(spec_metadata, _ROWS, rows)
    flags = torch.zeros(rows.numel(), dtype=torch.bool)
    flags[: len(ids)] = torch.tensor([0 < i < FIRST_PADDING_ID for i in ids], dtype=torch.bool)
    if rows.is_cuda:
        flags = flags.pin_memory()
    rows.copy_(flags, non_blocking=True)


@contextlib.contextmanager
def outermost() -> Iterator[bool]:
    """Whether this is the outermost model of a pass: a wrapper and its text model count once."""
    if _recorder is None or _is_counting.get():
        yield False
        return
    token = _is_counting.set(True)
    try:
        yield True
    finally:
        _is_counting.reset(token)


def count(result: Any, num_contexts: int, num_seqs: int, spec_metadata: Any) -> None:
    """Counts what a pass accepted.

    Args:
        result: What the model returned; anything but a worker's result is left alone.
        num_contexts: Rows of prompts, which come first; taken before the pass, which changes it.
        num_seqs: Rows of the pass, padding included.
        spec_metadata: The host's metadata of the pass.
    """
    lengths = result.get("new_tokens_lens") if isinstance(result, dict) else None
    if _recorder is None or lengths is None or spec_metadata is None:
        return
    drafts = getattr(spec_metadata, "runtime_draft_len", None)
    if drafts is None:
        drafts = _recorder.max_draft_len
    rows = getattr(spec_metadata, _ROWS, None)
    _recorder.add(
        lengths[num_contexts:num_seqs],
        None if rows is None else rows[num_contexts:num_seqs],
        min(int(drafts), _recorder.max_draft_len),
    )


def read_folder(folder: str | os.PathLike[str]) -> AcceptanceStats:
    """Adds up the last lines of all files in a folder.

    Ranks that split one model see the same requests, so the first of them speaks for all; with
    attention-DP each has its own.
    """
    total = AcceptanceStats()
    for path in sorted(Path(folder).glob(_FILES)):
        lines = path.read_text(encoding="utf-8").splitlines()
        if not lines:
            continue
        last = json.loads(lines[-1])
        if last["attention_dp"] or last["rank"] == 0:
            total.merge(_from_counts(last["steps_per_position"], last["accepted_per_position"]))
    return total


def read_settled(
    folder: str | os.PathLike[str], sleep: Callable[[float], None] = time.sleep
) -> AcceptanceStats:
    """As `read_folder`, once an idle server has written what it counted.

    A pass that ended just before a tick is told by the tick after the next, so this waits until the
    folder stayed as it is for two intervals.
    """
    found, quiet = read_folder(folder), 0.0
    while quiet < (needed := 2 * _interval(folder) + _IDLE_SECONDS):
        pause = min(_LOOK_SECONDS, needed - quiet)
        sleep(pause)
        now = read_folder(folder)
        quiet = quiet + pause if now == found else 0.0
        found = now
    return found


def _interval(folder: str | os.PathLike[str]) -> float:
    """Seconds between the lines of the folder's newest file; this process's setting without one."""
    files = sorted(Path(folder).glob(_FILES), key=lambda path: path.stat().st_mtime)
    lines = files[-1].read_text(encoding="utf-8").splitlines() if files else []
    own: float = envs.get(INTERVAL)
    return float(json.loads(lines[-1]).get("interval", own)) if lines else own


def _from_counts(steps: list[int], accepted: list[int]) -> AcceptanceStats:
    return AcceptanceStats(
        num_steps=steps[0] if steps else 0,
        num_drafted=sum(steps),
        num_accepted=sum(accepted),
        steps_per_position=list(steps),
        accepted_per_position=list(accepted),
    )


def _device_of(spec_metadata: Any) -> torch.device:
    """Where the host keeps this metadata's tensors."""
    for name in ("hidden_states", "batch_indices_cuda"):
        tensor = getattr(spec_metadata, name, None)
        if isinstance(tensor, torch.Tensor):
            return tensor.device
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
