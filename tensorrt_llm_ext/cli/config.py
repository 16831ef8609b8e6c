# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""`trtllm-ext config`: the YAML and the command that serve a pair with TensorRT-LLM."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tensorrt_llm_ext.cli.options import AsJson, Boundaries, MaxDraftLen, integers
from tensorrt_llm_ext.errors import ConfigError

if TYPE_CHECKING:
    from tensorrt_llm_ext.planning.serve_config import ServePair, ServePlan

_PARALLEL, _SIZES, _USE, _OUTPUT = "Host and GPUs", "Sizes", "What is served", "Output"
_EXIT_CANNOT_SERVE = 1

EPILOG = (
    "[bold]Output[/bold]: the YAML, with the launch line and the warnings as comments; warnings "
    "also go to standard error, so `> extra.yaml` works. What a version takes is read from its "
    "sources and was not run.\n\n"
    "[bold]Exit code[/bold]: 1 when that version cannot serve the pair, neither alone nor with "
    "this package's extension as designed; 2 for bad input."
)


def config(
    target: Annotated[str, typer.Argument(help="Folder or hub id of the target.")],
    draft: Annotated[str, typer.Argument(help="Folder or hub id of the draft.")],
    trtllm_version: Annotated[
        str,
        typer.Option(
            metavar="1.2|1.3|1.4",
            help="Version of TensorRT-LLM; 1.3.0rc20 is 1.3.",
            rich_help_panel=_PARALLEL,
        ),
    ],
    gpus: Annotated[
        int, typer.Option(min=1, help="GPUs of one server.", rich_help_panel=_PARALLEL)
    ],
    layout: Annotated[
        str,
        typer.Option(
            metavar="tp|adp",
            help="tp splits attention over the GPUs (latency); adp is attention-DP (throughput).",
            rich_help_panel=_PARALLEL,
        ),
    ] = "tp",
    expert_parallel: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="GPUs to spread the experts over. Default: all for adp, 1 for tp.",
            rich_help_panel=_PARALLEL,
        ),
    ] = None,
    max_draft_len: MaxDraftLen = 3,
    draft_len_schedule: Annotated[
        str | None,
        typer.Option(
            help="Draft length by batch size, for instance 16:3,64:1.", rich_help_panel=_SIZES
        ),
    ] = None,
    kv_dtype: Annotated[
        str,
        typer.Option(
            metavar="auto|fp8|bf16",
            help="KV cache; auto is the target's.",
            rich_help_panel=_SIZES,
        ),
    ] = "auto",
    max_batch_size: Annotated[
        int, typer.Option(min=1, help="Requests running at once.", rich_help_panel=_SIZES)
    ] = 64,
    max_seq_len: Annotated[
        int | None,
        typer.Option(
            min=1, help="Prompt and answer. Default: the target's.", rich_help_panel=_SIZES
        ),
    ] = None,
    max_num_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens of one pass. Default: 8192.", rich_help_panel=_SIZES),
    ] = None,
    free_gpu_memory_fraction: Annotated[
        float,
        typer.Option(
            min=0.05,
            max=0.99,
            help="Share of free memory for the KV cache.",
            rich_help_panel=_SIZES,
        ),
    ] = 0.8,
    block_reuse: Annotated[
        bool, typer.Option(help="Share KV of equal prefixes.", rich_help_panel=_USE)
    ] = True,
    chunked_prefill: Annotated[
        bool, typer.Option("--chunked-prefill", help="Split prompts.", rich_help_panel=_USE)
    ] = False,
    guided_decoding: Annotated[
        bool, typer.Option("--guided-decoding", help="Structured output.", rich_help_panel=_USE)
    ] = False,
    disaggregated: Annotated[
        bool,
        typer.Option(
            "--disaggregated", help="Prefill and decode on different servers.", rich_help_panel=_USE
        ),
    ] = False,
    boundaries: Boundaries = None,
    env: Annotated[
        list[str] | None,
        typer.Option(help="NAME=VALUE for the worker processes.", rich_help_panel=_USE),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(help="File to write; otherwise standard output.", rich_help_panel=_OUTPUT),
    ] = None,
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
    plan = plan_serving(
        read_pair(target, draft, boundaries=integers(boundaries, "--boundaries")), options
    )
    _write(plan, output, as_json=as_json)
    if not (plan.verdict.can_serve or plan.verdict.with_extension):
        raise typer.Exit(_EXIT_CANNOT_SERVE)


def read_pair(target: str, draft: str, *, boundaries: tuple[int, ...] | None = None) -> ServePair:
    """Reads a target and a draft, from headers and JSON alone.

    Args:
        target: Folder or hub id of the target.
        draft: Folder or hub id of the draft.
        boundaries: The user's override of the captured boundaries.

    Raises:
        CheckpointError: If the files cannot be read or are unsafe.
        ConfigError: If the draft does not fit the target.
    """
    # Not before, so that --help does not wait for torch.
    from tensorrt_llm_ext.checkpoints import normalize
    from tensorrt_llm_ext.planning.serve_config import ServePair

    opened_target, opened_draft = normalize.open_target(target), normalize.open_draft(draft)
    target_config = normalize.target_config(opened_target)
    draft_config = normalize.draft_config(opened_draft, target_config, boundaries=boundaries)
    return ServePair(
        target=target_config,
        draft=draft_config,
        target_ref=_reference(target),
        draft_ref=_reference(draft),
        target_quant=opened_target.quant,
        draft_quant=opened_draft.quant,
        traits=opened_draft.traits(),
    )


def _reference(ref: str) -> str:
    """A server may start in another folder; hub ids stay as they are."""
    return os.path.abspath(ref) if os.path.isdir(ref) else ref


def _write(plan: ServePlan, output: Path | None, *, as_json: bool) -> None:
    text = plan.yaml
    if as_json:
        text = json.dumps(plan.to_dict(), ensure_ascii=False, indent=2, allow_nan=False) + "\n"
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
    result: dict[str, Any] = {}
    for item in items:
        name, equals, value = item.partition("=")
        if not equals:
            raise ConfigError(f"--env {item!r}: expected NAME=VALUE.")
        result[name] = value
    return result


__all__ = ["EPILOG", "config", "read_pair"]
