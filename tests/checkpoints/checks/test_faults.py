# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""No fault of a draft is lost, none is reported twice, and one fault does not hide another."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from tensorrt_llm_ext.checkpoints import checks
from tensorrt_llm_ext.checkpoints.checks import ALL_CHECKS, run_checks
from tensorrt_llm_ext.checkpoints.checks.base import Check, CheckContext, Finding, Status
from tensorrt_llm_ext.checkpoints.loader import load_draft, load_target
from tensorrt_llm_ext.checkpoints.names import TensorRef
from tensorrt_llm_ext.checkpoints.normalize import (
    DraftCheckpoint,
    draft_config,
    open_draft,
    open_target,
    target_config,
)
from tensorrt_llm_ext.configs.boundaries import EXPLICIT_KEY
from tensorrt_llm_ext.errors import CheckpointError, ConfigError, ExtError
from tensorrt_llm_ext.models.deepseek import DeepseekV3
from tests.checkpoints.checks.cases import CASES, IDS, Case, Pair
from tests.support.tiny_checkpoints import write_draft, write_target

KEYS = (
    *("hidden_size", "target_hidden_size", "intermediate_size", "vocab_size", "draft_vocab_size"),
    *("num_hidden_layers", "num_attention_heads", "num_key_value_heads", "num_aux_hidden_states"),
    *("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"),
    *("rope_theta", "rope_scaling", "rope_parameters", "max_position_embeddings", "rms_norm_eps"),
    *("fc_norm", "norm_output", "norm_before_fc", "norm_before_residual", "tie_word_embeddings"),
    *("architectures", "text_config", "n_routed_experts", "num_nextn_predict_layers"),
    *("hidden_act", "attention_bias", "mla_use_nope", "next_layer_regular", "eagle_config"),
)
EAGLE_KEYS = (IDS, "layer_ids", "fc_norm", "norm_output", "norm_before_fc", "use_mtp_layernorm")
VALUES = st.one_of(
    st.sampled_from([None, True, False, 0, -1, 1, 2, 3, 32, 48, 64, 96, 1e-5, 0.5, "x", "silu"]),
    st.lists(st.integers(-2, 9), max_size=4),
    st.sampled_from([{}, {"type": "yarn"}, {"rope_type": "default"}, {IDS: [1, 3, 4]}]),
)
SETTINGS = st.tuples(st.sampled_from(("", "eagle_config")), st.sampled_from(KEYS), VALUES)
EAGLE_SETTINGS = st.tuples(st.just("eagle_config"), st.sampled_from(EAGLE_KEYS), VALUES)
TOP_SETTINGS = st.tuples(st.just(""), st.sampled_from((*EAGLE_KEYS, EXPLICIT_KEY)), VALUES)
SHAPES = st.lists(st.sampled_from([1, 2, 16, 24, 32, 48, 64, 96]), min_size=1, max_size=2)
NAMES = (
    *("fc", "norm", "lm_head", "embed_tokens", "input_norm", "fc_norm.0", "fc_norm.2"),
    *(f"layers.0.{name}" for name in ("hidden_norm", "mlp.up_proj", "mlp.experts.0.up_proj")),
    *(f"layers.0.self_attn.{name}" for name in ("q_a_proj", "kv_b_proj", "k_proj", "g_proj")),
    "layers.1.hidden_norm",
    "layers.0.self_attn.kv_a_proj_with_mqa",
)
TENSORS = st.tuples(
    st.sampled_from([*(f"{name}.weight" for name in NAMES), "d2t", "t2d"]),
    st.one_of(st.none(), SHAPES),
)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> CheckContext:
    folder = tmp_path_factory.mktemp("pair")
    write_target(folder / "target")
    write_draft(folder / "draft")
    return CheckContext(draft=open_draft(folder / "draft"), target=open_target(folder / "target"))


def damaged(
    draft: DraftCheckpoint,
    settings: Iterable[tuple[str, str, Any]],
    tensors: Iterable[tuple[str, list[int] | None]],
) -> DraftCheckpoint:
    """The draft with other settings, and tensors of other shapes, removed or added."""
    config = copy.deepcopy(dict(draft.config))
    for section, key, value in settings:
        place = config.setdefault(section, {}) if section else config
        if not isinstance(place, dict):
            continue
        place.pop(key, None)
        if value is not None:
            place[key] = copy.deepcopy(value)
    entries, refs = dict(draft.files.entries), dict(draft.tensors.refs)
    sample = entries["norm.weight"]
    begin = min(entry.begin for entry in entries.values())
    for name, shape in tensors:
        entries.pop(name, None)
        refs.pop(name, None)
        if shape is not None:
            dtype, width = {"d2t": ("I64", 8), "t2d": ("BOOL", 1)}.get(name, ("F32", 4))
            # Whatever lies there, as long as it lies in the file.
            end = begin + math.prod(shape) * width
            entries[name] = sample._replace(shape=tuple(shape), dtype=dtype, begin=begin, end=end)
            refs[name] = TensorRef(name)
    return dataclasses.replace(
        draft,
        config=config,
        raw=config,
        files=dataclasses.replace(draft.files, entries=entries),
        tensors=dataclasses.replace(draft.tensors, refs=refs),
    )


