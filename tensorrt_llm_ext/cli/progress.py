# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Progress on standard error, so that standard output holds the result only."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)


@contextlib.contextmanager
def status(text: str) -> Iterator[None]:
    """Shows a spinner while something of unknown length runs."""
    with Console(stderr=True).status(f"{text} …"):
        yield


@contextlib.contextmanager
def progress_bar(text: str, total: int) -> Iterator[Callable[[int], None]]:
    """Shows a bar and yields the function that advances it."""
    columns = (TextColumn(text), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(text, total=total)

        def advance(count: int) -> None:
            progress.advance(task, count)

        yield advance


@contextlib.contextmanager
def bytes_bar(text: str) -> Iterator[Callable[[int, int], None]]:
    """Shows a bar and yields the function that takes the bytes done and the bytes to do."""
    columns = (TextColumn(text), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(text, total=None)

        def report(done: int, total: int) -> None:
            progress.update(task, completed=done, total=total)

        yield report


@contextlib.contextmanager
def stage_bar() -> Iterator[Callable[[str, int, int], None]]:
    """Shows one bar for stages of different lengths; yields what takes stage, done and total."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("loading", total=None)

        def advance(stage: str, done: int, total: int) -> None:
            progress.update(task, description=stage, completed=done, total=total)

        yield advance
