# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""register, build, load, serve on the double of each era: the embedded engine's tokens and counts.

Equal acceptance is asserted exactly: both engines run the same arithmetic in float64.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.trtllm.conftest import embedded
from tests.trtllm.host import ERAS
from tests.trtllm.serving import EXAMPLE, prompts, serve, serve_in_workers, target_for

BF16, NVFP4 = EXAMPLE / "draft", EXAMPLE / "draft-nvfp4"
OURS = "tensorrt_llm_ext.trtllm"
MANY, FEW, LONG, SHORT = 40, 5, 60, 24
DRAFTS = [pytest.param(BF16, id="bf16"), pytest.param(NVFP4, id="nvfp4")]


def check(served, wanted) -> None:
    assert served.tokens == wanted.tokens
    assert served.acceptance == wanted.acceptance
    for info in served.info:
        assert info["layers_to_capture"] == [2, 4, 6]
        assert info["draft_class"].startswith(f"{OURS}.modeling.")
        assert info["target_class"].startswith(f"{OURS}.registered.")


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("era", ERAS)
def test_one_process(era: str, draft: Path, unwrapped: Path) -> None:
    served = serve(
        era,
        target_for(era, unwrapped),
        draft,
        prompts(MANY),
        dtype="float64",
        max_tokens=LONG,
        max_batch_size=MANY,
    )
    check(served, embedded(draft, MANY, LONG))
    assert served.acceptance[0] >= 500


def test_quantized_target(unwrapped: Path) -> None:
    served = serve(
        "e3",
        EXAMPLE / "target-nvfp4",
        NVFP4,
        prompts(FEW),
        dtype="float64",
        max_tokens=SHORT,
    )
    check(served, embedded(NVFP4, FEW, SHORT, "target-nvfp4"))


@pytest.mark.parametrize(
    ("era", "is_dp"), [("e1", False), ("e2", True), ("e3", False), ("e3", True)]
)
def test_two_worker_processes(era: str, is_dp: bool, unwrapped: Path, tmp_path: Path) -> None:
    """Worker processes register by what is pickled to them; under attention-DP ranks run idle."""
    served = serve_in_workers(
        era,
        target_for(era, unwrapped),
        NVFP4,
        prompts(FEW),
        max_tokens=SHORT,
        tensor_parallel_size=2,
        enable_attention_dp=is_dp,
        env_overrides={"TRTLLM_EXT_ACCEPT_STATS_DIR": str(tmp_path)},
    )
    check(served, embedded(NVFP4, FEW, SHORT))
    assert (served.stats["idle_passes"] > 0) == is_dp
    lines = [json.loads(p.read_text().splitlines()[-1]) for p in tmp_path.glob("*.jsonl")]
    ranks = [line for line in lines if is_dp or line["rank"] == 0]
    assert sum(line["verify_steps"] for line in ranks) >= served.acceptance[0]


@pytest.mark.slow
@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize(
    ("era", "is_dp"), [("e1", False), ("e2", False), ("e2", True), ("e3", False), ("e3", True)]
)
def test_two_worker_processes_long(era: str, is_dp: bool, draft: Path, unwrapped: Path) -> None:
    served = serve_in_workers(
        era,
        target_for(era, unwrapped),
        draft,
        prompts(MANY),
        max_tokens=LONG,
        tensor_parallel_size=2,
        enable_attention_dp=is_dp,
    )
    check(served, embedded(draft, MANY, LONG))
    assert served.acceptance[0] >= 500


@pytest.mark.parametrize("era", ERAS)
def test_chunked_prompts_and_no_overlap(era: str, unwrapped: Path) -> None:
    """Upstream gives a chunk's last row a sampled token: the text stays, acceptance may fall."""
    target, wanted = target_for(era, unwrapped), embedded(BF16, FEW, SHORT)
    plain = serve(
        era,
        target,
        BF16,
        prompts(FEW),
        dtype="float64",
        max_tokens=SHORT,
        disable_overlap_scheduler=True,
    )
    check(plain, wanted)
    chunked = serve(
        era,
        target,
        BF16,
        prompts(FEW),
        dtype="float64",
        max_tokens=SHORT,
        enable_chunked_prefill=True,
        max_num_tokens=48,
    )
    assert chunked.tokens == wanted.tokens
