# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""What each kind of fault costs tiny_kimi's draft, who names it, and what the canary restores.

Every fault of `tests/support/faults.py` is planted into the draft's folder. The engine then runs
the faulty draft as a host without checks would, on several disjoint sets of held-out problems; its
text must equal the text without a draft. `doctor`'s checks and the canary look at the same folder;
the canary's corrected folder is loaded by the ordinary loader and measured like the healthy draft.

A run counts where the fault costs 0.05 of acceptance length or more on that set of problems. It is
named if a check finds an error or warning that is meant for it, or the canary's setting is the one
that undoes it.

    python benchmarks/faults.py [--texts 96] [--runs 5] [--json FILE] [--only NAME ...]
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tensorrt_llm_ext import devices
from tensorrt_llm_ext.benchmarking.problems import load_problems
from tensorrt_llm_ext.benchmarking.runs import RunResult, Workload, encode_all, make_core, measure
from tensorrt_llm_ext.checkpoints.checks import run_checks
from tensorrt_llm_ext.checkpoints.checks.base import CheckContext, Status
from tensorrt_llm_ext.checkpoints.loader import load_draft
from tensorrt_llm_ext.checkpoints.normalize import open_draft, open_target
from tensorrt_llm_ext.cli.prompts import tiny_kimi
from tensorrt_llm_ext.configs.sampling import SamplingParams
from tensorrt_llm_ext.diagnostics.canary import (
    CanaryOptions,
    TeacherStates,
    run_canary,
)
from tensorrt_llm_ext.diagnostics.canary.building import build_draft
from tensorrt_llm_ext.diagnostics.canary.opening import open_leniently
from tensorrt_llm_ext.engine.loading import LoadedModels, load_models
from tensorrt_llm_ext.engine.teacher_capture import states_from_prompts
from tensorrt_llm_ext.models.deepseek import DeepseekV3
from tensorrt_llm_ext.models.interfaces import DraftModel
from tests.support.faults import FAULTS, Fault, plant, prune, read_draft, write_draft

COUNTS_FROM = 0.05
MAX_DRAFT_LEN = 3
DRAFT_VOCAB = 384


@dataclass
class TextSet:
    """One set of problems: what the target says, without a draft."""

    workload: Workload
    plain: RunResult
    states: TeacherStates


@dataclass
class Row:
    """One fault on one set of texts, or a healthy draft (`fault` None)."""

    name: str
    healthy: float
    faulty: float
    same_text: bool
    doctor: list[str]
    canary: str
    exit_code: int
    is_named: bool
    named_by: list[str]
    fixed: float | None = None
    seconds: float = 0.0

    @property
    def cost(self) -> float:
        return self.healthy - self.faulty

    @property
    def counts(self) -> bool:
        return self.cost >= COUNTS_FROM


@dataclass
class Bench:
    """Models, texts, and where folders go."""

    models: LoadedModels
    folder: Path
    sets: list[TextSet] = field(default_factory=list)

    @property
    def target(self) -> DeepseekV3:
        assert isinstance(self.models.target, DeepseekV3)
        return self.models.target

    def accept(self, draft: DraftModel, texts: TextSet) -> tuple[float, bool]:
        """Acceptance length of a draft in the engine, and whether the text is the same."""
        models = LoadedModels(
            target=self.target, draft=draft, eos_token_ids=self.models.eos_token_ids
        )
        core = make_core(models, texts.workload, MAX_DRAFT_LEN)
        run = measure(core, texts.workload, models.eos_token_ids)
        return run.acceptance.acceptance_length or 0.0, run.token_ids == texts.plain.token_ids

    def unchecked(self, folder: Path) -> DraftModel:
        """The draft as a host without checks would run it."""
        opened = open_leniently(folder, self.target.config)
        return build_draft(
            opened.declared,
            self.target,
            device=torch.device("cpu"),
            dtype=torch.float32,
            first_layer_idx=self.target.config.num_layers,
        )


