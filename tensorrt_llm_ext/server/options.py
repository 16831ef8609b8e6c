# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Settings of a server beside those of its engine."""

from __future__ import annotations

from dataclasses import dataclass

from tensorrt_llm_ext.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """How requests are taken in.

    Attributes:
        model_name: Name under which the model is asked for.
        api_key: What clients must send as a bearer token; None for no check.
        max_body_bytes: Longest request body.
        max_concurrent: Requests in flight, waiting ones included; more get 429.
        max_prompts: Prompts of one request.
        max_choices: Choices of one prompt.
        request_seconds: After so long a request is ended with 408; None for no limit.
        shutdown_seconds: How long requests may finish at shutdown before they fail.
        chat_template: Template text in place of the tokenizer's own.
    """

    model_name: str
    api_key: str | None = None
    max_body_bytes: int = 4 << 20
    max_concurrent: int = 1024
    max_prompts: int = 256
    max_choices: int = 16
    request_seconds: float | None = 600.0
    shutdown_seconds: float = 30.0
    chat_template: str | None = None

    def __post_init__(self) -> None:
        """Refuses limits under which no request could be served."""
        for name in ("max_body_bytes", "max_concurrent", "max_prompts", "max_choices"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}.")
        for name in ("request_seconds", "shutdown_seconds"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ConfigError(f"{name} must be above 0, got {value}.")


__all__ = ["ServeOptions"]
