# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Drafts that the loader refuses are opened as an engine without checks would run them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tensorrt_llm_ext.checkpoints.loader import read_draft_config, read_target_config
from tensorrt_llm_ext.configs.target import TargetConfig
from tensorrt_llm_ext.diagnostics.canary.opening import OpenedDraft, open_leniently
from tensorrt_llm_ext.errors import CheckpointError, ConfigError, ExtError, UnsupportedError
from tests.diagnostics.canary.conftest import EXAMPLE
from tests.support.faults import prune, read_draft, write_draft


@pytest.fixture
def config(example: Path) -> TargetConfig:
    return read_target_config(example / "target")


@pytest.fixture
def opened(tmp_path: Path, config: TargetConfig) -> Callable[..., OpenedDraft]:
    """Writes a changed draft, checks that the loader refuses it, and opens it."""

    def call(change: Callable[[dict[str, Any], dict[str, torch.Tensor]], None]) -> OpenedDraft:
        raw, tensors = read_draft(EXAMPLE / "draft")
        change(raw, tensors)
        folder = write_draft(tmp_path / "draft", raw, tensors)
        with pytest.raises(ExtError):
            read_draft_config(folder, config)
        return open_leniently(folder, config)

    return call


def test_a_sound_draft_is_read_as_by_the_loader(config: TargetConfig) -> None:
    found = open_leniently(EXAMPLE / "draft", config)
    assert found.problems == ()
    assert found.declared.config == read_draft_config(EXAMPLE / "draft", config)
    assert "fc.weight" in found.declared.tensors


def test_a_flag_that_is_off_leaves_its_tensors_idle(opened: Any) -> None:
    def drop(raw: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        raw["fc_norm"] = raw["eagle_config"]["fc_norm"] = False

    found = opened(drop)
    assert not found.declared.config.fc_norm
    assert "fc_norm.0.weight" in found.declared.tensors
    assert found.problems[0].startswith("V18: ")


def test_a_flag_without_tensors_is_off(opened: Any) -> None:
    def drop(raw: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        for index in range(3):
            del tensors[f"fc_norm.{index}.weight"]

    found = opened(drop)
    assert not found.declared.config.fc_norm
    assert len(found.problems) == 1


def test_contradicting_ids_are_read_by_the_explicit_key(opened: Any) -> None:
    def contradict(raw: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        raw["trtllm_ext_aux_boundaries"] = [4, 6, 8]

    found = opened(contradict)
    assert found.declared.config.boundaries == (4, 6, 8)
    assert found.problems


def test_two_faults_are_both_told(opened: Any) -> None:
    def both(raw: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        raw["fc_norm"] = raw["eagle_config"]["fc_norm"] = False
        raw["trtllm_ext_aux_boundaries"] = [4, 6, 8]

    found = opened(both)
    assert found.declared.config.boundaries == (4, 6, 8)
    assert not found.declared.config.fc_norm
    assert len(found.problems) == 2


def test_a_vocabulary_map_is_kept_inside(tmp_path: Path, config: TargetConfig) -> None:
    raw, tensors = prune(*read_draft(EXAMPLE / "draft"), range(0, 896, 2))
    tensors["d2t"] = tensors["d2t"] + torch.arange(448)
    found = open_leniently(write_draft(tmp_path / "d", raw, tensors), config)
    ids = torch.arange(448) + found.declared.tensors["d2t"]
    assert int(ids.max()) == 895
    assert found.problems[0].startswith("V21: ")


def test_the_users_boundaries_come_first(config: TargetConfig, tmp_path: Path) -> None:
    raw, tensors = read_draft(EXAMPLE / "draft")
    del raw["trtllm_ext_aux_boundaries"]
    raw["model_type"] = "deepseek_v3"
    folder = write_draft(tmp_path / "d", raw, tensors)
    found = open_leniently(folder, config, boundaries=(3, 5, 7))
    assert found.declared.config.boundaries == (3, 5, 7)
    assert found.problems == ()


def test_what_cannot_be_run_stays_refused(tmp_path: Path, config: TargetConfig) -> None:
    raw, tensors = read_draft(EXAMPLE / "draft")

    def refused(name: str, error: type[ExtError], match: str, **changes: Any) -> None:
        folder = write_draft(tmp_path / name, {**raw, **changes}, tensors)
        with pytest.raises(error, match=match):
            open_leniently(folder, config)

    refused("code", CheckpointError, "brings code", auto_map={"AutoModel": "x.Y"})
    refused("vocab", ConfigError, "cannot be read in any way", vocab_size=900)
    refused("wide", ExtError, "kv_lora_rank", kv_lora_rank=256)
    packed = {**tensors, "fc.weight": torch.zeros(256, 384, dtype=torch.uint8)}
    with pytest.raises(UnsupportedError, match="quantized"):
        open_leniently(write_draft(tmp_path / "packed", raw, packed), config)
