# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""States in files: our own format, ModelOpt's, and what is refused."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tensorrt_llm_ext.diagnostics.canary import load_states, save_states
from tensorrt_llm_ext.engine.teacher_files import FROM_TEXT
from tensorrt_llm_ext.errors import CheckpointError
from tests.diagnostics.canary.conftest import random_states
from tests.support.tiny_models import random_target


def test_our_own_file_comes_back_as_it_was(tmp_path: Path) -> None:
    config, _ = random_target(1)
    states = random_states(config, (9, 14), labels=False)
    save_states(states, tmp_path / "new" / "states.safetensors")
    back = load_states(tmp_path / "new" / "states.safetensors", (1,))
    assert back.boundaries == states.boundaries
    assert back.labels == "the target's tokens in the file"
    for one, other in zip(states.sequences, back.sequences, strict=True):
        assert torch.equal(one.input_ids, other.input_ids)
        assert torch.equal(one.labels, other.labels)
        assert torch.equal(one.counted, other.counted)
        assert all(torch.equal(one.states[b], other.states[b]) for b in one.states)


def test_without_target_ids_the_text_is_the_label(tmp_path: Path) -> None:
    file = tmp_path / "s.safetensors"
    ids = torch.tensor([5, 6, 7, 8], dtype=torch.int32)
    save_file({"0.input_ids": ids, "0.boundary.3": torch.zeros(4, 2)}, file)
    states = load_states(file, (3,))
    assert states.labels == FROM_TEXT
    assert states.sequences[0].labels.tolist() == [6, 7, 8, -1]
    assert states.sequences[0].anchors(2).tolist() == [0, 1]


@pytest.mark.parametrize("has_head", [False, True])
def test_modelopts_conversations_are_read(tmp_path: Path, has_head: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(8, (12,), generator=generator)
    hidden = torch.nn.functional.one_hot(ids.roll(-1), 8).float()  # the head is the identity
    hidden[3] = hidden[3].roll(1)  # where the target would have said something else
    aux = torch.randn(12, 6, generator=generator)
    content = {
        "input_ids": ids,
        "hidden_states": hidden,
        "aux_hidden_states": aux,
        "loss_mask": torch.arange(12) >= 4,
        "conversation_id": "abc",
    }
    for name in ("a.pt", "b.pt"):
        torch.save(content, tmp_path / name)
    head = torch.eye(8) if has_head else None
    states = load_states(tmp_path, (2, 5, 9), target_head=head)
    assert len(states.sequences) == 2
    one = states.sequences[0]
    assert torch.equal(one.states[5], aux[:, 2:4])
    assert one.counted.tolist() == [False] * 4 + [True] * 8
    if has_head:
        assert states.labels == "the target's tokens, from its final states"
        assert one.labels.tolist() == hidden.argmax(1).tolist()
    else:
        assert states.labels == FROM_TEXT
    assert torch.equal(load_states(tmp_path / "a.pt", (2, 5, 9)).sequences[0].input_ids, ids)


def test_states_from_before_the_final_norm_are_not_taken_for_tokens(tmp_path: Path) -> None:
    ids = torch.tensor([0, 3, 6, 1, 4, 7, 2, 5, 0, 3, 6, 1])
    content = {
        "input_ids": ids,
        "aux_hidden_states": torch.zeros(12, 4),
        "hidden_states": torch.nn.functional.one_hot((ids + 1) % 8, 8).float(),
    }
    torch.save(content, tmp_path / "a.pt")
    states = load_states(tmp_path / "a.pt", (2, 3), target_head=torch.eye(8))
    assert states.labels == FROM_TEXT


class _Bomb:
    def __reduce__(self):
        return (Path.touch, (Path("exploded"),))


def test_nothing_is_unpickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"input_ids": _Bomb()}, tmp_path / "bomb.pt")
    (tmp_path / "raw.pt").write_bytes(pickle.dumps(_Bomb(), protocol=2))
    for name in ("bomb.pt", "raw.pt"):
        with pytest.raises(CheckpointError, match="cannot be read as tensors alone"):
            load_states(tmp_path / name, (1,))
    assert not (tmp_path / "exploded").exists()


def test_other_files_are_refused_with_what_they_lack(tmp_path: Path) -> None:
    def refused(name: str, match: str, boundaries: tuple[int, ...] = (1,)) -> None:
        with pytest.raises(CheckpointError, match=match):
            load_states(tmp_path / name, boundaries)

    refused("missing.safetensors", "does not exist")
    refused("", "has no .pt files")
    (tmp_path / "x.txt").write_text("hello")
    refused("x.txt", r"neither .safetensors nor .pt")
    (tmp_path / "x.safetensors").write_text("hello")
    refused("x.safetensors", "cannot be read")
    save_file({"model.fc.weight": torch.zeros(2)}, tmp_path / "draft.safetensors")
    refused("draft.safetensors", "none of a file of teacher states")
    save_file({"0.input_ids": torch.arange(3)}, tmp_path / "bare.safetensors")
    refused("bare.safetensors", "at least one 0.boundary")
    torch.save([1, 2], tmp_path / "list.pt")
    refused("list.pt", "holds a list")
    torch.save({"hidden_states": torch.zeros(2)}, tmp_path / "keys.pt")
    refused("keys.pt", "input_ids and aux_hidden_states")
    torch.save(
        {"input_ids": torch.arange(3), "aux_hidden_states": torch.zeros(3, 7)}, tmp_path / "w.pt"
    )
    refused("w.pt", "not 2 captured layers side by side", (1, 2))
