# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""This package's kernels run inside the host's modules, and change nothing that is computed."""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tensorrt_llm_ext.trtllm.fused import logits_of_max
from tests.trtllm.conftest import embedded
from tests.trtllm.host import ERAS
from tests.trtllm.serving import EXAMPLE, environ, prompts, serve, serve_in_workers, target_for

NVFP4 = EXAMPLE / "draft-nvfp4"
FEW, LONG = 6, 40


def counting(calls: Counter[str]) -> Callable[[], None]:
    """Counts calls of the ops that `trtllm.fused` uses, from when the host can be imported."""

    def wrapped(name: str, run: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            calls[name] += 1
            return run(*args, **kwargs)

        return call

    def start() -> None:
        from tensorrt_llm_ext.trtllm import fused

        for name in ("draft_input_norm", "latent_norm_pair", "lm_head_max", "nvfp4_linear"):
            setattr(fused, name, wrapped(name, getattr(fused, name)))

    return start


@pytest.mark.parametrize("era", ERAS)
def test_packed_weights_on_hopper(era: str, unwrapped: Path) -> None:
    """W4A16 through the registry, with both norms of MLA and of the draft's input in one launch."""
    calls: Counter[str] = Counter()
    with environ(TRTLLM_DOUBLE_SM="90"):
        served = serve(
            era,
            target_for(era, unwrapped),
            NVFP4,
            prompts(FEW),
            dtype="float64",
            max_tokens=LONG,
            before=counting(calls),
        )
    wanted = embedded(NVFP4, FEW, LONG, draft_quant_mode="packed")
    assert served.tokens == wanted.tokens
    assert served.acceptance == wanted.acceptance
    # One layer: fc is multiplied once per step, the others once per forward.
    assert calls["draft_input_norm"] == calls["latent_norm_pair"] > 0
    assert calls["lm_head_max"] >= calls["latent_norm_pair"]
    assert calls["nvfp4_linear"] >= 5 * calls["latent_norm_pair"]


def test_guided_decoding_reads_all_logits(unwrapped: Path) -> None:
    """It masks them: of the largest alone nothing would be left where the grammar forbids it."""
    calls: Counter[str] = Counter()
    with environ(TRTLLM_DOUBLE_SM="90"):
        served = serve(
            "e2",
            target_for("e2", unwrapped),
            NVFP4,
            prompts(2),
            dtype="float64",
            max_tokens=LONG,
            before=counting(calls),
            guided_decoding_backend="xgrammar",
        )
    wanted = embedded(NVFP4, 2, LONG, draft_quant_mode="packed")
    assert served.tokens == wanted.tokens
    assert served.acceptance == wanted.acceptance
    assert calls["lm_head_max"] == 0
    assert calls["nvfp4_linear"] > 0


@pytest.mark.parametrize("era", ["e1", pytest.param("e3", marks=pytest.mark.slow)])
def test_packed_weights_over_two_ranks(era: str, unwrapped: Path) -> None:
    """Rows of q_b, gate, up and head, and columns of o and down, go to their ranks."""
    served = serve_in_workers(
        era,
        target_for(era, unwrapped),
        NVFP4,
        prompts(FEW),
        max_tokens=LONG,
        tensor_parallel_size=2,
        variables={"TRTLLM_DOUBLE_SM": "90"},
    )
    wanted = embedded(NVFP4, FEW, LONG, draft_quant_mode="packed")
    assert served.tokens == wanted.tokens
    assert served.acceptance == wanted.acceptance


def test_no_pair_where_the_host_quantizes_the_norm() -> None:
    """The newest versions norm and quantize the input of a packed q_b_proj in one kernel."""
    calls: Counter[str] = Counter()

    def add() -> None:
        counting(calls)()
        host_mla = importlib.import_module("tensorrt_llm._torch.modules.mla").MLA
        host_mla._q_a_layernorm_maybe_fused = lambda self, q: self.q_a_layernorm(q)

    serve("e3", EXAMPLE / "target", NVFP4, prompts(1), before=add, max_tokens=4)
    assert calls["draft_input_norm"] > 0
    assert "latent_norm_pair" not in calls


def test_logits_of_the_largest() -> None:
    """The first rank wins a tie, and no temperature of use spreads the choice."""
    pairs = torch.tensor([[1.5, 3.0, 1.5, 9.0], [-2.0, 0.0, -1.0, 163839.0]])
    logits = logits_of_max(pairs, 163840)
    assert logits.argmax(dim=-1).tolist() == [3, 163839]
    assert (logits / 10).softmax(dim=-1).amax(dim=-1).tolist() == [1.0, 1.0]
