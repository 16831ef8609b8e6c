# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""`LLM`: the leader, and the worker processes that it starts."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from trtllm_double.args import TorchLlmArgs
from trtllm_double.basics import Mapping
from trtllm_double.executor import COUNTERS, PyExecutor, Request, split_requests


@dataclass
class SamplingParams:
    """Greedy only."""

    max_tokens: int = 32
    temperature: float | None = None
    end_id: int | None = None


@dataclass
class CompletionOutput:
    """One text."""

    index: int
    text: str
    token_ids: list[int]


@dataclass
class RequestOutput:
    """What came of one prompt."""

    request_id: int
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput] = field(default_factory=list)
    avg_decoded_tokens_per_iter: float | None = None


def serve_rank(args: TorchLlmArgs, mapping: Mapping, executor: Any, work: list[Any]) -> list[Any]:
    """Runs one list of (id, tokens, max_tokens, end_id) on this rank; returns its results."""
    requests = [
        Request(number, list(tokens), most, end, num_prompt=len(tokens))
        for number, tokens, most, end in work
    ]
    mine = list(split_requests(requests, mapping)) if executor.is_dp else requests
    executor.run(mine)
    return [(r.request_id, r.output, r.num_steps) for r in mine]


def worker_main(
    engine: Any,
    worker_queues: Any,
    log_level: str = "error",
    _torch_model_class_mapping: dict[str, type] | None = None,
    llm_args: TorchLlmArgs | None = None,
    **_: Any,
) -> None:
    """A worker process: knows what was pickled to it, and its own environment."""
    from trtllm_double import modules

    mapping_of = modules.namespace("_torch.models.modeling_utils")["MODEL_CLASS_MAPPING"]
    mapping_of.update(_torch_model_class_mapping or {})
    rank, world, store = worker_queues
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    torch.set_num_threads(1)
    mapping = Mapping(world, rank, world, llm_args.enable_attention_dp)
    executor = PyExecutor(llm_args, mapping)
    reply(("ready", describe(executor)))
    while True:
        kind, payload = pickle.load(sys.stdin.buffer)
        if kind == "stop":
            break
        done = serve_rank(llm_args, mapping, executor, payload)
        reply((done, executor.stats))
    dist.destroy_process_group()


def describe(executor: PyExecutor) -> dict[str, Any]:
    """What tests want to know of a worker."""
    draft = getattr(executor.model, "draft_model", None)
    spec = executor.spec_metadata
    return {
        "target_class": f"{type(executor.model).__module__}.{type(executor.model).__name__}",
        "draft_class": None
        if draft is None
        else f"{type(draft).__module__}.{type(draft).__name__}",
        "layers_to_capture": None if spec is None else list(spec.layers_to_capture),
        "path": list(sys.path),
    }


def reply(message: Any) -> None:
    """Sends one object to the leader."""
    data = pickle.dumps(message)
    with os.fdopen(os.dup(int(os.environ["TRTLLM_DOUBLE_REPLY"])), "wb") as out:
        out.write(len(data).to_bytes(8, "little") + data)


