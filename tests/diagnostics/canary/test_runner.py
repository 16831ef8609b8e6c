# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Planted faults are named and mended; healthy drafts are not accused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tensorrt_llm_ext.diagnostics.canary import (
    CanaryOptions,
    TeacherStates,
    Verdict,
    run_canary,
    save_states,
)
from tensorrt_llm_ext.errors import CheckpointError, ConfigError, UnsupportedError
from tests.diagnostics.canary.conftest import EXAMPLE, MAX_DRAFT_LEN
from tests.e2e.conftest import load_script
from tests.support.faults import FAULTS, plant, prune, read_draft, write_draft

TARGET = EXAMPLE / "target"
OPTIONS = CanaryOptions(max_draft_len=MAX_DRAFT_LEN, max_anchors=120, device="cpu")
BY_NAME = {fault.name: fault for fault in FAULTS}


def kept(states: TeacherStates) -> list[int]:
    """The tokens of the texts: a vocabulary that leaves out nothing that is needed."""
    return torch.cat([s.input_ids for s in states.sequences]).unique().tolist()


@pytest.mark.parametrize("is_pruned", [False, True], ids=["bf16", "pruned"])
def test_a_healthy_draft_is_not_accused(
    is_pruned: bool, tmp_path: Path, states: TeacherStates
) -> None:
    folder = EXAMPLE / "draft"
    if is_pruned:
        folder = write_draft(tmp_path / "d", *prune(*read_draft(folder), kept(states)))
    report = run_canary(TARGET, folder, states=states, options=OPTIONS, fix=tmp_path / "out")
    assert report.verdict is Verdict.DECLARED_FITS
    assert report.exit_code == 0
    assert report.problems == ()
    assert all(check.is_ok is not False for check in report.weight_checks)
    assert report.fix_notes == ("nothing was written: nothing to fix",)
    assert not (tmp_path / "out").exists()
    assert json.loads(json.dumps(report.to_dict(), allow_nan=False))["verdict"] == "declared_fits"


@pytest.mark.parametrize("name", ["fc_norm", "permuted head"])
def test_a_fault_is_named_and_mended(name: str, tmp_path: Path, states: TeacherStates) -> None:
    fault = BY_NAME[name]
    folder = write_draft(tmp_path / "in", *plant(fault, *read_draft(EXAMPLE / "draft")))
    told: list[tuple[str, int, int]] = []
    report = run_canary(
        TARGET,
        folder,
        states=states,
        options=OPTIONS,
        fix=tmp_path / "out",
        progress=lambda *what: told.append(what),
    )
    assert report.verdict is Verdict.OTHER_FITS
    assert report.exit_code == 1
    assert report.best.names == fault.factors
    assert report.best.is_better
    assert report.fixed is not None
    assert report.fixed.verdict is Verdict.DECLARED_FITS
    assert report.fixed.problems == ()
    mended = report.fixed.declared.agreement.acceptance_length
    assert mended == pytest.approx(report.best.agreement.acceptance_length)
    assert mended > report.declared.agreement.acceptance_length + 0.5
    assert all(0 <= done < planned for _, done, planned in told)


def test_ruined_weights_are_suspected_and_nothing_is_written(
    tmp_path: Path, states: TeacherStates
) -> None:
    config, tensors = read_draft(EXAMPLE / "draft")
    generator = torch.Generator().manual_seed(0)
    name = "layers.0.mlp.down_proj.weight"
    tensors[name] = torch.randn(tensors[name].shape, generator=generator).bfloat16()
    tensors["fc.weight"] = torch.full_like(tensors["fc.weight"], 0.01)
    folder = write_draft(tmp_path / "in", config, tensors)
    report = run_canary(TARGET, folder, states=states, options=OPTIONS, fix=tmp_path / "out")
    assert report.verdict is Verdict.NOTHING_FITS
    assert report.exit_code == 3
    assert report.sentence == "nothing fits; weights suspect (constant matrices)"
    assert report.fix_notes == ("nothing was written: nothing fits",)
    assert not (tmp_path / "out").exists()


def test_prompts_give_the_states_that_a_file_keeps(
    tmp_path: Path, prompts: tuple[tuple[int, ...], ...]
) -> None:
    options = CanaryOptions(max_draft_len=1, max_tokens=8, device="cpu")
    file = tmp_path / "states.safetensors"
    report = run_canary(
        TARGET, EXAMPLE / "draft", prompts=prompts[:6], options=options, save_to=file
    )
    again = run_canary(TARGET, EXAMPLE / "draft", states=file, options=options)
    counts = zip(again.declared.agreement.accepted, report.declared.agreement.accepted, strict=True)
    assert all(torch.equal(one, other) for one, other in counts)
    assert again.num_texts == 6
    assert again.states.startswith("6 text(s) of states.safetensors")
    assert [trial.names for trial in again.trials] == [trial.names for trial in report.trials]


