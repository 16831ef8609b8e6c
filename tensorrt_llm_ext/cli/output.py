# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""How a report leaves a command: JSON for machines, or what the command shows people."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import typer


class Report(Protocol):
    """A report that machines can read."""

    def to_dict(self) -> dict[str, Any]:
        """Returns everything as plain data, without NaN and infinities."""
        ...


R = TypeVar("R", bound=Report)


def to_json(report: Report) -> str:
    """Returns a report as JSON text."""
    return json.dumps(report.to_dict(), ensure_ascii=False, indent=2, allow_nan=False)


def finish(report: R, show: Callable[[R], None], *, as_json: bool, exit_code: int) -> None:
    """Prints a report and ends the command.

    Args:
        report: What was found.
        show: Prints it for people.
        as_json: Whether machines read it.
        exit_code: Of the command; 0 returns.
    """
    if as_json:
        typer.echo(to_json(report))
    else:
        show(report)
    if exit_code:
        raise typer.Exit(exit_code)
