# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Errors as OpenAI's clients read them."""

from __future__ import annotations

from typing import Any


class ApiError(Exception):
    """What a client gets in place of an answer.

    Attributes:
        status: HTTP status.
        message: What was wrong, what was expected, what to do.
        kind: OpenAI's `type`.
        param: The field at fault.
        code: OpenAI's `code`.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.kind = status, message, kind
        self.param, self.code = param, code

    def body(self) -> dict[str, Any]:
        """OpenAI's error body."""
        error = {"message": self.message, "type": self.kind, "param": self.param}
        return {"error": {**error, "code": self.code}}


def bad_request(message: str, param: str | None = None) -> ApiError:
    """A request that cannot be served as it is."""
    return ApiError(400, message, param=param)


__all__ = ["ApiError", "bad_request"]