def make_sets(bench: Bench, num_texts: int, num_runs: int, skip: int = 0) -> None:
    found = load_problems(tiny_kimi("heldout.jsonl"), skip + num_texts * num_runs)
    problems = found[skip:]
    prompts = encode_all(bench.models, [problem.prompt for problem in problems])
    for run in range(num_runs):
        part = prompts[run * num_texts : (run + 1) * num_texts]
        workload = Workload(prompts=part, sampling=SamplingParams(max_tokens=192), batch_size=8)
        plain = measure(make_core(bench.models, workload, 0), workload, bench.models.eos_token_ids)
        states = states_from_prompts(
            bench.target,
            part,
            boundaries=range(1, bench.target.config.num_layers + 1),
            max_tokens=192,
            max_draft_len=MAX_DRAFT_LEN,
            eos_token_ids=bench.models.eos_token_ids,
        )
        bench.sets.append(TextSet(workload, plain, states))


def doctor_findings(draft: Path) -> dict[str, str]:
    """Ids of the checks that find an error or a warning, with the status."""
    context = CheckContext(
        draft=open_draft(draft), target=open_target(tiny_kimi("target")), deep=True
    )
    bad = (Status.ERROR, Status.WARNING)
    return {f.check_id: f.status.value for f in run_checks(context) if f.status in bad}


def judge(
    bench: Bench,
    fault: Fault | None,
    folder: Path,
    texts: TextSet,
    *,
    healthy: float,
    usual: dict[str, str],
    fix: Path | None,
) -> Row:
    """Measures one folder on one set of texts."""
    start = time.perf_counter()
    faulty, same = bench.accept(bench.unchecked(folder), texts)
    findings = {k: v for k, v in doctor_findings(folder).items() if usual.get(k) != v}
    report = run_canary(
        tiny_kimi("target"),
        folder,
        states=texts.states,
        options=CanaryOptions(max_draft_len=MAX_DRAFT_LEN),
        fix=fix,
    )
    named_by = []
    if fault is not None:
        named_by += [f"doctor {check}" for check in fault.checks if check in findings]
        if fault.factors and report.best.names == fault.factors:
            named_by.append("canary")
    fixed = None
    if report.fixed is not None and fix is not None:
        fixed, _ = bench.accept(load_draft(fix, bench.target), texts)
    return Row(
        name=fault.name if fault else folder.name,
        healthy=healthy,
        faulty=faulty,
        same_text=same,
        doctor=[f"{check} {status}" for check, status in findings.items()],
        canary=report.sentence,
        exit_code=report.exit_code,
        is_named=bool(named_by),
        named_by=named_by,
        fixed=fixed,
        seconds=time.perf_counter() - start,
    )


def run_all(bench: Bench, faults: Sequence[Fault], fix_runs: int) -> tuple[list[Row], list[Row]]:
    """Rows of the faults and of the healthy controls."""
    config, tensors = read_draft(tiny_kimi("draft"))
    ids = torch.cat([s.input_ids for texts in bench.sets for s in texts.states.sequences])
    counts = torch.bincount(ids, minlength=bench.target.config.vocab_size)
    pruned = prune(config, tensors, counts.argsort(descending=True)[:DRAFT_VOCAB].tolist())
    bases = {False: (config, tensors), True: pruned}
    folders = {
        False: write_draft(bench.folder / "healthy", config, tensors),
        True: write_draft(bench.folder / "pruned", *pruned),
    }
    usual = {key: doctor_findings(folder) for key, folder in folders.items()}
    rows: list[Row] = []
    controls: list[Row] = []
    for run, texts in enumerate(bench.sets):
        healthy: dict[bool, float] = {}
        for key, folder in folders.items():
            healthy[key], _ = bench.accept(load_draft(folder, bench.target), texts)
            row = judge(
                bench, None, folder, texts, healthy=healthy[key], usual=usual[key], fix=None
            )
            controls.append(row)
            tell(row)
        for fault in faults:
            name = fault.name.replace(" ", "_")
            folder = bench.folder / name
            if not folder.exists():
                write_draft(folder, *plant(fault, *bases[fault.is_pruned]))
            fix = bench.folder / f"{name}-fixed-{run}" if run < fix_runs else None
            row = judge(
                bench,
                fault,
                folder,
                texts,
                healthy=healthy[fault.is_pruned],
                usual=usual[fault.is_pruned],
                fix=fix,
            )
            rows.append(row)
            tell(row)
    return rows, controls


