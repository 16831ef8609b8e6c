# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Every environment variable of this package, as data.

Variables are for debugging; what a user sets on purpose is a config field. A row whose name ends in
`<OP>` is a family: one variable per public op. `ENVIRONMENT.md` is generated from these rows:

    python -m tensorrt_llm_ext.envs > ENVIRONMENT.md
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from tensorrt_llm_ext.errors import ConfigError, nearest, unknown_key_error

logger = logging.getLogger(__name__)

PREFIX = "TRTLLM_EXT_"
FAMILY_SUFFIX = "<OP>"


@dataclass(frozen=True, kw_only=True, slots=True)
class EnvVar:
    """One variable, or one family of variables.

    Attributes:
        name: Full name; a family ends in `<OP>`.
        kind: What the value is, for people.
        default: The value when the variable is unset or empty.
        help: One sentence on what it does.
        parse: Turns the text into a value; raises ValueError with what was expected.
    """

    name: str
    kind: str
    default: Any
    help: str
    parse: Callable[[str], Any] = str

    @property
    def is_family(self) -> bool:
        """Whether this row stands for one variable per op."""
        return self.name.endswith(FAMILY_SUFFIX)

    @property
    def stem(self) -> str:
        """The fixed part of a family's name; the whole name otherwise."""
        return self.name.removesuffix(FAMILY_SUFFIX)

    def matches(self, name: str) -> bool:
        """Whether `name` is this variable, or a member of this family."""
        if self.is_family:
            return name.startswith(self.stem) and len(name) > len(self.stem)
        return name == self.name


def _log_level(text: str) -> str:
    level = text.upper()
    if level not in ("DEBUG", "INFO", "WARNING", "ERROR"):
        raise ValueError("one of DEBUG, INFO, WARNING, ERROR")
    return level


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise ValueError("a number of seconds above 0")
    return seconds


def _draft_quant(text: str) -> str:
    if text not in ("auto", "native", "packed", "dequantize"):
        raise ValueError("auto, native, packed or dequantize")
    return text


VARIABLES: tuple[EnvVar, ...] = (
    EnvVar(
        name="TRTLLM_EXT_ACCEPT_STATS_DIR",
        kind="folder",
        default=None,
        help=(
            "Inside TensorRT-LLM: where each rank writes its acceptance per draft position, as "
            "cumulative JSON lines. Nothing is counted when unset. Put it into `env_overrides` of "
            "the config file to reach worker processes."
        ),
    ),
    EnvVar(
        name="TRTLLM_EXT_ACCEPT_STATS_INTERVAL",
        kind="seconds",
        default=10.0,
        help="Time between two lines of a rank in `TRTLLM_EXT_ACCEPT_STATS_DIR`; one more at exit.",
        parse=_seconds,
    ),
    EnvVar(
        name="TRTLLM_EXT_API_KEY",
        kind="text",
        default=None,
        help="What clients of `trtllm-ext serve` must send as a bearer token; as `--api-key`.",
    ),
    EnvVar(
        name="TRTLLM_EXT_DRAFT_QUANT",
        kind="auto, native, packed or dequantize",
        default="auto",
        help=(
            "Inside TensorRT-LLM: how an NVFP4 draft runs. `native` is W4A4 in the host's kernels "
            "(Blackwell), `packed` (W4A16) unpacks weights as they are read, "
            "`dequantize` makes them bf16 at load. `auto` is `native` where the GPU multiplies FP4 "
            "and `packed` elsewhere."
        ),
        parse=_draft_quant,
    ),
    EnvVar(
        name="TRTLLM_EXT_KERNEL_<OP>",
        kind="kernel name",
        default=None,
        help=(
            "Kernel to use for one op, for instance `TRTLLM_EXT_KERNEL_MLA_DECODE=reference`. "
            "An explicit choice never falls back: when that kernel cannot take a call, the call "
            "fails and lists the reasons."
        ),
    ),
    EnvVar(
        name="TRTLLM_EXT_LOG_LEVEL",
        kind="DEBUG, INFO, WARNING or ERROR",
        default="WARNING",
        help=(
            "Least severe message that the command line writes to standard error; `serve` begins "
            "at INFO unless it is set."
        ),
        parse=_log_level,
    ),
)


def _find(name: str) -> EnvVar | None:
    return next((variable for variable in VARIABLES if variable.matches(name)), None)


def get(name: str, environ: Mapping[str, str] | None = None) -> Any:
    """Returns the parsed value of a variable, or its default when it is unset or empty.

    Args:
        name: Full name, for instance `TRTLLM_EXT_LOG_LEVEL`.
        environ: Where to look; the process environment when None.

    Raises:
        ConfigError: If no row describes `name`, or if its value does not parse.
    """
    variable = _find(name)
    if variable is None:
        raise unknown_key_error("the environment", name, [row.name for row in VARIABLES])
    text = (os.environ if environ is None else environ).get(name, "")
    if not text:
        return variable.default
    try:
        return variable.parse(text)
    except ValueError as error:
        raise ConfigError(f"{name} is {text!r}, expected {error}. Correct or unset it.") from error


def kernel_variable(op: str) -> str:
    """Returns the name of the variable that chooses the kernel of `op`."""
    return f"{PREFIX}KERNEL_{op.upper()}"


def kernel_choice(op: str) -> str | None:
    """Returns the kernel that the environment demands for `op`, or None."""
    choice: str | None = get(kernel_variable(op))
    return choice


def check(ops: Collection[str] = (), environ: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Warns about each variable with our prefix that would have no effect.

    Args:
        ops: Names of the public ops. When given, a kernel variable of another op counts as unknown.
        environ: Where to look; the process environment when None.

    Returns:
        The unknown names, sorted.
    """
    known = [row.name for row in VARIABLES if not row.is_family]
    known += [kernel_variable(op) for op in ops]
    names = os.environ if environ is None else environ
    unknown = sorted(name for name in names if name.startswith(PREFIX) and name not in known)
    if not ops:
        unknown = [name for name in unknown if _find(name) is None]
    for name in unknown:
        guess = nearest(name, known)
        hint = f"; did you mean {guess}?" if guess else "; ENVIRONMENT.md lists the known ones"
        logger.warning("Environment variable %s is set but has no effect%s", name, hint)
    return tuple(unknown)


def render_markdown() -> str:
    """Returns the text of ENVIRONMENT.md."""
    rows = [
        f"| `{row.name}` | {row.kind} | {'unset' if row.default is None else f'`{row.default}`'} "
        f"| {row.help} |"
        for row in VARIABLES
    ]
    return "\n".join(
        [
            "# Environment variables",
            "",
            "Generated from `tensorrt_llm_ext/envs.py` by `python -m tensorrt_llm_ext.envs`; "
            "edit the rows there.",
            "",
            "They are for debugging. Whatever you set on purpose is a config field or a command "
            "option. A variable that starts with",
            f"`{PREFIX}` and is not listed here has no effect and is reported. `<OP>` stands for "
            "the name of a public op in capitals.",
            "",
            "| variable | value | default | what it does |",
            "|---|---|---|---|",
            *rows,
            "",
        ]
    )


if __name__ == "__main__":
    sys.stdout.write(render_markdown())
