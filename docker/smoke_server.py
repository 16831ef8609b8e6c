# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""A `trtllm-serve` process: its config, its life, and prompts over its HTTP API."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

ENTRYPOINT = Path(__file__).with_name("entrypoint.sh")
_POLL_S = 0.5
_STOP_S = 60
_LOG_LINES = 40


class ServerError(RuntimeError):
    """The server did not come up, went away, or answered with an error."""


@dataclass(frozen=True, kw_only=True)
class Completion:
    """One answer.

    Attributes:
        token_ids: Generated tokens as the server returned them.
        finish_reason: "stop", or "length" at `max_tokens`.
        tokens_per_iteration: The server's own `avg_decoded_tokens_per_iter`, where it has one.
    """

    token_ids: tuple[int, ...]
    finish_reason: str
    tokens_per_iteration: float | None = None


@dataclass(frozen=True, kw_only=True)
class Launch:
    """How to start a server.

    Attributes:
        model: Folder of the target.
        config: What the YAML says.
        config_option: `--config`, or its older spelling.
        port: Where it listens.
        folder: Where YAML and log are written.
        name: Of these files.
        command: What starts the host's server; other programs only in tests.
    """

    model: Path
    config: Mapping[str, Any]
    config_option: str
    port: int
    folder: Path
    name: str
    command: tuple[str, ...] = ("bash", str(ENTRYPOINT), "trtllm-serve")

    @property
    def log(self) -> Path:
        """The server's output."""
        return self.folder / f"{self.name}.log"

    def arguments(self) -> list[str]:
        """Writes the YAML and returns the command line."""
        import yaml

        path = self.folder / f"{self.name}.yaml"
        text = yaml.safe_dump(dict(self.config), sort_keys=False)
        path.write_text(text, encoding="utf-8")
        words = [*self.command, str(self.model), "--backend", "pytorch"]
        words += ["--host", "127.0.0.1", "--port", str(self.port)]
        return [*words, self.config_option, str(path)]


class Server:
    """A running server; leaving the `with` block ends it and all that it started."""

    def __init__(self, launch: Launch, *, start_timeout_s: float) -> None:
        self._launch = launch
        self._timeout_s = start_timeout_s
        self._url = f"http://127.0.0.1:{launch.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Server:
        """Starts the server and waits until /health answers."""
        with self._launch.log.open("wb") as log:
            # A session of its own, so that its workers can be ended with it.
            self._process = subprocess.Popen(
                self._launch.arguments(),
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            self._wait_for_health(self._process)
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Ends the server."""
        self._stop()

    def _wait_for_health(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + self._timeout_s
        while time.monotonic() < deadline:
            if process.poll() is not None:
                raise ServerError(
                    f"trtllm-serve ended with exit code {process.returncode} before it was "
                    f"healthy. The end of its log:\n{self.log_tail()}"
                )
            try:
                with urllib.request.urlopen(f"{self._url}/health", timeout=5):
                    return
            except OSError:
                time.sleep(_POLL_S)
        raise ServerError(
            f"trtllm-serve was not healthy after {self._timeout_s:.0f} s. Raise --start-timeout, "
            f"or see the end of its log:\n{self.log_tail()}"
        )

    def log_tail(self) -> str:
        """Returns the last lines of the server's output."""
        text = self._launch.log.read_text(encoding="utf-8", errors="replace")
        return "\n".join(text.splitlines()[-_LOG_LINES:])

    def complete(
        self, prompts: Sequence[Sequence[int]], *, max_tokens: int, concurrency: int
    ) -> list[Completion]:
        """Answers prompts greedily, so many at once.

        Args:
            prompts: Token ids.
            max_tokens: Of each answer.
            concurrency: Requests under way at once.
        """
        with ThreadPoolExecutor(concurrency) as pool:
            return list(pool.map(lambda prompt: self._complete(prompt, max_tokens), prompts))

    def _complete(self, prompt: Sequence[int], max_tokens: int) -> Completion:
        body = {
            "model": self._launch.model.name,
            "prompt": list(prompt),
            "max_tokens": max_tokens,
            "temperature": 0.0,
            "detokenize": False,  # with it the answer holds token ids in place of text
        }
        choice = self._post("/v1/completions", body)["choices"][0]
        if not choice.get("token_ids"):
            raise ServerError(
                "The server returned no token_ids for a request with detokenize: false, so tokens "
                f"cannot be compared. It returned the fields {', '.join(choice)}."
            )
        return Completion(
            token_ids=tuple(choice["token_ids"]),
            finish_reason=str(choice.get("finish_reason")),
            tokens_per_iteration=choice.get("avg_decoded_tokens_per_iter"),
        )

    def _post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        request = urllib.request.Request(
            f"{self._url}{path}",
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=600) as response:
                answer: dict[str, Any] = json.load(response)
                return answer
        except urllib.error.HTTPError as error:
            text = error.read().decode(errors="replace")[:1000]
            raise ServerError(f"{path} answered {error.code}: {text}") from error
        except OSError as error:
            raise ServerError(
                f"{path}: {error}. The end of the server's log:\n{self.log_tail()}"
            ) from error

    def _stop(self) -> None:
        process = self._process
        if process is None:
            return
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(process.pid, number)
            except ProcessLookupError:
                break
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                continue
            if number is not signal.SIGINT:
                break  # workers that outlive their parent get the second signal
        self._process = None
