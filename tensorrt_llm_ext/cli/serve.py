# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""`trtllm-ext serve`: the embedded engine behind the OpenAI API."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import typer

from tensorrt_llm_ext.cli import serve_options as of
from tensorrt_llm_ext.cli.options import MaxDraftLen
from tensorrt_llm_ext.errors import ConfigError

# trtllm-serve spells its options with underscores.
CONTEXT = {"token_normalize_func": lambda name: name.replace("_", "-")}
EPILOG = (
    "The YAML is that of `trtllm-serve --config`. Fields that change no result here, such as "
    "moe_config or tensor_parallel_size, are accepted and logged; "
    "unknown ones and those that would change results are refused.\n\n"
    "[bold]Routes[/bold]: /v1/completions, /v1/chat/completions, /v1/models, /health, "
    "/health_generate, /metrics, /prometheus/metrics, /version. Requests default to temperature 1, "
    "as OpenAI's do. `return_spec_stats: true` adds acceptance to a response."
)


def serve(
    model: of.Model,
    draft: of.Draft = None,
    max_draft_len: MaxDraftLen = 3,
    config: of.Config = None,
    host: of.Host = "127.0.0.1",
    port: of.Port = 8000,
    served_model_name: of.ServedModelName = None,
    chat_template: of.ChatTemplate = None,
    custom_tokenizer: of.CustomTokenizer = None,
    trust_remote_code: of.TrustRemoteCode = False,
    device: of.Device = None,
    dtype: of.Dtype = "auto",
    api_key: of.ApiKey = None,
    log_level: of.LogLevel = of.Level.INFO,
    max_batch_size: of.MaxBatchSize = None,
    max_seq_len: of.MaxSeqLen = None,
    max_concurrent: of.MaxConcurrent = 1024,
    max_body_bytes: of.MaxBodyBytes = 4 << 20,
    request_seconds: of.RequestSeconds = 600.0,
    shutdown_seconds: of.ShutdownSeconds = 30.0,
) -> None:
    """Serve a target, with its draft, behind the OpenAI API."""
    try:
        from tensorrt_llm_ext.server.app import create_app
        from tensorrt_llm_ext.server.options import ServeOptions
        from tensorrt_llm_ext.server.runner import run_server
    except ImportError as error:
        raise ConfigError(
            f"{error.name} is not installed. Run: pip install 'tensorrt-llm-ext[serve]'"
        ) from error
    logging.getLogger("tensorrt_llm_ext").setLevel(log_level.value)
    from tensorrt_llm_ext.engine.llm import LLM
    from tensorrt_llm_ext.server.yaml_config import engine_arguments, read_yaml

    options = ServeOptions(
        model_name=served_model_name or os.path.basename(os.path.normpath(model)),
        api_key=api_key,
        max_body_bytes=max_body_bytes,
        max_concurrent=max_concurrent,
        request_seconds=request_seconds or None,
        shutdown_seconds=shutdown_seconds,
        chat_template=None if chat_template is None else _text(chat_template),
    )
    arguments: dict[str, Any] = {"device": device, "dtype": dtype}
    arguments |= engine_arguments({} if config is None else read_yaml(config))
    given = {"max_batch_size": max_batch_size, "max_seq_len": max_seq_len}
    arguments |= {name: value for name, value in given.items() if value is not None}
    if custom_tokenizer is not None:
        arguments["tokenizer"] = str(custom_tokenizer)
    arguments.setdefault("trust_remote_code", trust_remote_code)
    if draft is not None:
        arguments["speculative_config"] = {
            **(arguments.get("speculative_config") or {"decoding_type": "Eagle3"}),
            "speculative_model": str(draft),
        }
        arguments["speculative_config"].setdefault("max_draft_len", max_draft_len)
    with LLM(model=str(model), **arguments) as llm:
        app = create_app(llm, options)
        run_server(app, host, port, lambda real: _ready(host, real)).run()


def _ready(host: str, port: int) -> None:
    shown = f"[{host}]" if ":" in host else host
    typer.echo(f"Serving on http://{shown}:{port}", err=True)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"The chat template {path} cannot be read: {error}") from error