def test_states_without_neighbours_leave_shifts_untested(
    tmp_path: Path, states: TeacherStates
) -> None:
    sequences = states.sequences[:6]
    aux = [torch.cat([s.states[b] for b in (3, 5, 7)], dim=-1) for s in sequences]
    for index, (sequence, captured) in enumerate(zip(sequences, aux, strict=True)):
        content = {"input_ids": sequence.input_ids, "aux_hidden_states": captured}
        torch.save(content, tmp_path / f"{index}.pt")
    options = CanaryOptions(max_draft_len=1, max_anchors=40, device="cpu")
    report = run_canary(TARGET, EXAMPLE / "draft", states=tmp_path, options=options)
    assert not any(f.group == "boundaries" for trial in report.trials for f in trial.factors)
    assert any("no states of boundaries [2, 4, 6]" in reason for reason in report.not_tested)
    assert report.declared.agreement.num_anchors == 40


def test_files_that_the_loader_refuses_are_not_waved_through(
    tmp_path: Path, states: TeacherStates
) -> None:
    """The user's boundaries fit; the files say others, and are what a host would be given."""
    config, tensors = read_draft(EXAMPLE / "draft")
    config["trtllm_ext_aux_boundaries"] = [4, 6, 8]
    config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = [3, 5, 7]
    folder = write_draft(tmp_path / "in", config, tensors)
    options = replace(OPTIONS, boundaries=(3, 5, 7))
    out = tmp_path / "out"
    report = run_canary(TARGET, folder, states=states, options=options, fix=out)
    assert report.verdict is Verdict.DECLARED_FITS
    assert report.exit_code == 1
    assert "but the loader refuses the files: V12" in report.sentence
    assert "captured boundaries [3, 5, 7]" in report.fix_notes
    assert report.fixed is not None
    assert report.fixed.exit_code == 0


def test_the_place_of_the_corrected_draft_is_judged_first(tmp_path: Path) -> None:
    (tmp_path / "there").write_text("", encoding="utf-8")
    with pytest.raises(CheckpointError, match="exists already"):
        run_canary("no target", EXAMPLE / "draft", prompts=[[1]], fix=tmp_path)


def test_bad_usage_is_told(tmp_path: Path, states: TeacherStates) -> None:
    with pytest.raises(ConfigError, match="give one of the two"):
        run_canary(TARGET, EXAMPLE / "draft")
    with pytest.raises(ConfigError, match="There is no prompt"):
        run_canary(TARGET, EXAMPLE / "draft", prompts=[], options=OPTIONS)
    few = replace(states, sequences=states.sequences[:5])
    with pytest.raises(ConfigError, match=r"5 text\(s\) have positions to judge at; at least 6"):
        run_canary(TARGET, EXAMPLE / "draft", states=few, options=OPTIONS)
    far = CanaryOptions(boundaries=(0, 1, 2), device="cpu")
    with pytest.raises(ConfigError, match=r"no states of \[0\]"):
        run_canary(TARGET, EXAMPLE / "draft", states=states, options=far)
    save_states(states, tmp_path / "s.safetensors")
    with pytest.raises(ConfigError, match="No text is long enough"):
        run_canary(
            TARGET,
            EXAMPLE / "draft",
            states=tmp_path / "s.safetensors",
            options=CanaryOptions(max_draft_len=400, device="cpu"),
        )
    config, tensors = read_draft(EXAMPLE / "draft")
    packed = {**tensors, "lm_head.weight": torch.zeros(896, 128, dtype=torch.uint8)}
    folder = write_draft(tmp_path / "packed", config, packed)
    with pytest.raises(UnsupportedError, match="quantized"):
        run_canary(TARGET, folder, states=states, options=OPTIONS)


@pytest.mark.slow
def test_all_faults_are_named_where_they_cost(tmp_path: Path) -> None:
    """The table of the README on fewer texts: see benchmarks/faults.py."""
    faults = load_script("faults")
    models = faults.load_models(TARGET, device="cpu")
    bench = faults.Bench(models=models, folder=tmp_path)
    faults.make_sets(bench, 48, 1)
    rows, controls = faults.run_all(bench, FAULTS, fix_runs=1)
    found = faults.summary(rows, controls)
    assert found["same_text"]
    assert found["controls_accused"] == 0
    assert found["runs_that_count"] >= 8
    assert found["share_named"] >= 0.95
    assert found["largest_loss_after_fix"] <= 0.03
