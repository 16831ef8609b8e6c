# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Compiles every Triton kernel for GPUs that are not there, and compares with a baseline.

    python -m tensorrt_llm_ext.benchmarking.compile_table              # print and compare
    python -m tensorrt_llm_ext.benchmarking.compile_table --update     # accept what was printed
    python -m tensorrt_llm_ext.benchmarking.compile_table --only mla_decode --arch sm_90a

It says what a compiler says: registers, spills, shared memory and kinds of instructions. Nothing
here runs a kernel. Each module is compiled in a process of its own, because a failing pass can
abort its process.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import pkgutil
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import tensorrt_llm_ext.ops
from tensorrt_llm_ext.errors import ConfigError
from tensorrt_llm_ext.ops.compiling import ARCHITECTURES, CompileCase

BASELINE: Final = Path(__file__).resolve().parents[2] / "tests/fixtures/triton/compile_table.json"
_INSTRUCTIONS: Final[Mapping[str, str]] = {
    "wgmma": r"wgmma\.mma_async",
    "tcgen05": r"tcgen05\.mma",
    "mma_sync": r"\bmma\.sync",
    "tma": r"cp\.async\.bulk\.tensor",
    "cp_async": r"cp\.async\.(?:ca|cg)",
}
_COSTS: Final = ("registers", "spill_bytes", "shared_bytes")
_ROW = dict[str, Any]
_MARK: Final = "ROW "


def kernel_modules() -> tuple[str, ...]:
    """Returns the names of the modules of Triton kernels below `ops`."""
    found = pkgutil.walk_packages(tensorrt_llm_ext.ops.__path__, "tensorrt_llm_ext.ops.")
    return tuple(m.name for m in found if m.name.rpartition(".")[2].startswith("triton_"))


def compile_case(case: CompileCase, architecture: str) -> _ROW:
    """Compiles one configuration.

    Args:
        case: What to compile.
        architecture: One of `ops.compiling.ARCHITECTURES`.

    Returns:
        Registers per thread, spilled and shared bytes, and how many instructions of each kind.
    """
    from tensorrt_llm_ext._triton import triton

    compiler = importlib.import_module("triton.compiler")
    target = importlib.import_module("triton.backends.compiler").GPUTarget
    names = list(case.kernel.arg_names)
    signature = {n: "constexpr" if n in case.constexprs else case.signature[n] for n in names}
    aligned = [
        n
        for n in names
        if n not in case.constexprs
        and n not in case.unaligned
        and (signature[n].startswith("*") or signature[n] in ("i32", "i64"))
    ]
    source = compiler.ASTSource(
        fn=case.kernel,
        signature=signature,
        constexprs=dict(case.constexprs),
        attrs={(names.index(n),): [["tt.divisibility", 16]] for n in aligned},
    )
    options = {"num_warps": case.num_warps, "num_stages": case.num_stages}
    compiled = triton.compile(
        source, target=target("cuda", ARCHITECTURES[architecture], 32), options=options
    )
    ptx = compiled.asm["ptx"]
    counts = {name: len(re.findall(pattern, ptx)) for name, pattern in _INSTRUCTIONS.items()}
    return {**_resources(compiled.asm["cubin"]), "shared_bytes": compiled.metadata.shared, **counts}


