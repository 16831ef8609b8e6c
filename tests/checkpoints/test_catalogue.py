# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Every public draft of the catalogue is detected, normalized and judged as is known of it."""

from __future__ import annotations

import dataclasses
import math
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from tensorrt_llm_ext.checkpoints.checks import run_checks, worst
from tensorrt_llm_ext.checkpoints.checks.base import CheckContext, Status
from tensorrt_llm_ext.checkpoints.loader import read_draft_config
from tensorrt_llm_ext.checkpoints.normalize import (
    TargetCheckpoint,
    draft_config,
    open_draft,
    open_target,
    target_config,
)
from tensorrt_llm_ext.checkpoints.quantized import module_formats
from tensorrt_llm_ext.checkpoints.rows import read_tensor
from tensorrt_llm_ext.configs.target import TargetConfig
from tensorrt_llm_ext.errors import ConfigError, ExtError, UnsupportedError
from tests.support.catalogue import Row, build, kept_ids, row, rows, target_rows
from tests.support.header_only import num_bytes

K25_MLA = "lightseekorg/kimi-k2.5-eagle3-mla"
NVIDIA = "nvidia/Kimi-K2.5-Thinking-Eagle3"
NATIVE = "torchspec/kimi_k25_eagle3_mla"
IDS = "eagle_aux_hidden_state_layer_ids"
# The drafts that are public under these names.
PUBLISHED = (
    *(f"nvidia/Kimi-{name}-Eagle3" for name in ("K2-Thinking", "K2.5-Thinking", "K2.6")),
    *(f"lightseekorg/kimi-{name}" for name in ("k2.5-eagle3", "k2.5-eagle3-mla", "k2.6-eagle3")),
    *(f"lightseekorg/kimi-{name}" for name in ("k2.6-eagle3-mla", "k2.6-eagle3.1-mla")),
    *(f"lightseekorg/kimi-{name}" for name in ("k2.7-coder-eagle3.1-mla", "k3-eagle3-mla")),
    *("lightseekorg/kimi-k3-eagle3.1-mla", "k-l-lambda/kimi-k2.6-eagle3-mla"),
    *("k-l-lambda/kimi-k2.7-code-eagle3-mla", "festr2/kimi-k2.6-eagle3-mla-fp8"),
    *("amd/kimi-k2.5-eagle3-fp8", "ginsongsong/eagle3-kimik2.5-w4a8"),
    *("AQ-MedAI/Kimi-K2-Instruct-eagle3", "AQ-MedAI/Kimi-K25-eagle3"),
    *("AQ-MedAI/DeepSeek-V4-Flash-0731-eagle3", "third-party/kimi-k3-torchspec"),
)


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Opens targets by name, without their routed experts, which no rule of a draft looks at."""
    root = tmp_path_factory.mktemp("targets")

    @cache
    def opened(name: str) -> TargetCheckpoint:
        item = row(name)
        body = {tensor: spec for tensor, spec in item.tensors.items() if ".experts." not in tensor}
        return open_target(build(dataclasses.replace(item, tensors=body, shards=1), root / name))

    return opened


def config_of(target: TargetCheckpoint | None) -> TargetConfig | None:
    """The target's config, or None where this package does not run the target."""
    try:
        return None if target is None else target_config(target)
    except UnsupportedError:
        return None


def test_the_catalogue_is_complete() -> None:
    assert set(PUBLISHED) <= set(rows())
    for name in (*rows(), *target_rows()):
        item = row(name)
        assert item.provenance in ("read", "inferred"), name
        assert item.provenance == "read" or item.inferred, name


@pytest.mark.parametrize("name", rows())
def test_row(name: str, targets: Any, tmp_path: Path) -> None:
    item = row(name)
    expect = item.expect
    folder = build(item, tmp_path / "draft")
    draft = open_draft(folder)
    assert draft.detection.format.name == expect["format"], draft.detection.evidence
    assert draft.detection.evidence
    _check_tensors(item, draft)
    assert (draft.quant.algo, draft.quant.kv_cache_algo) == (expect.get("quant"), expect.get("kv"))
    target = targets(item.target) if item.target else None
    found = run_checks(CheckContext(draft=draft, target=target))
    errors = {f.check_id for f in found if f.status is Status.ERROR}
    if expect["verdict"] == "refused":
        with pytest.raises(ExtError, match=expect["says"]) as raised:
            draft_config(draft, config_of(target))
        assert raised.value.check == expect["check"]
        assert expect["check"] in errors
        message = next(f.message for f in found if f.check_id == expect["check"])
        assert expect["says"] in message
        return
    config = draft_config(draft, config_of(target))
    assert list(config.boundaries) == expect["boundaries"], config.boundaries_evidence
    flags = {"fc_norm": False, "norm_output": False, **expect.get("flags", {})}
    assert {key: getattr(config, key) for key in flags} == flags
    assert config.has_own_embedding == expect["embedding"]
    assert config.has_d2t == expect.get("d2t", False)
    assert config.draft_vocab_size == expect.get("draft_vocab", config.vocab_size)
    warnings = {f.check_id for f in found if f.status is Status.WARNING}
    loud = [f for f in found if f.status in (Status.WARNING, Status.ERROR)]
    assert errors == set(expect.get("errors", ())), loud
    assert warnings == set(expect.get("warnings", ())), loud
    if not set(expect.get("formats", ())) <= {"float", "nvfp4", "fp8"}:
        with pytest.raises(UnsupportedError, match="quantized"):
            read_draft_config(folder)
    else:
        assert read_draft_config(folder, config_of(target)) == config


