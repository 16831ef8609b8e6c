# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""`trtllm-ext bench`: the group of commands that measure."""

from __future__ import annotations

import typer

from tensorrt_llm_ext.cli import bench_acceptance, bench_e2e, bench_op, bench_warmup

app = typer.Typer(
    name="bench",
    no_args_is_help=True,
    help="Measure: acceptance, serving with and without the draft, single operations.",
)
app.command(epilog=bench_acceptance.EPILOG)(bench_acceptance.acceptance)
app.command(epilog=bench_e2e.EPILOG)(bench_e2e.e2e)
app.command(epilog=bench_op.EPILOG)(bench_op.op)
app.command(epilog=bench_warmup.EPILOG)(bench_warmup.warmup)
