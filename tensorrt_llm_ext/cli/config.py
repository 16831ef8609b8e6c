# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""`trtllm-ext config`: the YAML and the command that serve a pair with TensorRT-LLM."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tensorrt_llm_ext.cli import config_options as of
from tensorrt_llm_ext.cli.options import AsJson, Boundaries, MaxDraftLen, integers
from tensorrt_llm_ext.cli.output import to_json
from tensorrt_llm_ext.errors import ConfigError

if TYPE_CHECKING:
    from tensorrt_llm_ext.planning.serve_config import ServePlan

_EXIT_CANNOT_SERVE = 1

EPILOG = (
    "[bold]Output[/bold]: the YAML, with the launch line and the warnings as comments; warnings "
    "also go to standard error, so `> extra.yaml` works. What a version takes is read from its "
    "sources and was not run.\n\n"
    "[bold]Exit code[/bold]: 1 when that version cannot serve the pair, neither alone nor with "
    "this package's extension, or when the GPUs cannot hold it in that layout; 2 for "
    "bad input."
)


def config(
    target: of.Target,
    draft: of.Draft,
    trtllm_version: of.TrtllmVersion,
    gpus: of.Gpus,
    layout: of.Layout = "tp",
    expert_parallel: of.ExpertParallel = None,
    max_draft_len: MaxDraftLen = 3,
    boundaries: Boundaries = None,
    draft_len_schedule: of.DraftLenSchedule = None,
    kv_dtype: of.KvDtype = "auto",
    max_batch_size: of.MaxBatchSize = 64,
    max_seq_len: of.MaxSeqLen = None,
    max_num_tokens: of.MaxNumTokens = None,
    free_gpu_memory_fraction: of.FreeGpuMemoryFraction = 0.8,
    block_reuse: of.BlockReuse = True,
    chunked_prefill: of.ChunkedPrefill = False,
    guided_decoding: of.GuidedDecoding = False,
    disaggregated: of.Disaggregated = False,
    env: of.Env = None,
    output: of.Output = None,
    as_json: AsJson = False,
) -> None:
    """Write the YAML for `trtllm-serve` and its launch line, with what is known to go wrong."""
    from tensorrt_llm_ext.planning.serve_config import ServeOptions, plan_serving

    options = ServeOptions(
        era=_era(trtllm_version),
        gpus=gpus,
        layout=layout,
        expert_parallel=expert_parallel,
        max_draft_len=max_draft_len,
        draft_len_schedule=_schedule(draft_len_schedule),
        kv_dtype=kv_dtype,
        max_batch_size=max_batch_size,
        max_seq_len=max_seq_len,
        max_num_tokens=max_num_tokens,
        free_gpu_memory_fraction=free_gpu_memory_fraction,
        enable_block_reuse=block_reuse,
        enable_chunked_prefill=chunked_prefill,
        guided_decoding=guided_decoding,
        disaggregated=disaggregated,
        env=_environment(env or []),
        config_file=str(output) if output is not None else "extra.yaml",
    )
    override = integers(boundaries, "--boundaries")

    # Not before, so that --help and bad input do not wait for torch.
    from tensorrt_llm_ext.checkpoints.serving import read_serve_pair

    plan = plan_serving(read_serve_pair(target, draft, boundaries=override), options)
    _write(plan, output, as_json=as_json)
    if plan.impossible or not (plan.verdict.can_serve or plan.verdict.with_extension):
        raise typer.Exit(_EXIT_CANNOT_SERVE)


def _write(plan: ServePlan, output: Path | None, *, as_json: bool) -> None:
    text = plan.yaml
    if as_json:
        text = to_json(plan) + "\n"
    if output is None:
        typer.echo(text, nl=False)
    else:
        try:
            output.write_text(text, encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"--output {output} cannot be written: {error.strerror}.") from error
        typer.echo(plan.launch)
    for warning in plan.warnings:
        typer.secho(f"warning: {warning}", err=True, fg=typer.colors.YELLOW)


def _era(version: str) -> str:
    """Returns "1.3" for "1.3.0rc20"; what is no version stays as it is, to be refused."""
    match = re.match(r"v?(\d+\.\d+)(?:\.|$)", version)
    return match[1] if match else version


def _schedule(text: str | None) -> dict[int, int] | None:
    if text is None:
        return None
    schedule: dict[int, int] = {}
    for item in text.split(","):
        size, colon, length = (part.strip() for part in item.partition(":"))
        if not colon or not size.isdecimal() or not length.isdecimal() or int(size) in schedule:
            raise ConfigError(
                f"--draft-len-schedule {text!r}: expected BATCH:LENGTH pairs with different batch "
                "sizes, for instance 16:3,64:1."
            )
        schedule[int(size)] = int(length)
    return schedule


def _environment(items: list[str]) -> dict[str, str]:
    result: dict[str, str] = {}
    for item in items:
        name, equals, value = item.partition("=")
        if not equals:
            raise ConfigError(f"--env {item!r}: expected NAME=VALUE.")
        result[name] = value
    return result


__all__ = ["EPILOG", "config"]
