# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""What fits is written so that the ordinary loader reads it; the input is never touched."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tensorrt_llm_ext.checkpoints.loader import load_draft, read_draft_config
from tensorrt_llm_ext.diagnostics.canary.agreement import propose
from tensorrt_llm_ext.diagnostics.canary.building import build_draft
from tensorrt_llm_ext.diagnostics.canary.fix import write_fixed
from tensorrt_llm_ext.diagnostics.canary.opening import OpenedDraft, Setting, open_leniently
from tensorrt_llm_ext.diagnostics.canary.variants import all_factors, combine
from tensorrt_llm_ext.errors import CheckpointError
from tensorrt_llm_ext.models.deepseek import DeepseekV3
from tests.diagnostics.canary.conftest import EXAMPLE, random_states
from tests.support.faults import FAULTS, plant, prune, read_draft, write_draft
from tests.support.tiny_models import CPU

KEEP = range(0, 896, 3)


def digest(folder: Path) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.iterdir()}


def wanted_setting(opened: OpenedDraft, target: DeepseekV3, names: tuple[str, ...]) -> Setting:
    heads = {
        "head rows in the target's order": target.lm_head.weight.bfloat16(),
        "the target's own head rows": target.lm_head.weight[torch.tensor(list(KEEP))].bfloat16(),
    }
    ids = torch.arange(len(KEEP))
    maps = {"the map that the head's rows say": torch.tensor(list(KEEP)) - ids}
    found, _ = all_factors(
        opened.declared, target.config, frozenset(range(9)), heads=heads, maps=maps
    )
    by_name = {factor.name: factor for factor in found}
    setting = combine(opened.declared, tuple(by_name[name] for name in names))
    assert setting is not None
    return setting


def proposals(setting: Setting, target: DeepseekV3) -> torch.Tensor:
    (sequence,) = random_states(target.config, (24,)).sequences
    draft = build_draft(setting, target, device=CPU, dtype=torch.float32)
    return propose(draft, sequence, sequence.anchors(3), 3)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_the_corrected_folder_is_what_was_wanted(fault, tmp_path: Path, target: DeepseekV3) -> None:
    config, tensors = read_draft(EXAMPLE / "draft")
    if fault.is_pruned:
        config, tensors = prune(config, tensors, KEEP)
    folder = write_draft(tmp_path / "in", *plant(fault, config, tensors))
    before = digest(folder)
    opened = open_leniently(folder, target.config)
    wanted = wanted_setting(opened, target, fault.factors)
    notes = write_fixed(opened, wanted, tmp_path / "out", target.config)
    assert notes
    assert digest(folder) == before
    again = open_leniently(tmp_path / "out", target.config)
    assert again.problems == ()
    assert again.declared.config.boundaries == tuple(sorted(wanted.config.boundaries))
    assert torch.equal(proposals(again.declared, target), proposals(wanted, target))
    load_draft(tmp_path / "out", target)  # the strict loader takes it


