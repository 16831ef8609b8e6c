# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Serves the example models on a double, in this process or in worker processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorrt_llm_ext.benchmarking.problems import load_problems
from tests.trtllm.host import environment, use_host

EXAMPLE = Path(__file__).parents[2] / "examples" / "tiny_kimi"
K = 3


@dataclass(frozen=True)
class Served:
    """What came of some prompts."""

    tokens: list[list[int]]
    stats: dict[str, Any]
    info: list[dict[str, Any]]

    @property
    def acceptance(self) -> tuple[int, int]:
        return self.stats["verify_steps"], self.stats["accepted"]


def prompts(count: int) -> list[str]:
    """The first held-out problems."""
    return [p.prompt for p in load_problems(EXAMPLE / "heldout.jsonl", count)]


def target_for(era: str, unwrapped: Path, name: str = "target") -> Path:
    """1.2 does not know the Kimi wrapper."""
    return unwrapped if era == "e1" else EXAMPLE / name


@contextmanager
def environ(**values: str):
    """Sets variables for a while."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def serve(
    era: str,
    target: Path,
    draft: Path | None,
    texts: list[str],
    *,
    ours: bool = True,
    dtype: str = "float32",
    max_tokens: int = 24,
    layers: set[int] | None = None,
    before: Callable[[], None] | None = None,
    speculative: dict[str, Any] | None = None,
    **options: Any,
) -> Served:
    """Serves in this process, with or without this package's registration.

    `before` is called once the host can be imported, and may change it or this package.
    """
    with use_host(era), environ(TLLM_WORKER_USE_SINGLE_PROCESS="1"):
        if ours:
            from tensorrt_llm_ext.trtllm.plugin import register

            register()
        from tensorrt_llm import LLM, SamplingParams
        from tensorrt_llm.llmapi.llm_args import EagleDecodingConfig

        if before is not None:
            before()
        config = None
        if draft is not None:
            values = {"max_draft_len": K, "eagle3_layers_to_capture": layers} | (speculative or {})
            config = EagleDecodingConfig(speculative_model=str(draft), **values)
        with LLM(str(target), dtype=dtype, speculative_config=config, **options) as llm:
            done = llm.generate(texts, SamplingParams(max_tokens=max_tokens)) if texts else []
            tokens = [output.outputs[0].token_ids for output in done]
            return Served(tokens, llm.spec_stats(), llm.info)


_SCRIPT = """
import json, sys
import tensorrt_llm_ext
request = json.load(sys.stdin)
if request["ours"]:
    tensorrt_llm_ext.register()
from tensorrt_llm import LLM, SamplingParams
from tensorrt_llm.llmapi.llm_args import EagleDecodingConfig
speculative = EagleDecodingConfig(**request["speculative"])
with LLM(request["target"], speculative_config=speculative, **request["options"]) as llm:
    done = llm.generate(request["texts"], SamplingParams(max_tokens=request["max_tokens"]))
    tokens = [output.outputs[0].token_ids for output in done]
    print("RESULT" + json.dumps([tokens, llm.spec_stats(), llm.info]))
"""


def serve_in_workers(
    era: str,
    target: Path,
    draft: Path,
    texts: list[str],
    *,
    max_tokens: int = 60,
    variables: dict[str, str] | None = None,
    **options: Any,
) -> Served:
    """Serves in worker processes, which know what is pickled to them and no path of ours."""
    request = {
        "ours": True,
        "target": str(target),
        "speculative": {"max_draft_len": K, "speculative_model": str(draft)},
        "texts": texts,
        "max_tokens": max_tokens,
        "options": {"dtype": "float64", **options},
    }
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT],
        input=json.dumps(request),
        env=environment(era, **(variables or {})),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    line = next(x for x in done.stdout.splitlines() if x.startswith("RESULT"))
    return Served(*json.loads(line.removeprefix("RESULT")))
