# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""The command `trtllm-ext`: its sub-commands, and the edge where errors become messages."""

from __future__ import annotations

import logging
import sys
from typing import Annotated

import typer

from tensorrt_llm_ext import __version__, envs
from tensorrt_llm_ext.cli import (
    bench,
    canary,
    config,
    convert,
    doctor,
    generate,
    quantize,
    serve,
)
from tensorrt_llm_ext.errors import ExtError

# Bad input, as with command line tools in general; a failed comparison is 1.
EXIT_BAD_INPUT = 2

app = typer.Typer(
    name="trtllm-ext",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="NVFP4 MLA Eagle3 drafts with one-model speculative execution.",
)
app.command(epilog=generate.EPILOG)(generate.generate)
app.command(epilog=doctor.EPILOG)(doctor.doctor)
app.command(epilog=canary.EPILOG)(canary.canary)
app.command(epilog=convert.EPILOG)(convert.convert)
app.command(epilog=quantize.EPILOG)(quantize.quantize)
app.command(epilog=config.EPILOG)(config.config)
app.command(epilog=serve.EPILOG, context_settings=serve.CONTEXT)(serve.serve)
app.add_typer(bench.app)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"trtllm-ext {__version__}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """NVFP4 MLA Eagle3 drafts with one-model speculative execution."""
    logging.basicConfig(
        level=envs.get("TRTLLM_EXT_LOG_LEVEL"), format="%(levelname)s %(name)s: %(message)s"
    )
    envs.check()


def main() -> None:
    """Runs the command; what this package raises on purpose becomes one line and exit code 2."""
    try:
        app()
    except ExtError as error:
        message = " ".join(str(error).split())
        typer.echo(f"error: {message}", err=True)
        sys.exit(EXIT_BAD_INPUT)