def test_every_spelling_is_rewritten_in_its_own_convention(
    tmp_path: Path, target: DeepseekV3
) -> None:
    config, tensors = read_draft(EXAMPLE / "draft")
    folder = write_draft(tmp_path / "in", config, tensors)
    opened = open_leniently(folder, target.config)
    names = ("boundaries+1", "norm_output=off", "rope=target")
    write_fixed(opened, wanted_setting(opened, target, names), tmp_path / "out", target.config)
    found = json.loads((tmp_path / "out" / "config.json").read_text())
    assert found["trtllm_ext_aux_boundaries"] == [4, 6, 8]
    assert found["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [3, 5, 7]  # after-layer
    assert found["norm_output"] is found["eagle_config"]["norm_output"] is False
    for key in ("rope_scaling", "rope_parameters"):
        assert found[key]["beta_fast"] == 32.0
        assert found[key]["mscale_all_dim"] == 1.0
    assert found["rope_parameters"]["rope_theta"] == found["rope_theta"] == 50000.0
    untouched = {"vocab_size", "hidden_size", "architectures", "torch_dtype", "fc_norm"}
    assert all(found[key] == config[key] for key in untouched)


def test_the_layout_stays(tmp_path: Path, target: DeepseekV3) -> None:
    """Prefixed midlayer names and a fused a-projection come out as they went in."""
    config, tensors = read_draft(EXAMPLE / "draft")
    attention = "layers.0.self_attn."
    fused = torch.cat(
        [
            tensors.pop(f"{attention}q_a_proj.weight"),
            tensors.pop(f"{attention}kv_a_proj_with_mqa.weight"),
        ]
    )
    tensors[f"{attention}fused_qkv_a_proj_with_mqa.weight"] = fused
    renamed = {
        "model." + name.replace("layers.0.", "midlayer."): tensor
        for name, tensor in tensors.items()
    }
    folder = write_draft(tmp_path / "in", config, renamed)
    (folder / "chat_template.jinja").write_text("hello")
    opened = open_leniently(folder, target.config)
    wanted = wanted_setting(opened, target, ("mscale=none", "order[2,1,3]"))
    write_fixed(opened, wanted, tmp_path / "out", target.config)
    _, written = read_draft(tmp_path / "out")
    assert set(written) == set(renamed)
    changed = {name for name in renamed if not torch.equal(written[name], renamed[name])}
    assert changed == {
        "model.midlayer.self_attn.q_b_proj.weight",
        "model.fc.weight",
        "model.fc_norm.0.weight",
        "model.fc_norm.1.weight",
    }
    assert (tmp_path / "out" / "chat_template.jinja").read_text() == "hello"


def test_idle_tensors_are_left_out(tmp_path: Path, target: DeepseekV3) -> None:
    opened = open_leniently(EXAMPLE / "draft", target.config)
    wanted = wanted_setting(opened, target, ("fc_norm=off",))
    notes = write_fixed(opened, wanted, tmp_path / "out", target.config)
    assert "fc_norm.0.weight left out" in notes
    assert read_draft_config(tmp_path / "out", target.config).fc_norm is False


def test_the_inverse_map_follows_the_map(tmp_path: Path, target: DeepseekV3) -> None:
    config, tensors = prune(*read_draft(EXAMPLE / "draft"), KEEP)
    tensors["d2t"] = torch.arange(len(KEEP)) + tensors["d2t"]  # absolute
    tensors["t2d"] = tensors["t2d"].roll(5)
    folder = write_draft(tmp_path / "in", config, tensors)
    opened = open_leniently(folder, target.config)
    wanted = wanted_setting(opened, target, ("d2t: d2t read as target ids",))
    write_fixed(opened, wanted, tmp_path / "out", target.config)
    assert open_leniently(tmp_path / "out", target.config).problems == ()
    _, written = read_draft(tmp_path / "out")
    assert written["t2d"].nonzero().flatten().tolist() == list(KEEP)
    assert written["t2d"].dtype == torch.bool


def test_nothing_is_overwritten(tmp_path: Path, target: DeepseekV3) -> None:
    config, tensors = read_draft(EXAMPLE / "draft")
    folder = write_draft(tmp_path / "in", config, tensors)
    opened = open_leniently(folder, target.config)
    with pytest.raises(CheckpointError, match="exists already"):
        write_fixed(opened, opened.declared, folder, target.config)
    with pytest.raises(CheckpointError, match="lies in the draft's own folder"):
        write_fixed(opened, opened.declared, folder / "out", target.config)
    assert not (folder / "out").exists()


def test_ids_in_an_undecided_convention_are_replaced_by_boundaries(
    tmp_path: Path, target: DeepseekV3
) -> None:
    """Without the explicit key [2, 4, 6] may mean two things; the fix says which."""
    config, tensors = read_draft(EXAMPLE / "draft")
    del config["trtllm_ext_aux_boundaries"]
    config["model_type"] = "deepseek_v3"  # or the producer would decide
    folder = write_draft(tmp_path / "in", config, tensors)
    opened = open_leniently(folder, target.config)
    assert "can be read in two ways" in opened.problems[0]
    assert opened.declared.config.boundaries == (2, 4, 6)
    wanted = replace(opened.declared, config=replace(opened.declared.config, boundaries=(3, 5, 7)))
    write_fixed(opened, wanted, tmp_path / "out", target.config)
    assert read_draft_config(tmp_path / "out", target.config).boundaries == (3, 5, 7)
