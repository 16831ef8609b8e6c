# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""`trtllm-ext bench warmup`: which steps are captured as CUDA graphs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tensorrt_llm_ext.cli.options import AsJson, MaxDraftLen, integers
from tensorrt_llm_ext.cli.output import finish

if TYPE_CHECKING:
    from tensorrt_llm_ext.engine.warmup import WarmupReport

EPILOG = (
    "Reads config files only; no weights and no GPU are needed. Steps with prompt rows, penalties, "
    "biases or log-probabilities have no graph and run eagerly."
)


def warmup(
    model: Annotated[Path, typer.Argument(help="Folder of the target.")],
    draft: Annotated[Path | None, typer.Option(help="Folder of the draft.")] = None,
    max_draft_len: MaxDraftLen = 3,
    max_batch_size: Annotated[int, typer.Option(min=1, help="Requests running at once.")] = 8,
    batch_sizes: Annotated[
        str | None, typer.Option(help="Captured sizes, as 1,2,4 (default: the host's list).")
    ] = None,
    padding: Annotated[
        bool, typer.Option(help="Run a batch in the next larger captured size.")
    ] = False,
    max_seq_len: Annotated[
        int | None, typer.Option(min=2, help="Tokens of a request; the model's when not given.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the shapes that the engine captures when it starts, and their static buffers."""
    from tensorrt_llm_ext.checkpoints.loader import read_target_config
    from tensorrt_llm_ext.configs.engine import CudaGraphConfig
    from tensorrt_llm_ext.engine.cuda_graphs import describe
    from tensorrt_llm_ext.engine.settings import EngineConfig

    target = read_target_config(model)
    limit = target.max_position_embeddings
    engine = EngineConfig(
        max_batch_size=max_batch_size,
        max_num_tokens=max(2048, max_batch_size * (1 + max_draft_len)),
        max_seq_len=min(max_seq_len or limit, limit),
        max_draft_len=0 if draft is None else max_draft_len,
    )
    sizes = None if batch_sizes is None else integers(batch_sizes, "--batch-sizes")
    graphs = CudaGraphConfig(batch_sizes=sizes, enable_padding=padding)
    report = describe(graphs, engine, has_draft=draft is not None, vocab_size=target.vocab_size)
    finish(report, _show, as_json=as_json, exit_code=0)


def _show(report: WarmupReport) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table()
    for title in ("batch", "rows", "drafts", "tokens drawn", "static buffers"):
        table.add_column(title, justify="right")
    for row in report.rows:
        shape = row.shape
        table.add_row(
            str(shape.bucket),
            f"{shape.bucket} x {shape.query_len}",
            str(shape.draft_len),
            shape.kind.value,
            f"{row.static_bytes / 1024:,.1f} KiB",
        )
    console = Console()
    console.print(table)
    total = sum(row.static_bytes for row in report.rows) / 1024
    console.print(f"{len(report.rows)} graphs, {total:,.0f} KiB of static inputs", highlight=False)