def _check_tensors(item: Row, draft: Any) -> None:
    """Every stored tensor is consumed once, whole or split; names are canonical."""
    expect = item.expect
    assert len(item.tensors) == expect.get("num_tensors", len(item.tensors))
    if "parameters_millions" in expect:
        count = sum(math.prod(shape) for _, shape in item.tensors.values())
        assert round(count / 1e6, 1) == expect["parameters_millions"]
    used = [ref.name for ref in draft.tensors.refs.values()]
    assert sorted(used) == sorted(item.tensors)
    assert "fc.weight" in draft.tensors.refs
    assert "layers.0.hidden_norm.weight" in draft.tensors.refs
    if "formats" in expect:
        shapes = draft.tensors.shapes(draft.files.shapes)
        dtypes = {n: draft.files.entries[r.name].dtype for n, r in draft.tensors.refs.items()}
        kinds = [
            f.kind for f in module_formats({n: (dtypes[n], shapes[n]) for n in dtypes}).values()
        ]
        for kind, count in expect["formats"].items():
            assert kinds.count(kind) == count


# --- captured layers --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "ids"), [(NVIDIA, [1, 29, 57]), (NATIVE, [1, 29, 57]), (K25_MLA, [2, 30, 58])]
)
@pytest.mark.parametrize("target", ["moonshotai/Kimi-K2.5", "nvidia/Kimi-K2.5-NVFP4"])
def test_both_spellings_are_the_same_boundaries(
    name: str, ids: list[int], target: str, targets: Any, tmp_path: Path
) -> None:
    item = row(name)
    assert item.config["eagle_config"][IDS] == ids
    config = draft_config(open_draft(build(item, tmp_path)), config_of(targets(target)))
    assert config.boundaries == (2, 30, 58)


def with_ids(name: str, ids: list[int], folder: Path) -> Path:
    """Builds a row with other layer ids in their usual place."""
    item = row(name)
    return build(item, folder, config={"eagle_config": {**item.config["eagle_config"], IDS: ids}})


@pytest.mark.parametrize("name", [NVIDIA, NATIVE])
def test_after_layer_ids_from_two_are_not_boundaries(
    name: str, targets: Any, tmp_path: Path
) -> None:
    """[2, 4, 6] after layers is 3, 5, 7, although it begins like the default boundaries."""
    draft = open_draft(with_ids(name, [2, 4, 6], tmp_path))
    target = config_of(targets("moonshotai/Kimi-K2.5"))
    assert draft_config(draft, target).boundaries == (3, 5, 7)
    # With nine layers they are also the default boundaries: evidence disagrees, nobody guesses.
    nine = dataclasses.replace(target, num_layers=9)
    with pytest.raises(ConfigError, match="disagree") as raised:
        draft_config(draft, nine)
    assert raised.value.check == "V10"
    assert draft_config(draft, nine, boundaries=(3, 5, 7)).boundaries == (3, 5, 7)


def test_boundaries_that_are_nobodys_default(targets: Any, tmp_path: Path) -> None:
    draft = open_draft(with_ids(K25_MLA, [5, 20, 40], tmp_path))
    target = config_of(targets("moonshotai/Kimi-K2.5"))
    with pytest.raises(ConfigError, match="two ways") as raised:
        draft_config(draft, target)
    assert raised.value.check == "V10"
    assert draft_config(draft, target, boundaries=(6, 21, 41)).boundaries == (6, 21, 41)


NESTED = {"eagle_config": {IDS: [2, 30, 58]}}
FLAT = {IDS: [2, 30, 58]}
ANGELSLIM = {"aux_hidden_states_layer_ids": [1, 29, 57]}