def raised(ctx: CheckContext) -> ExtError | None:
    """What the loader's rules say first."""
    target = None if ctx.target is None else target_config(ctx.target)
    try:
        draft_config(ctx.draft, target, boundaries=ctx.boundaries)
    except ExtError as error:
        return error
    return None


def errors(findings: Iterable[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.status is Status.ERROR]


@given(
    st.lists(st.one_of(SETTINGS, EAGLE_SETTINGS, TOP_SETTINGS), max_size=4),
    st.lists(TENSORS, max_size=3),
    st.booleans(),
)
@example([("", "q_lora_rank", 0)], [], True)
@example([("", "eagle_config", "x")], [], True)
@example([("", "draft_vocab_size", 32)], [("lm_head.weight", [32, 32])], False)
def test_what_the_loader_refuses_is_found(
    pair: CheckContext,
    settings: list[tuple[str, str, Any]],
    tensors: list[tuple[str, list[int] | None]],
    beside_target: bool,
) -> None:
    ctx = dataclasses.replace(
        pair,
        draft=damaged(pair.draft, settings, tensors),
        target=pair.target if beside_target else None,
    )
    findings = run_checks(ctx)
    found = errors(findings)
    assert len({f.message for f in found}) == len(found)
    assert {f.check_id for f in findings} == {check.check_id for check in ALL_CHECKS}
    refusal = raised(ctx)
    if refusal is not None:
        assert str(refusal) in {f.message for f in found}
        if refusal.check is not None:
            assert refusal.check in {f.check_id for f in found}


def test_one_run_names_all_faults(tmp_path: Path) -> None:
    pair = Pair(
        draft={
            "rope_scaling": {"type": "longrope"},
            "num_aux_hidden_states": 5,
            "rms_norm_eps": -1.0,
            "norm_output": True,
        },
        eagle={IDS: [5, 4, 2], "norm_output": False},
        change={
            "input_norm.weight": torch.ones(96),
            "lm_head.weight": torch.ones(48, 32),
            "layers.0.mlp.up_proj.weight": torch.ones(48, 16),
            "adapter.weight": torch.ones(1),
        },
    )
    findings = run_checks(pair(tmp_path))
    accused = {f.check_id for f in errors(findings)}
    assert accused == {"V5", "V6", "V8", "V13", "V15", "V16", "V19", "V20"}
    waiting = {f.check_id: f.message for f in findings if f.status is Status.NOT_CHECKED}
    assert waiting["V12"] == "not checked: depends on V13"
    assert waiting["V17"] == waiting["V28"] == "not checked: depends on V16"


def _check(check_id: str, outcome: list[Finding] | ExtError) -> Check:
    def run(ctx: CheckContext) -> list[Finding]:
        if isinstance(outcome, ExtError):
            raise outcome
        return outcome

    return Check(check_id=check_id, title=check_id, run=run)


def _passed(check_id: str) -> Finding:
    return Finding(check_id=check_id, status=Status.PASSED, message="fine")


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        (
            {"V1": ConfigError("broken"), "V2": [_passed("V2")]},
            [("V1", Status.ERROR, "broken"), ("V2", Status.PASSED, "fine")],
        ),
        (
            {"V1": ConfigError("broken", check="V2"), "V2": [_passed("V2")]},
            [
                ("V1", Status.NOT_CHECKED, "not checked: depends on V2"),
                ("V2", Status.ERROR, "broken"),
            ],
        ),
        (
            {
                "V1": CheckpointError("broken", check="V2"),
                "V2": CheckpointError("broken", check="V2"),
            },
            [
                ("V1", Status.NOT_CHECKED, "not checked: depends on V2"),
                ("V2", Status.ERROR, "broken"),
            ],
        ),
    ],
)
def test_errors_of_rules_find_their_check(
    pair: CheckContext,
    outcomes: dict[str, list[Finding] | ExtError],
    expected: list[tuple[str, Status, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = tuple(_check(check_id, outcome) for check_id, outcome in outcomes.items())
    monkeypatch.setattr(checks, "ALL_CHECKS", made)
    findings = run_checks(pair)
    assert [(f.check_id, f.status, f.message) for f in findings] == expected


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> DeepseekV3:
    folder = tmp_path_factory.mktemp("target")
    write_target(folder)
    return load_target(folder)


@pytest.mark.parametrize(
    "case", [c for c in CASES if c.pair.target == {} and not c.pair.target_files], ids=str
)
def test_checks_agree_with_the_loader(case: Case, target: DeepseekV3, tmp_path: Path) -> None:
    """What cannot be loaded has an error, but for quantized drafts; what has none loads."""
    ctx = case.pair(tmp_path)
    findings = run_checks(dataclasses.replace(ctx, deep=True))
    # What concerns a host or the values, and nothing that the loader looks at: it goes by tensors
    # where a host believes quantization metadata (V23).
    beside = {"V1", "V12", "V23", "V26", "V27", "V28", "V30", "V31"}
    accused = {f.check_id for f in errors(findings)}
    refusal = ""
    try:
        load_draft(tmp_path / "draft", target, boundaries=ctx.boundaries)
    except ExtError as error:
        refusal = str(error)
    if refusal:
        assert accused or "quantized" in refusal
    else:
        assert accused <= beside