class _Worker:
    """A child process and its pipes."""

    def __init__(self, rank: int, world: int, store: str, payload: dict[str, Any]) -> None:
        self.reader, writer = os.pipe()
        command = [sys.executable, "-m", "trtllm_double.worker"]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            pass_fds=(writer,),
            env={**os.environ, "TRTLLM_DOUBLE_REPLY": str(writer)},
        )
        os.close(writer)
        self.send({**payload, "worker_queues": (rank, world, store)})

    def send(self, message: Any) -> None:
        pickle.dump(message, self.process.stdin)
        self.process.stdin.flush()

    def receive(self) -> Any:
        head = self._read(8)
        return pickle.loads(self._read(int.from_bytes(head, "little")))

    def _read(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            part = os.read(self.reader, count - len(data))
            if not part:
                raise RuntimeError("Executor worker returned error: it died, see its output above")
            data += part
        return data

    def stop(self) -> None:
        if self.process.poll() is None:
            self.send(("stop", None))
            self.process.wait(timeout=60)
        os.close(self.reader)


class LLM:
    """The Python API."""

    def __init__(self, model: Any, **kwargs: Any) -> None:
        from trtllm_double import modules

        given = {name: value for name, value in kwargs.items() if value is not None}
        given.pop("tokenizer_mode", None)
        self.args = TorchLlmArgs(model=model, **given)
        self._workers: list[_Worker] = []
        self._stats: dict[str, Any] = {}
        self._numbers = 1
        world = self.args.tensor_parallel_size
        self._executor = None
        if world == 1 and os.environ.get("TLLM_WORKER_USE_SINGLE_PROCESS") == "1":
            self._mapping = Mapping()
            self._executor = PyExecutor(self.args, self._mapping)
            self.info = [describe(self._executor)]
            return
        self._folder = tempfile.TemporaryDirectory()
        classes = modules.namespace("_torch.models.modeling_utils")["MODEL_CLASS_MAPPING"]
        payload = {"_torch_model_class_mapping": dict(classes), "llm_args": self.args}
        store = f"{self._folder.name}/store"
        self._workers = [_Worker(rank, world, store, payload) for rank in range(world)]
        self.info = [worker.receive()[1] for worker in self._workers]

    def generate(self, inputs: Any, sampling_params: SamplingParams | None = None) -> Any:
        """Answers prompts, texts or token ids."""
        params = sampling_params or SamplingParams()
        is_one = isinstance(inputs, str) or (bool(inputs) and isinstance(inputs[0], int))
        prompts = [self._encode(p) for p in ([inputs] if is_one else inputs)]
        end = self._end_id() if params.end_id is None else params.end_id
        work = [(self._numbers + i, p, params.max_tokens, end) for i, p in enumerate(prompts)]
        self._numbers += len(work)
        results = self._run(work)
        outputs = []
        for number, prompt, _, _ in work:
            tokens, steps = results[number]
            text = self._tokenizer().decode(tokens) if self._tokenizer() else ""
            average = len(tokens) / max(steps, 1)
            made = [CompletionOutput(0, text, tokens)]
            outputs.append(RequestOutput(number, prompt, made, average))
        return outputs[0] if is_one else outputs

    def _run(self, work: list[Any]) -> dict[int, tuple[list[int], int]]:
        if self._executor is not None:
            done = serve_rank(self.args, self._mapping, self._executor, work)
            self._stats = self._executor.stats
            return {number: (tokens, steps) for number, tokens, steps in done}
        for worker in self._workers:
            worker.send(("work", work))
        found: dict[int, tuple[list[int], int]] = {}
        replies = [worker.receive() for worker in self._workers]
        for done, _ in replies:
            found |= {number: (tokens, steps) for number, tokens, steps in done}
        counted = [stats for _, stats in replies]
        self._stats = counted[0] if not self.args.enable_attention_dp else _total(counted)
        return found

    def spec_stats(self) -> dict[str, Any]:
        """The double's own count of acceptance."""
        return self._stats

    def _encode(self, prompt: Any) -> list[int]:
        return self._tokenizer().encode(prompt).ids if isinstance(prompt, str) else list(prompt)

    def _tokenizer(self) -> Any:
        if not hasattr(self, "_loaded"):
            from tokenizers import Tokenizer

            path = Path(self.args.tokenizer or self.args.model) / "tokenizer.json"
            self._loaded = Tokenizer.from_file(str(path)) if path.is_file() else None
        return self._loaded

    def _end_id(self) -> int:
        import json

        config = json.loads((Path(self.args.model) / "config.json").read_text(encoding="utf-8"))
        return config.get("eos_token_id", -1)

    def shutdown(self) -> None:
        """Ends the workers."""
        for worker in self._workers:
            worker.stop()
        self._workers = []

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: Any) -> None:
        self.shutdown()


def _total(stats: list[dict[str, Any]]) -> dict[str, Any]:
    total = {name: sum(s[name] for s in stats) for name in COUNTERS}
    rows = zip(*(s["per_position"] for s in stats), strict=True)
    return {**total, "per_position": [sum(row) for row in rows]}
