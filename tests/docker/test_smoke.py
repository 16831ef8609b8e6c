# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""The parts of the smoke test that need no server: configs, counters, tokens."""

from __future__ import annotations

from dataclasses import replace

import pytest
import smoke
import smoke_report as report
from smoke_server import Completion

from tensorrt_llm_ext.benchmarking.margins import Divergence
from tensorrt_llm_ext.speculative.stats import AcceptanceStats

MACHINE = smoke.Machine(version="1.3.0rc20", missing=(), has_wrapper=True, gpu="B200", sm=100)


def test_config_names_backends_and_layers() -> None:
    options = smoke.parse(["--moe-backend", "TRTLLM"])
    folders = smoke.EXAMPLES / "target-nvfp4", smoke.EXAMPLES / "draft-nvfp4"
    config = smoke.serve_config(*folders, MACHINE, options)
    assert config["moe_config"] == {"backend": "TRTLLM"}
    assert config["attn_backend"] == "TRTLLM"
    assert config["speculative_config"]["eagle3_layers_to_capture"] == [2, 4, 6]
    assert config["speculative_config"]["max_draft_len"] == 3
    assert config["kv_cache_config"]["enable_block_reuse"] is False
    assert config["tensor_parallel_size"] == 1


def test_pairs_run_in_their_order_bf16_first() -> None:
    assert list(smoke.PAIRS) == ["bf16", "nvfp4"]


@pytest.mark.parametrize(("sm", "target"), [(90, "target"), (100, "target-nvfp4")])
def test_without_fp4_products_the_target_is_bf16(sm: int, target: str) -> None:
    machine = smoke.Machine(version="1.2.1", missing=(), has_wrapper=True, gpu="H200", sm=sm)
    pair = smoke.fitting(smoke.PAIRS["nvfp4"], machine)
    assert (pair.target, pair.draft) == (target, "draft-nvfp4")
    assert ("W4A16" in pair.note) == (sm == 90)
    assert smoke.fitting(smoke.PAIRS["bf16"], machine) == smoke.PAIRS["bf16"]


def test_a_host_that_hands_no_drafting_through_does_not_know_kimi() -> None:
    assert MACHINE.knows_kimi
    lacking = ("_torch.models.modeling_kimi_k25.KimiK25ForConditionalGeneration.draft_model",)
    machine = smoke.Machine(version="1.3.0rc10", missing=lacking, has_wrapper=True, gpu="", sm=100)
    assert not machine.knows_kimi
    assert not replace(MACHINE, has_wrapper=False).knows_kimi
    assert machine.era == "1.3"


def stats(*steps: tuple[int, int]) -> AcceptanceStats:
    """Counters of steps, each so many drafts of which so many were accepted."""
    made = AcceptanceStats()
    for drafts, accepted in steps:
        made.record(drafts, accepted)
    return made


def test_what_was_counted_before_the_prompts_is_taken_off() -> None:
    warm_up = stats((2, 0), (2, 0))
    both = warm_up.copy()
    both.merge(stats((3, 3), (3, 1)))
    assert smoke.counted(warm_up, both) == report.Acceptance(
        steps=2, drafted=6, accepted=4, per_position=(1.0, 0.5, 0.5)
    )


def test_nothing_counted_is_none() -> None:
    assert smoke.counted(AcceptanceStats(), AcceptanceStats()) is None
    assert smoke.counted(stats((3, 1)), stats((3, 1))) is None


@pytest.mark.parametrize("tokens", [(5, 6), (5, 6, 2), (5, 6, 2, 2)])
def test_a_text_that_ended_has_one_end_token(tokens: tuple[int, ...]) -> None:
    ended = Completion(token_ids=tokens, finish_reason="stop")
    assert smoke.normalised(ended, (2,)) == (5, 6, 2)


def test_a_text_that_was_cut_has_none() -> None:
    assert smoke.normalised(Completion(token_ids=(5, 6), finish_reason="length"), (2,)) == (5, 6)


def test_divergences_are_counted() -> None:
    common = {"prompt_index": 0, "position": 3, "baseline_token": 1, "speculative_token": 2}
    found = [Divergence(**common, margin=m, tolerance=0.25) for m in (0.1, 0.2, 3.0)]
    same = smoke.sameness(10, found)
    assert (same.near_ties, same.different, same.worst) == (2, 1, 3.0)
    assert smoke.sameness(10, []).verdict == "identical"


def test_without_a_host_the_next_step_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(smoke, "_PROBE", 'print("{\\"version\\": null, \\"missing\\": []}")')
    assert smoke.main([]) == 1
    assert "release image" in capsys.readouterr().err
