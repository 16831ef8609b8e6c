# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""`trtllm-ext doctor`: is this draft right for this target, and what is wrong with it?"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from tensorrt_llm_ext.cli import options
from tensorrt_llm_ext.cli.output import finish
from tensorrt_llm_ext.cli.progress import status
from tensorrt_llm_ext.errors import ConfigError

if TYPE_CHECKING:
    from tensorrt_llm_ext.trtllm.surface import HostReport

EPILOG = (
    "[bold]What is read[/bold]: config files, headers, tensors of at most 1 MiB and sampled rows; "
    "of a checkpoint on the hub likewise, by range requests. What must load weights says 'not "
    "checked' unless --deep is given.\n\n"
    "[bold]--trtllm[/bold] compares the installed TensorRT-LLM with what was recorded of its "
    "version from its sources (symbols, parameters, defaults), and lists what is patched.\n\n"
    "[bold]Exit codes[/bold]: 0 nothing wrong, 1 a check found an error, 2 bad usage.\n\n"
    "A wrong draft never gives a wrong answer, only a slow one. What no file can show (a shifted "
    "layer, a lost flag) is found by `trtllm-ext canary`."
)

TargetRevision: TypeAlias = Annotated[
    str | None, typer.Option(help="Revision of a target on the hub.")
]
DraftRevision: TypeAlias = Annotated[
    str | None, typer.Option(help="Revision of a draft on the hub.")
]


def doctor(
    target: Annotated[
        str | None, typer.Argument(help="Folder of the target, or its name on the hub.")
    ] = None,
    draft: Annotated[
        str | None, typer.Argument(help="Folder of the draft, or its name on the hub.")
    ] = None,
    boundaries: options.Boundaries = None,
    layers_to_capture: Annotated[
        str | None,
        typer.Option(
            help="eagle3_layers_to_capture of your host config, to be compared: 1,29,57.",
            show_default=False,
        ),
    ] = None,
    max_seq_len: Annotated[
        int | None, typer.Option(min=1, help="Length that you want to serve.")
    ] = None,
    max_draft_len: options.MaxDraftLen = 3,
    tree: Annotated[bool, typer.Option("--tree", help="Judge for tree drafting.")] = False,
    trtllm: Annotated[
        bool, typer.Option("--trtllm", help="Judge the installed TensorRT-LLM too.")
    ] = False,
    deep: Annotated[
        bool, typer.Option("--deep", help="Load the draft's weights and check them.")
    ] = False,
    target_revision: TargetRevision = None,
    draft_revision: DraftRevision = None,
    as_json: options.AsJson = False,
) -> None:
    """Check a target and a draft without running them: all checks, bytes, and who can serve it."""
    if (target is None) != (draft is None) or (target is None and not trtllm):
        raise ConfigError(
            "doctor judges a pair: give TARGET and DRAFT, both or neither; with --trtllm alone it "
            "judges the installed TensorRT-LLM."
        )

    host = None
    if trtllm:  # imports what is installed, which takes its time
        from tensorrt_llm_ext.trtllm.surface import judge_host

        host = judge_host()
    if target is None or draft is None:
        if host is not None:
            _show_host(host, as_json)
        return
    choice = {
        "boundaries": options.integers(boundaries, "--boundaries"),
        "layers_to_capture": options.integers(layers_to_capture, "--layers-to-capture"),
        "max_seq_len": max_seq_len,
        "max_draft_len": max_draft_len,
        "use_tree": tree,
        "deep": deep,
        "host": None if host is None else host.facts,
        "target_revision": target_revision,
        "draft_revision": draft_revision,
    }
    _judge_pair(target, draft, choice, host, as_json)


def _show_host(host: HostReport, as_json: bool) -> None:
    from tensorrt_llm_ext.cli.doctor_host import show_host

    finish(host, show_host, as_json=as_json, exit_code=host.exit_code)


def _judge_pair(
    target: str, draft: str, choice: dict[str, Any], host: HostReport | None, as_json: bool
) -> None:
    from tensorrt_llm_ext.cli.doctor_host import show_host
    from tensorrt_llm_ext.cli.doctor_report import show_report
    from tensorrt_llm_ext.diagnostics.doctor import DoctorOptions, examine

    with status("reading headers"):
        report = examine(target, draft, DoctorOptions(**choice))
    if host is None or host.version is None:
        finish(report, show_report, as_json=as_json, exit_code=report.exit_code)
        return
    if as_json:
        both = {**report.to_dict(), "trtllm": host.to_dict()}
        typer.echo(json.dumps(both, ensure_ascii=False, indent=2, allow_nan=False))
    else:
        show_report(report)
        show_host(host)
    if code := max(report.exit_code, host.exit_code):
        raise typer.Exit(code)
