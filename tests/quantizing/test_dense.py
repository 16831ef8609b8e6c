# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from tensorrt_llm_ext.diagnostics.canary.agreement import measure_agreement
from tensorrt_llm_ext.diagnostics.canary.building import MappingSource
from tensorrt_llm_ext.engine.teacher_states import TeacherStates
from tensorrt_llm_ext.errors import CheckpointError
from tensorrt_llm_ext.models.blocks import TorchBlocks
from tensorrt_llm_ext.models.eagle3 import Eagle3Draft
from tensorrt_llm_ext.quantizing.dense import BorrowedEnds, DenseDraft, linear_names
from tensorrt_llm_ext.quantizing.rollout import make_packs, rollout
from tests.support.quantizing import ends, quantizable_json, read_draft, texts
from tests.support.tiny_checkpoints import write_draft

STEPS = 3
KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "full-rank query": ({"q_lora_rank": None}, {}),
    "3.1": ({"fc_norm": True, "norm_output": True}, {}),
    "norm before fc": ({"norm_before_fc": True}, {}),
    "normed residual": ({"norm_before_residual": True}, {}),
    "reduced vocabulary": ({"draft_vocab_size": 40}, {}),
    "own embedding": ({}, {"embedding": True}),
    "two layers": ({"num_hidden_layers": 2}, {}),
}


def engine_draft(config: Any, tensors: dict[str, torch.Tensor]) -> Eagle3Draft:
    """The same draft over the engine's blocks."""
    blocks = TorchBlocks(torch.device("cpu"), torch.float32)
    borrowed = ends()
    embedding = blocks.embedding("", *borrowed.embed_tokens.shape)
    head = blocks.lm_head("", borrowed.lm_head.shape[1], borrowed.lm_head.shape[0])
    with torch.no_grad():
        embedding.weight.copy_(borrowed.embed_tokens)
        head.weight.copy_(borrowed.lm_head)
    draft = Eagle3Draft(config, blocks, 0)
    draft.load_weights(MappingSource(tensors))
    if not config.has_own_embedding:
        draft.embed_tokens = embedding
    if not config.has_own_lm_head:
        draft.lm_head = head
    return draft.eval()


@pytest.mark.parametrize("kind", KINDS)
def test_proposes_what_the_engine_proposes(tmp_path: Path, kind: str) -> None:
    config_json, shapes = KINDS[kind]
    write_draft(tmp_path / "draft", quantizable_json(**config_json), **shapes)
    config, tensors = read_draft(tmp_path / "draft")
    draft = DenseDraft(config, tensors, ends())
    states = texts((25, 19))
    # Anchors so far apart that the labels of one chain are not those of the next.
    anchors, labelled = [], []
    for index, sequence in enumerate(states.sequences):
        starts = torch.arange(1, sequence.length - STEPS - 1, STEPS + 1)
        pack = make_packs(
            TeacherStates(sequences=(sequence,), source="", labels=""), config.boundaries, STEPS
        )[0]
        pack = dataclasses.replace(pack, anchors=starts)
        with torch.no_grad():
            said = torch.stack([s.tokens for s in rollout(draft.core, pack, STEPS)], dim=1)
        labels = sequence.labels.clone()
        for start, row in zip(starts.tolist(), said, strict=True):
            labels[start + 1 : start + 1 + STEPS] = row
        anchors.append(starts)
        labelled.append(dataclasses.replace(sequence, labels=labels))
        assert said.unique().numel() > 1, index
    states = dataclasses.replace(states, sequences=tuple(labelled))
    found = measure_agreement(engine_draft(config, tensors), states, anchors, STEPS)
    assert all(bool((part == STEPS).all()) for part in found.accepted)


def test_state_dict_is_the_checkpoint(draft: Path) -> None:
    config, tensors = read_draft(draft)
    module = DenseDraft(config, tensors, ends(), dtype=torch.bfloat16)
    state = module.state_dict()
    assert state.keys() == tensors.keys()
    assert all(torch.equal(state[name], tensor) for name, tensor in tensors.items())
    assert "layers.0.self_attn.kv_b_proj" in linear_names(module)


def test_weights_are_not_copied(draft: Path) -> None:
    config, tensors = read_draft(draft)
    module = DenseDraft(config, tensors, ends(), dtype=torch.bfloat16)
    weight = module.get_submodule("layers.0.mlp.down_proj").weight
    assert weight.data_ptr() == tensors["layers.0.mlp.down_proj.weight"].data_ptr()


def test_missing_tensors_and_ends_are_refused(draft: Path) -> None:
    config, tensors = read_draft(draft)
    with pytest.raises(CheckpointError, match=r"missing \['fc.weight'\]"):
        DenseDraft(config, {n: t for n, t in tensors.items() if n != "fc.weight"}, ends())
    with pytest.raises(CheckpointError, match="no embedding of its own"):
        DenseDraft(config, tensors, BorrowedEnds())
