# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""`trtllm-ext bench op`: one op, its kernels and its rivals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tensorrt_llm_ext.cli.options import AsJson
from tensorrt_llm_ext.cli.output import finish

if TYPE_CHECKING:
    from tensorrt_llm_ext.benchmarking.op_bench import OpReport, OpResult

EPILOG = (
    "Results are checked first: each kernel against its reference over the op's hostile cases, "
    "then against the portable path at the timed shape. No time is printed of a failed check.\n\n"
    "Spread is from the first to the last decile. Names in brackets are rivals, whose results are "
    "compared with ours.\n\n"
    "On a CPU the torch path is timed, which says nothing of a GPU.\n\n"
    "[bold]Exit code[/bold]: 1 when a check failed, 2 for bad input."
)


def op(
    name: Annotated[
        str,
        typer.Argument(
            help="mla_decode, mla_prefill, mla_rope_append, draft_input_norm, latent_norm_pair, "
            "nvfp4_quantize, nvfp4_linear, moe_route, moe_experts, lm_head_argmax or verify.",
            metavar="NAME",
        ),
    ],
    shapes: Annotated[
        str | None,
        typer.Option(help="small, kimi, deepseek or thunder (default: kimi on a GPU, else small)."),
    ] = None,
    kernel: Annotated[
        list[str] | None, typer.Option(help="Only this kernel; may be repeated.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check one op's kernels, then time them beside the roofline and their rivals."""
    from tensorrt_llm_ext.benchmarking.op_bench import bench_op

    report = bench_op(
        name,
        shapes,
        kernels=kernel or (),
        progress=lambda what: typer.echo(f"... {what}", err=True),
    )
    finish(report, _show, as_json=as_json, exit_code=0 if report.is_right else 1)


def _show(report: OpReport) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    best = report.roofline
    if not report.is_gpu:
        console.print("[bold]CPU: this times the torch path and says nothing of a GPU.[/bold]")
    console.print(
        f"{report.device}, {report.dtype}: copies {best.bytes_per_s / 1e9:,.0f} GB/s, multiplies "
        f"{best.flops_per_s / 1e12:,.2f} TFLOP/s, measured now",
        highlight=False,
    )
    table = Table()
    for title in ("shape", "kernel"):
        table.add_column(title, no_wrap=True)
    for title in ("median", "spread", "GB/s", "TFLOP/s", "roofline", "checked"):
        table.add_column(title, justify="right", no_wrap=True)
    for result in report.results:
        table.add_row(*(escape(cell) for cell in _cells(result)))
    console.print(table)
    for result in report.results:
        if result.timing is None:
            mark = "[bold red]WRONG[/bold red] " if result.is_wrong else ""
            place = escape(f"{result.shape}, {result.kernel}: {result.reason}")
            console.print(f"{mark}{place}", highlight=False)


def _cells(result: OpResult) -> list[str]:
    timing = result.timing
    name = f"[{result.kernel}]" if result.is_rival else result.kernel
    if timing is None:
        return [result.shape, name, "-", "-", "-", "-", "-", "-"]
    checked = "to ours" if result.is_rival else f"{result.num_cases} cases"
    return [
        result.shape,
        name,
        _duration(timing.median),
        f"{(timing.high - timing.low) / timing.median:.0%}",
        f"{result.gb_per_s or 0:,.1f}",
        f"{result.tflop_per_s or 0:,.3f}",
        f"{result.roofline or 0:.0%}",
        checked,
    ]


def _duration(seconds: float) -> str:
    return f"{seconds * 1e6:,.1f} us" if seconds < 1e-2 else f"{seconds * 1e3:,.1f} ms"
