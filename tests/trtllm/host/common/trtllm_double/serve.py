# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""`trtllm-serve` of the double: the recorded options, and the part of its HTTP API that we use."""

from __future__ import annotations

import importlib
import json
import queue
import threading
import time
from concurrent.futures import Future
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import click

# How long the first request of a batch waits for company.
_GATHER_S = 0.02
_REQUEST_FIELDS = {
    "model", "prompt", "max_tokens", "temperature", "top_p", "top_k", "n", "seed", "stream",
    "detokenize", "ignore_eos", "stop", "add_special_tokens",
}  # fmt: skip


class _Batcher:
    """Hands what arrives within a moment to the engine together; the double's LLM takes lists."""

    def __init__(self, llm: Any) -> None:
        self._llm = llm
        self._waiting: queue.Queue[tuple[Any, int, Future[Any]]] = queue.Queue()
        threading.Thread(target=self._run, daemon=True).start()

    def submit(self, prompt: Any, max_tokens: int) -> Future[Any]:
        done: Future[Any] = Future()
        self._waiting.put((prompt, max_tokens, done))
        return done

    def _run(self) -> None:
        params = importlib.import_module("tensorrt_llm").SamplingParams
        while True:
            batch = [self._waiting.get()]
            deadline = time.monotonic() + _GATHER_S
            while (left := deadline - time.monotonic()) > 0:
                try:
                    batch.append(self._waiting.get(timeout=left))
                except queue.Empty:
                    break
            for size in {max_tokens for _, max_tokens, _ in batch}:
                same = [(prompt, done) for prompt, most, done in batch if most == size]
                try:
                    outputs = self._llm.generate([p for p, _ in same], params(max_tokens=size))
                except Exception as error:  # whatever the engine raises is the answer
                    for _, done in same:
                        done.set_exception(error)
                else:
                    for (_, done), output in zip(same, outputs, strict=True):
                        done.set_result(output)


class _Handler(BaseHTTPRequestHandler):
    """/health, /v1/models, /v1/completions."""

    batcher: _Batcher
    model: str

    def do_GET(self) -> None:
        if self.path == "/health":
            self._send(200, None)
        elif self.path == "/v1/models":
            self._send(200, {"object": "list", "data": [{"id": self.model, "object": "model"}]})
        else:
            self._send(404, {"detail": "Not Found"})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        unknown = sorted(body.keys() - _REQUEST_FIELDS)
        if self.path != "/v1/completions" or unknown or body.get("temperature") != 0:
            text = f"only greedy /v1/completions, and not the fields {unknown}"
            self._send(400, {"object": "error", "message": text})
            return
        prompts = body["prompt"]
        is_one = isinstance(prompts, str) or isinstance(prompts[0], int)
        waiting = [
            self.batcher.submit(prompt, body.get("max_tokens") or 16)
            for prompt in ([prompts] if is_one else prompts)
        ]
        try:
            outputs = [done.result() for done in waiting]
        except Exception as error:
            self._send(500, {"object": "error", "message": f"{type(error).__name__}: {error}"})
            return
        self._send(200, self._answer(body, outputs))

    def _answer(self, body: dict[str, Any], outputs: list[Any]) -> dict[str, Any]:
        in_text, choices = body.get("detokenize", True), []
        for index, output in enumerate(outputs):
            tokens = output.outputs[0].token_ids
            choices.append(
                {
                    "index": index,
                    "text": output.outputs[0].text if in_text else "",
                    "token_ids": None if in_text else tokens,
                    "finish_reason": "length" if len(tokens) >= body["max_tokens"] else "stop",
                    "avg_decoded_tokens_per_iter": output.avg_decoded_tokens_per_iter,
                }
            )
        return {"object": "text_completion", "model": self.model, "choices": choices}

    def _send(self, status: int, body: Any) -> None:
        data = b"" if body is None else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@click.command("serve")
@click.argument("model", type=str)
@click.option("--tokenizer", type=str)
@click.option("--custom_tokenizer", type=str)
@click.option("--host", type=str, default="localhost")
@click.option("--port", type=int, default=8000)
@click.option("--backend", type=click.Choice(["pytorch"]), default="pytorch")
@click.option("--custom_module_dirs", type=click.Path(exists=True, path_type=Path), multiple=True)
@click.option("--max_batch_size", type=int)
@click.option("--max_num_tokens", type=int)
@click.option("--max_seq_len", type=int)
@click.option("--tensor_parallel_size", "--tp_size", type=int, default=1)
@click.option("--trust_remote_code", is_flag=True)
@click.option("--config", "--extra_llm_api_options", "extra", type=str)
@click.option("--reasoning_parser", type=str)
@click.option("--tool_parser", type=str)
def serve(
    model: str,
    host: str,
    port: int,
    custom_module_dirs: tuple[Path, ...],
    extra: str | None,
    tokenizer: str | None,
    **options: Any,
) -> None:
    """Serves MODEL."""
    import yaml

    host_package = importlib.import_module("tensorrt_llm")
    place = "tensorrt_llm.tools.importlib_utils"
    for folder in custom_module_dirs:
        importlib.import_module(place).import_custom_module_from_dir(folder)
    names = ("backend", "max_batch_size", "max_num_tokens", "max_seq_len", "tensor_parallel_size")
    given = {name: options[name] for name in names if options[name] is not None}
    given |= {"model": model, "trust_remote_code": options["trust_remote_code"]}
    given |= {} if tokenizer is None else {"tokenizer": tokenizer}
    if extra is not None:
        laid_over = yaml.safe_load(Path(extra).read_text(encoding="utf-8"))
        update = importlib.import_module("tensorrt_llm.llmapi.llm_args")
        given = update.update_llm_args_with_extra_dict(given, laid_over)
    with host_package.LLM(**given) as llm:
        handler = type("Handler", (_Handler,), {"batcher": _Batcher(llm), "model": model})
        with ThreadingHTTPServer((host, port), handler) as server:
            click.echo(f"serving {model} on {host}:{port}")
            try:
                server.serve_forever()
            except KeyboardInterrupt:
                click.echo("ending")


class _DefaultGroup(click.Group):
    """A first word that is no subcommand is the model, as in the host."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args and args[0] not in self.commands:
            return "serve", self.commands["serve"], args
        return super().resolve_command(ctx, args)


main = _DefaultGroup(commands={"serve": serve})


if __name__ == "__main__":
    main()