@pytest.mark.parametrize(
    "home",
    [
        pytest.param(NESTED, id="nested"),
        pytest.param(FLAT, id="flat"),
        pytest.param({**NESTED, **FLAT}, id="both"),
        pytest.param({"eagle_config": {"layer_ids": [2, 30, 58]}}, id="vllm"),
        pytest.param({**FLAT, **ANGELSLIM}, id="angelslim"),
        pytest.param(ANGELSLIM, id="angelslim-after-only"),
        pytest.param({"trtllm_ext_aux_boundaries": [2, 30, 58]}, id="explicit"),
        pytest.param({**NESTED, "trtllm_ext_aux_boundaries": [2, 30, 58]}, id="explicit-and-ids"),
    ],
)
def test_homes_of_the_ids(home: dict[str, Any], targets: Any, tmp_path: Path) -> None:
    folder = build(row(K25_MLA), tmp_path, config=home, without=_without(home))
    config = draft_config(open_draft(folder), config_of(targets("moonshotai/Kimi-K2.5")))
    assert config.boundaries == (2, 30, 58)


def _without(home: dict[str, Any]) -> tuple[str, ...]:
    return () if "eagle_config" in home else ("eagle_config",)


@pytest.mark.parametrize(
    "home",
    [
        pytest.param({**NESTED, IDS: [1, 29, 57]}, id="nested-and-flat"),
        pytest.param({**NESTED, IDS: [2, 30, 59]}, id="other-layers"),
        pytest.param({**FLAT, "aux_hidden_states_layer_ids": [3, 31, 59]}, id="angelslim"),
        pytest.param({**NESTED, "trtllm_ext_aux_boundaries": [3, 31, 59]}, id="explicit"),
    ],
)
def test_conflicting_homes_are_refused(home: dict[str, Any], targets: Any, tmp_path: Path) -> None:
    folder = build(row(K25_MLA), tmp_path, config=home, without=_without(home))
    draft, target = open_draft(folder), targets("moonshotai/Kimi-K2.5")
    with pytest.raises(ConfigError) as raised:
        draft_config(draft, config_of(target))
    assert raised.value.check in ("V9", "V10")
    found = run_checks(CheckContext(draft=draft, target=target))
    assert worst(found) is Status.ERROR
    assert raised.value.check in {f.check_id for f in found if f.status is Status.ERROR}


def test_speculators_ids_are_found_beside_the_nested_layer(tmp_path: Path) -> None:
    """An MLA layer in speculators' clothes: nobody trains one, but the reader must see the ids."""
    item = row(K25_MLA)
    layer = {key: value for key, value in item.config.items() if key != "eagle_config"}
    config = {"speculators_model_type": "eagle3", "transformer_layer_config": layer, **FLAT}
    folder = build(dataclasses.replace(item, config=config), tmp_path)
    draft = open_draft(folder)
    assert draft.detection.format.name == "speculators"
    assert draft_config(draft).boundaries == (2, 30, 58)


# --- vocabulary maps and targets --------------------------------------------------------------


@pytest.mark.parametrize("name", [n for n in rows() if row(n).expect.get("d2t")])
def test_vocabulary_maps_hold_real_offsets(name: str, tmp_path: Path) -> None:
    draft = open_draft(build(name, tmp_path))
    d2t = read_tensor(draft.files, draft.tensors.refs["d2t"].name)
    assert d2t.shape == (32000,)
    assert torch.equal(d2t + torch.arange(32000), kept_ids(32000, 163840))
    passed = {
        f.check_id for f in run_checks(CheckContext(draft=draft)) if f.status is Status.PASSED
    }
    assert {"V8", "V21"} <= passed


@pytest.mark.parametrize("name", target_rows())
def test_target(name: str, targets: Any) -> None:
    item = row(name)
    target = targets(name)
    assert len(item.tensors) == item.expect.get("num_tensors", len(item.tensors))
    if "gibibytes" in item.expect:
        size = sum(map(num_bytes, item.tensors.values()))
        assert round(size / 2**30, 1) == item.expect["gibibytes"]
    if item.expect["verdict"] == "refused":
        with pytest.raises(UnsupportedError, match=item.expect["says"]):
            target_config(target)
        return
    config = target_config(target)
    assert config.num_layers == item.expect["num_layers"]
    if "quant" in item.expect:
        assert target.quant.algo == item.expect["quant"]
        assert target.quant.kv_cache_algo == item.expect.get("kv")
    assert item.expect.get("rotation", "") in target.quant.rotation.casefold()


def test_a_rotated_target_is_refused(targets: Any, tmp_path: Path) -> None:
    draft = open_draft(build(K25_MLA, tmp_path))
    target = targets("ascend/Kimi-K2.5-QuaRot")
    found = {f.check_id: f for f in run_checks(CheckContext(draft=draft, target=target))}
    assert found["V27"].status is Status.ERROR
    assert "quarot" in found["V27"].message.casefold()
