# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Exported folders compute what the training modules compute, wherever they are loaded."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import export
import pytest
import torch
import unwrap
from hf_names import read_target
from model import CAPTURED_BOUNDARIES, Draft, Target
from safetensors import safe_open
from safetensors.torch import load_file
from transformers import DeepseekV3ForCausalLM

from tensorrt_llm_ext.checkpoints.loader import load_draft, load_target, read_draft_config
from tests.examples import tiny_sizes
from tests.models import naive_draft
from tests.support.tiny_models import make_context

COMMITTED = Path(export.__file__).parent
DRAFT_STEPS = 4


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_sizes.target(1)


@pytest.fixture(scope="module")
def draft() -> Draft:
    return tiny_sizes.draft(2)


@pytest.fixture(scope="module")
def target_folder(target: Target, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("target")
    export.export_target(target.state_dict(), folder, tiny_sizes.TARGET)
    return folder


@pytest.fixture(scope="module")
def draft_folder(draft: Draft, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("draft")
    export.export_draft(
        draft.state_dict(), folder, tiny_sizes.DRAFT, boundaries=tiny_sizes.BOUNDARIES
    )
    return folder


@pytest.fixture
def ids() -> torch.Tensor:
    return torch.randint(3, 60, (2, 40), generator=torch.Generator().manual_seed(3))


def engine_logits(
    folder: Path, ids: torch.Tensor, boundaries: tuple[int, ...], dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Runs the package's model over whole rows; logits and captured states."""
    model = load_target(folder, dtype=dtype)
    config = model.config
    lengths = [ids.shape[1]] * len(ids)
    plan = make_context(config.num_layers, config.mla.latent_size, lengths, dtype=dtype)
    hidden, captured = model(ids.flatten(), plan.positions, plan.ctx, boundaries)
    logits = model.compute_logits(hidden).unflatten(0, ids.shape)
    assert captured is not None
    return logits, captured.unflatten(0, ids.shape)


@torch.no_grad()
def test_transformers_computes_the_same(
    target: Target, target_folder: Path, ids: torch.Tensor, tmp_path: Path
) -> None:
    unwrap.unwrap(target_folder, tmp_path / "unwrapped")
    model = DeepseekV3ForCausalLM.from_pretrained(tmp_path / "unwrapped").float().eval()
    expected = target.head(target(ids)[0])
    assert expected.std() > 0.5
    torch.testing.assert_close(model(ids).logits, expected, rtol=0, atol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_engine_computes_the_same(
    target: Target, target_folder: Path, ids: torch.Tensor, dtype: torch.dtype
) -> None:
    logits, captured = engine_logits(target_folder, ids, (0, 2, 3), dtype)
    hidden, states = target(ids, (0, 2, 3))
    torch.testing.assert_close(logits.float(), target.head(hidden), rtol=0, atol=1e-4)
    expected = torch.cat([states[boundary] for boundary in (0, 2, 3)], -1)
    torch.testing.assert_close(captured.float(), expected, rtol=0, atol=1e-4)


@torch.no_grad()
def test_draft_steps_equal_the_chains_of_the_naive_draft(
    target: Target, draft: Draft, target_folder: Path, draft_folder: Path, ids: torch.Tensor
) -> None:
    """A recurrent step of training is the row that a chain adds behind the true rows."""
    model = load_target(target_folder)
    config = read_draft_config(draft_folder, model.config)
    assert config.boundaries == tiny_sizes.BOUNDARIES
    assert load_draft(draft_folder, model).config == config
    weights = {n: t.double() for n, t in load_file(draft_folder / "model.safetensors").items()}
    row = ids[0]
    _, captured = target(row[None], tiny_sizes.BOUNDARIES)
    states = [captured[boundary] for boundary in tiny_sizes.BOUNDARIES]
    got = draft.unroll(states, target.embed, row[None], DRAFT_STEPS)

    embedding = target.embed.weight.double()
    fused = naive_draft.combine(config, weights, torch.cat(states, -1)[0].double())
    for position in (0, 7, 30):
        hidden = fused[: position + 1]
        for step in range(DRAFT_STEPS):
            tokens = row[1 : 1 + len(hidden)]
            after = naive_draft.states(config, weights, embedding, hidden, tokens)
            expected = naive_draft.logits(config, weights, weights["lm_head.weight"], after[-1])
            torch.testing.assert_close(got[step][0, position].double(), expected, rtol=0, atol=1e-4)
            hidden = torch.cat((hidden, after[-1:]))


def test_target_reads_back(target: Target, target_folder: Path) -> None:
    again = read_target(target_folder, tiny_sizes.TARGET).state_dict()
    assert again.keys() == target.state_dict().keys()
    for name, tensor in target.state_dict().items():
        assert torch.equal(again[name], tensor), name


def test_package_knows_every_key_and_skips_the_vision_part(
    target_folder: Path, draft_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        load_draft(draft_folder, load_target(target_folder))
    (warning,) = [record for record in caplog.records if record.levelno > logging.INFO]
    assert "mm_projector.: 6, vision_tower.: 17" in warning.getMessage()


def test_unwrap_refuses_what_is_not_wrapped(target_folder: Path, tmp_path: Path) -> None:
    unwrap.unwrap(target_folder, tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    assert "preprocessor_config.json" not in names
    assert {"config.json", "generation_config.json", "tokenizer.json"} <= names
    with pytest.raises(ValueError, match="not wrapped"):
        unwrap.unwrap(tmp_path, tmp_path / "again")
    with pytest.raises(ValueError, match="itself"):
        unwrap.unwrap(target_folder, target_folder)


def tensor_dtypes(folder: Path) -> Iterator[tuple[str, str]]:
    with safe_open(folder / "model.safetensors", "pt") as file:
        for name in file.keys():  # noqa: SIM118 - the file is no mapping
            yield name, file.get_slice(name).get_dtype()


def test_committed_folders_are_what_export_writes() -> None:
    files = {name: (COMMITTED / name).read_bytes() for name in export.TOKENIZER_FILES}
    for folder in (COMMITTED / "target", COMMITTED / "draft"):
        assert {name: (folder / name).read_bytes() for name in files} == files
        for name, dtype in tensor_dtypes(folder):
            assert dtype == ("F32" if name.endswith("e_score_correction_bias") else "BF16")
    config = json.loads((COMMITTED / "target" / "config.json").read_text())
    assert config == export.target_config(export.TARGET)
    config = json.loads((COMMITTED / "draft" / "config.json").read_text())
    assert config == export.draft_config(export.DRAFT, CAPTURED_BOUNDARIES)


def test_committed_folders_are_small() -> None:
    folders = (COMMITTED / "target", COMMITTED / "draft")
    sizes = [path.stat().st_size for folder in folders for path in folder.iterdir()]
    assert sum(sizes) <= 32 * 2**20


@torch.no_grad()
def test_committed_target_in_training_module_and_engine() -> None:
    target = read_target(COMMITTED / "target")
    ids = torch.randint(3, 600, (1, 64), generator=torch.Generator().manual_seed(3))
    logits, _ = engine_logits(COMMITTED / "target", ids, CAPTURED_BOUNDARIES, torch.float64)
    # Float32 at logits up to 20, which random tokens make of trained weights.
    torch.testing.assert_close(logits.float(), target.head(target(ids)[0]), rtol=0, atol=1e-3)