def _resources(cubin: bytes) -> _ROW:
    """Returns registers and stack of a kernel; a stack is where registers spill to."""
    from tensorrt_llm_ext._triton import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        printed = subprocess.run(
            [str(tool), "--dump-resource-usage", file.name],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    found = re.findall(r"REG:(\d+) STACK:(\d+)", printed)
    return {
        "registers": max(int(registers) for registers, _ in found),
        "spill_bytes": max(int(stack) for _, stack in found),
    }


def compile_all(only: str = "", architectures: Sequence[str] = ()) -> dict[str, _ROW]:
    """Compiles the configurations whose name contains `only`, one process per module.

    Returns:
        Rows by "<case> <architecture>"; a failed one has the key "error".
    """
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    rows: dict[str, _ROW] = {}
    for module in kernel_modules():
        if not any(only in case.name for case in _cases(module)):
            continue
        command = [sys.executable, "-m", __spec__.name, "--worker", module, "--only", only]
        command += [word for name in architectures for word in ("--arch", name)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        for line in done.stdout.splitlines():
            if line.startswith(_MARK):  # the assembler prints there, too
                key, row = json.loads(line.removeprefix(_MARK))
                rows[key] = row
        if done.returncode:
            rows[f"{module} (aborted)"] = {"error": done.stderr.strip()[-500:] or "no message"}
    return rows


def _cases(module: str) -> tuple[CompileCase, ...]:
    cases: tuple[CompileCase, ...] = getattr(importlib.import_module(module), "COMPILE_CASES", ())
    return cases


def _work(module: str, only: str, architectures: Iterable[str]) -> None:
    for case in _cases(module):
        if only not in case.name:
            continue
        for name in case.architectures:
            if name not in architectures:
                continue
            try:
                row = compile_case(case, name)
            except Exception as error:  # noqa: BLE001 - whatever the compiler raises is the result
                row = {"error": f"{type(error).__name__}: {str(error)[:300]}"}
            sys.stdout.write(f"{_MARK}{json.dumps([f'{case.name} {name}', row])}\n")
            sys.stdout.flush()


def worse(rows: Mapping[str, _ROW], baseline: Mapping[str, _ROW]) -> list[str]:
    """Says which rows fail, are not in the baseline, or cost more than there."""
    found = []
    for key, row in rows.items():
        if "error" in row:
            found.append(f"{key}: {row['error']}")
        elif key not in baseline:
            found.append(f"{key}: not in the baseline; look at it and run with --update")
        else:
            found += [
                f"{key}: {name} {baseline[key][name]} -> {row[name]}"
                for name in _COSTS
                if row[name] > baseline[key][name]
            ]
            found += [
                f"{key}: uses {name} no more"
                for name in ("wgmma", "tcgen05", "tma")
                if baseline[key][name] and not row[name]
            ]
    return found


def render(rows: Mapping[str, _ROW]) -> str:
    """Returns the table as text."""
    columns = (*_COSTS, *_INSTRUCTIONS)
    width = max([len(key) for key in rows], default=4)
    lines = [f"{'case':<{width}}  " + "  ".join(columns)]
    for key, row in sorted(rows.items()):
        cells = [f"{row.get(name, '-')!s:>{len(name)}}" for name in columns]
        lines.append(f"{key:<{width}}  " + (row.get("error") or "  ".join(cells)))
    return "\n".join(lines)


def read_baseline(path: Path = BASELINE) -> dict[str, _ROW]:
    """Returns the committed rows for the installed version of Triton.

    Raises:
        ConfigError: If there are none for this version.
    """
    from tensorrt_llm_ext._triton import triton

    known = json.loads(path.read_text()) if path.is_file() else {}
    if triton.__version__ not in known:
        raise ConfigError(
            f"{path.name} has rows for Triton {', '.join(known) or '(none)'}, and "
            f"{triton.__version__} is installed. Run with --update to add them."
        )
    rows: dict[str, _ROW] = known[triton.__version__]
    return rows


def _update(rows: Mapping[str, _ROW], path: Path = BASELINE) -> None:
    from tensorrt_llm_ext._triton import triton

    known = json.loads(path.read_text()) if path.is_file() else {}
    kept = known.get(triton.__version__, {})
    known[triton.__version__] = dict(sorted({**kept, **rows}.items()))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(known, indent=1) + "\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns 1 when something got worse."""
    parser = argparse.ArgumentParser(description="Compile the Triton kernels for absent GPUs.")
    parser.add_argument("--only", default="", help="part of the names of cases")
    parser.add_argument("--arch", action="append", choices=tuple(ARCHITECTURES))
    parser.add_argument("--update", action="store_true", help="accept the rows as the baseline")
    parser.add_argument("--no-baseline", action="store_true", help="only print; fail on errors")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    architectures = tuple(args.arch or ARCHITECTURES)
    if args.worker:
        _work(args.worker, args.only, architectures)
        return 0
    rows = compile_all(args.only, architectures)
    sys.stdout.write(render(rows) + "\n")
    if args.update:
        _update({key: row for key, row in rows.items() if "error" not in row})
    baseline = rows if args.no_baseline else read_baseline()
    problems = worse(rows, baseline)
    sys.stdout.writelines(f"{line}\n" for line in problems)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
