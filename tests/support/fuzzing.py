# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Opens damaged checkpoints and tells a proper refusal from a fault.

Run as `python -m tests.support.fuzzing FIRST LAST FOLDER [MEGABYTES]` it tries the cases FIRST to
LAST - 1 under a memory limit and prints the faults as JSON.
"""

from __future__ import annotations

import copy
import itertools
import json
import logging
import pickle
import random
import resource
import shutil
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from tensorrt_llm_ext.checkpoints import loader, normalize
from tensorrt_llm_ext.checkpoints.checks import run_checks
from tensorrt_llm_ext.checkpoints.checks.base import CheckContext
from tensorrt_llm_ext.checkpoints.io import CheckpointFiles
from tensorrt_llm_ext.errors import ExtError
from tensorrt_llm_ext.models.deepseek import DeepseekV3
from tests.support.mutations import Files, mutate, write
from tests.support.tiny_checkpoints import (
    draft_json,
    draft_shapes,
    random_tensors,
    target_json,
    write_draft,
    write_target,
)

# For one case. A busy machine stretches the first and not the second.
MAX_SECONDS = 60.0
MAX_BUSY_SECONDS = 5.0


@dataclass(kw_only=True)
class Tally:
    """Outcomes of many cases."""

    outcomes: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    slowest: float = 0.0


class Bench:
    """The intact folders, in memory, and a loaded target for the drafts that get through."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._cases = folder / "cases"
        self._cases.mkdir(parents=True)
        # What damaged folders may link to, and must not be given.
        (self._cases / "elsewhere.json").write_text("{}", encoding="utf-8")
        self.target_folder = folder / "target"
        write_target(self.target_folder)
        self.target: DeepseekV3 = loader.load_target(self.target_folder)
        self.drafts = [self._read(path) for path in self._write_drafts()]
        shutil.copy(folder / "draft0" / "model.safetensors", self._cases / "elsewhere.safetensors")
        self.targets = [self._read(self.target_folder), self._read(self._write_wrapped_target())]

    def _write_drafts(self) -> Iterator[Path]:
        paths = [self._folder / f"draft{i}" for i in range(4)]
        write_draft(paths[0])
        pruned = draft_json(draft_vocab_size=16, fc_norm=True, norm_output=True)
        write_draft(paths[1], pruned, embedding=True, rename=lambda name: f"model.{name}")
        _shard(paths[1])
        write_draft(paths[2], rename=lambda name: name.replace("layers.0.", "midlayer."))
        _quantized(paths[3])
        return iter(paths)

    def _write_wrapped_target(self) -> Path:
        path = self._folder / "wrapped"
        write_target(path, target_json(num_hidden_layers=8), wrapper=True, max_shard_bytes=40_000)
        return path

    def _read(self, folder: Path) -> Files:
        return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}

    def case(self, seed: int) -> tuple[Path, list[str], bool]:
        """Writes one damaged folder; returns it, what was done, and whether it is a draft."""
        rng = random.Random(seed)
        is_draft = rng.random() < 0.8
        files = copy.copy(rng.choice(self.drafts if is_draft else self.targets))
        done = mutate(files, rng)
        folder = self._cases / str(seed)
        write(files, folder)
        return folder, done, is_draft


def _shard(folder: Path) -> None:
    """Rewrites a single-file checkpoint as shards with an index."""
    from safetensors.torch import load_file

    from tensorrt_llm_ext.checkpoints.writer import save_checkpoint

    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    tensors = load_file(folder / "model.safetensors")
    shutil.rmtree(folder)
    save_checkpoint(folder, config, tensors, max_shard_bytes=20_000)