def tell(row: Row) -> None:
    fixed = "" if row.fixed is None else f", fixed {row.fixed:.3f}"
    print(
        f"{row.name:24s} {row.healthy:.3f} -> {row.faulty:.3f}{fixed}; same text: {row.same_text}; "
        f"{', '.join(row.named_by) or '-'}; {row.canary} [{row.seconds:.0f} s]",
        file=sys.stderr,
        flush=True,
    )


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def table(faults: Sequence[Fault], rows: Sequence[Row]) -> str:
    """The table for the README, in Markdown."""
    lines = [
        "| fault | acceptance length | lost | same text | named by | in runs | after `--fix` |",
        "|---|---|---|---|---|---|---|",
    ]
    for fault in faults:
        mine = [row for row in rows if row.name == fault.name]
        counted = [row for row in mine if row.counts]
        fixed = [row.fixed for row in mine if row.fixed is not None]
        by = dict.fromkeys(name for row in mine for name in row.named_by)
        healthy, faulty = mean([r.healthy for r in mine]), mean([r.faulty for r in mine])
        named = f"{sum(r.is_named for r in counted)}/{len(counted)}" if counted else "none"
        lines.append(
            f"| {fault.title} | {healthy:.2f} → {faulty:.2f} | {healthy - faulty:.2f} "
            f"| {'yes' if all(r.same_text for r in mine) else 'NO'} | {', '.join(by) or '–'} "  # noqa: RUF001
            f"| {named} | {f'{mean(fixed):.2f}' if fixed else '–'} |"  # noqa: RUF001
        )
    return "\n".join(lines)


def summary(rows: Sequence[Row], controls: Sequence[Row]) -> dict[str, Any]:
    counted = [row for row in rows if row.counts]
    restored = [row for row in counted if row.fixed is not None]
    return {
        "runs": len(rows),
        "runs_that_count": len(counted),
        "named": sum(row.is_named for row in counted),
        "share_named": mean([float(row.is_named) for row in counted]) if counted else None,
        "same_text": all(row.same_text for row in rows),
        "largest_loss_after_fix": max((r.healthy - (r.fixed or 0) for r in restored), default=None),
        "controls": len(controls),
        "controls_accused": sum(row.exit_code != 0 for row in controls),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--texts", type=int, default=96, help="problems per run")
    parser.add_argument("--runs", type=int, default=5, help="disjoint sets of problems")
    parser.add_argument("--skip", type=int, default=0, help="problems to leave out first")
    parser.add_argument("--fix-runs", type=int, default=1, help="runs whose drafts are mended")
    parser.add_argument("--only", nargs="*", default=None, help="names of faults")
    parser.add_argument("--json", type=Path, default=None, help="write all rows to this file")
    args = parser.parse_args()
    logging.getLogger("tensorrt_llm_ext").setLevel(logging.ERROR)
    faults = [fault for fault in FAULTS if args.only is None or fault.name in args.only]
    with tempfile.TemporaryDirectory() as folder:
        models = load_models(tiny_kimi("target"), device="cpu")
        bench = Bench(models=models, folder=Path(folder))
        make_sets(bench, args.texts, args.runs, args.skip)
        rows, controls = run_all(bench, faults, args.fix_runs)
    found = summary(rows, controls)
    print(table(faults, rows))
    print(json.dumps(found, indent=2))
    if args.json is not None:
        content = {
            "machine": str(devices.probe("cpu")),
            "torch": torch.__version__,
            "texts_per_run": args.texts,
            "skipped": args.skip,
            "max_draft_len": MAX_DRAFT_LEN,
            "summary": found,
            "rows": [vars(row) for row in rows],
            "controls": [vars(row) for row in controls],
        }
        args.json.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