def _quantized(folder: Path) -> None:
    """Writes a draft whose MLP is NVFP4 by dtypes and names, with ModelOpt's metadata."""
    from tensorrt_llm_ext.checkpoints.writer import save_checkpoint

    tensors = random_tensors(draft_shapes(draft_json()), dtype=torch.bfloat16)
    for name in [name for name in tensors if ".mlp." in name]:
        rows, columns = tensors.pop(name).shape
        tensors[name] = torch.zeros(rows, columns // 2, dtype=torch.uint8)
        tensors[f"{name}_scale"] = torch.ones(rows, columns // 16).to(torch.float8_e4m3fn)
        tensors[f"{name}_scale_2"] = torch.tensor(0.01)
        tensors[name.replace(".weight", ".input_scale")] = torch.tensor(0.01)
    quantization = {
        "quant_algo": "NVFP4",
        "kv_cache_quant_algo": "FP8",
        "group_size": 16,
        "exclude_modules": ["fc", "lm_head", "layers.0.self_attn*"],
    }
    document = {"producer": {"name": "modelopt", "version": "1"}, "quantization": quantization}
    save_checkpoint(folder, draft_json(), tensors)
    text = json.dumps(document)
    (folder / "hf_quant_config.json").write_text(text, encoding="utf-8")


def run(bench: Bench, seeds: range) -> Tally:
    """Tries the cases; an outcome other than a refusal or a sound load is a fault."""
    tally = Tally()
    with no_pickle(), _formatted_logs():
        for seed in seeds:
            folder, done, is_draft = bench.case(seed)
            begin, begin_busy = time.perf_counter(), time.process_time()
            outcome, fault = _try(_open_draft if is_draft else _open_target, bench, folder)
            seconds, busy = time.perf_counter() - begin, time.process_time() - begin_busy
            tally.outcomes[outcome] += 1
            tally.slowest = max(tally.slowest, busy)
            if busy > MAX_BUSY_SECONDS or seconds > MAX_SECONDS:
                fault = fault or f"took {seconds:.1f} s, {busy:.1f} s of them busy"
            if fault:
                tally.faults.append(f"case {seed} ({'; '.join(done)}): {fault}")
            shutil.rmtree(folder)
    return tally


def _try(
    opener: Callable[[Bench, Path], str], bench: Bench, folder: Path
) -> tuple[str, str | None]:
    try:
        return opener(bench, folder), None
    except ExtError as error:
        text = str(error)
        # A message goes to a terminal, and stays readable there.
        if len(text) > 4000 or not text.strip():
            return "refused", f"message of {len(text)} characters: {text[:200]!r}"
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            return "refused", f"message that cannot be printed: {text[:200]!r}"
        return "refused", None
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)
        lines = [f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in where[-4:]]
        return "fault", f"{type(error).__name__}: {str(error)[:200]} at {' < '.join(lines[::-1])}"


def _open_draft(bench: Bench, folder: Path) -> str:
    target = normalize.open_target(bench.target_folder)
    draft = normalize.open_draft(folder)
    _sound(draft.files)
    for finding in run_checks(CheckContext(draft=draft, target=target)):
        finding.message.encode("utf-8")
    run_checks(CheckContext(draft=draft))
    config = normalize.draft_config(draft, normalize.target_config(target))
    if not 1 <= min(config.boundaries) <= max(config.boundaries) <= 8:
        raise AssertionError(f"boundaries {config.boundaries}")
    try:
        loaded = loader.load_draft(folder, bench.target)
    except ExtError:
        return "judged, not loaded"
    for name, parameter in loaded.named_parameters():
        if not parameter.numel():
            raise AssertionError(f"{name} is empty")
    return "loaded"


def _open_target(bench: Bench, folder: Path) -> str:
    target = normalize.open_target(folder)
    _sound(target.files)
    draft = normalize.open_draft(bench.target_folder.parent / "draft0")
    for finding in run_checks(CheckContext(draft=draft, target=target)):
        finding.message.encode("utf-8")
    normalize.target_config(target)
    try:
        loader.load_target(folder)
    except ExtError:
        return "judged, not loaded"
    return "loaded"


def _sound(files: CheckpointFiles) -> None:
    """Every tensor lies in a file of the folder, and no two overlap."""
    spans: dict[Path, list[tuple[int, int, str]]] = {}
    for name, entry in files.entries.items():
        if entry.nbytes:
            spans.setdefault(entry.file, []).append((entry.begin, entry.begin + entry.nbytes, name))
    for file, found in spans.items():
        found.sort()
        if found[0][0] < 8 or found[-1][1] > file.stat().st_size:
            raise AssertionError(f"tensors outside {file.name}: {found[0]} {found[-1]}")
        for (_, end, name), (begin, _, other) in itertools.pairwise(found):
            if begin < end:
                raise AssertionError(f"{name} and {other} overlap in {file.name}")


@contextmanager
def no_pickle() -> Iterator[None]:
    """Makes every way to unpickle fail the test."""

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("a pickle was opened")

    with (
        mock.patch.object(torch, "load", refuse),
        mock.patch.object(pickle, "load", refuse),
        mock.patch.object(pickle, "loads", refuse),
        mock.patch.object(pickle, "Unpickler", refuse),
    ):
        yield


class _Formatting(logging.Handler):
    """Formats records, so that a faulty message is seen, and shows none of the thousands."""

    def emit(self, record: logging.LogRecord) -> None:
        record.getMessage()


@contextmanager
def _formatted_logs() -> Iterator[None]:
    logger, handler = logging.getLogger("tensorrt_llm_ext"), _Formatting()
    logger.addHandler(handler)
    propagate, logger.propagate = logger.propagate, False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagate


def main(first: int, last: int, folder: Path, megabytes: int = 1024) -> None:
    """Runs cases with at most this much memory more than the process has before the first."""
    torch.set_num_threads(1)
    bench = Bench(folder)
    with open("/proc/self/statm", encoding="ascii") as file:
        pages = int(file.read().split()[0])
    limit = pages * resource.getpagesize() + (megabytes << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    tally = run(bench, range(first, last))
    result = {"outcomes": tally.outcomes, "faults": tally.faults, "slowest": tally.slowest}
    print(json.dumps(result))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), *map(int, sys.argv[4:]))
