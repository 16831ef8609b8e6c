# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Each tensor exactly once, with the right shape, and nothing left over."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tensorrt_llm_ext.checkpoints.io import open_checkpoint
from tensorrt_llm_ext.checkpoints.names import TensorMap, TensorRef
from tensorrt_llm_ext.checkpoints.source import SafetensorsSource
from tensorrt_llm_ext.checkpoints.writer import save_checkpoint
from tensorrt_llm_ext.errors import CheckpointError

TENSORS = {
    "model.norm.weight": torch.arange(4, dtype=torch.bfloat16),
    "model.fused.weight": torch.arange(24, dtype=torch.float32).view(6, 4),
    "mlp.gate.e_score_correction_bias": torch.full((3,), 1.0 / 3),
    "d2t": torch.arange(5),
}
MAP = TensorMap(
    refs={
        "norm.weight": TensorRef("model.norm.weight"),
        "first.weight": TensorRef("model.fused.weight", (0, 2)),
        "second.weight": TensorRef("model.fused.weight", (2, 6)),
        "mlp.gate.e_score_correction_bias": TensorRef("mlp.gate.e_score_correction_bias"),
        "d2t": TensorRef("d2t"),
    },
    skipped={"vision_tower.": 334, "mm_projector.": 1},
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_checkpoint(tmp_path / "c", {}, TENSORS, max_shard_bytes=50)
    return tmp_path / "c"


def source(folder: Path, dtype: torch.dtype | None = None) -> SafetensorsSource:
    return SafetensorsSource(open_checkpoint(folder), MAP, dtype=dtype, label="draft")


def take_all(weights: SafetensorsSource, *, but: str = "") -> dict[str, torch.Tensor]:
    return {
        name: weights.take(name, weights.shape(name))
        for name in weights.unconsumed()
        if name != but
    }


def test_every_tensor_once(folder: Path) -> None:
    weights = source(folder)
    assert weights.has("norm.weight")
    assert not weights.has("model.norm.weight")
    taken = take_all(weights)
    assert weights.unconsumed() == ()
    weights.finish()
    assert torch.equal(taken["norm.weight"], TENSORS["model.norm.weight"])
    assert torch.equal(taken["first.weight"], TENSORS["model.fused.weight"][:2])
    assert torch.equal(taken["second.weight"], TENSORS["model.fused.weight"][2:])
    assert taken["norm.weight"].dtype == torch.bfloat16


def test_identity_without_a_map(folder: Path) -> None:
    weights = SafetensorsSource(open_checkpoint(folder))
    for name, tensor in TENSORS.items():
        assert torch.equal(weights.take(name, tuple(tensor.shape)), tensor)
    weights.finish()


def test_conversion_leaves_integers_and_the_router_bias(folder: Path) -> None:
    taken = take_all(source(folder, torch.float16))
    assert taken["norm.weight"].dtype == taken["first.weight"].dtype == torch.float16
    assert taken["d2t"].dtype == torch.int64
    assert torch.equal(
        taken["mlp.gate.e_score_correction_bias"], TENSORS["mlp.gate.e_score_correction_bias"]
    )


def test_twice(folder: Path) -> None:
    weights = source(folder)
    weights.take("norm.weight", (4,))
    with pytest.raises(CheckpointError, match=r"'norm\.weight' is asked for twice"):
        weights.take("norm.weight", (4,))


def test_peek_does_not_consume_and_skip_does(folder: Path) -> None:
    weights = source(folder)
    assert torch.equal(weights.peek("d2t"), torch.arange(5))
    assert "d2t" in weights.unconsumed()
    weights.skip("d2t")
    assert "d2t" not in weights.unconsumed()


def test_missing_names_the_nearest(folder: Path) -> None:
    weights = source(folder)
    with pytest.raises(CheckpointError, match=r"'frist\.weight' is missing.*'first\.weight'"):
        weights.take("frist.weight", (2, 4))
    with pytest.raises(CheckpointError, match="missing"):
        weights.shape("frist.weight")


def test_wrong_shape_names_tensor_got_expected_and_keys(tmp_path: Path) -> None:
    name = "layers.0.self_attn.kv_a_proj_with_mqa.weight"
    save_checkpoint(tmp_path / "c", {}, {name: torch.ones(24, 64)})
    weights = SafetensorsSource(open_checkpoint(tmp_path / "c"), label="draft")
    with pytest.raises(CheckpointError) as caught:
        weights.take(name, (24, 32))
    message = str(caught.value)
    for part in (name, "[24, 64]", "[24, 32]", "kv_lora_rank", "hidden_size (twice in a draft"):
        assert part in message
    assert name in weights.unconsumed()


def test_leftovers_are_listed_with_the_nearest_name(folder: Path) -> None:
    weights = source(folder)
    take_all(weights, but="second.weight")
    with pytest.raises(
        CheckpointError,
        match=r"draft: 1 tensors belong to no part.*"
        r"second\.weight \(stored as model\.fused\.weight\) \[4, 4\]",
    ):
        weights.finish()


def test_many_leftovers_are_cut_short(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "c", {}, {f"t{i}": torch.ones(1) for i in range(20)})
    with pytest.raises(CheckpointError, match=r"20 tensors belong .*; and 12 more"):
        SafetensorsSource(open_checkpoint(tmp_path / "c")).finish()


def test_skipped_tensors_are_counted_aloud(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    weights = source(folder)
    take_all(weights)
    weights.finish()
    assert "skipped 335 tensors" in caplog.text
    assert "vision_tower.: 334, mm_projector.: 1" in caplog.text


def test_a_file_that_changed_under_us(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "c", {}, {"a": torch.ones(1000)})
    weights = SafetensorsSource(open_checkpoint(tmp_path / "c"))
    save_file({"b": torch.ones(1)}, tmp_path / "c" / "model.safetensors")
    with pytest.raises(CheckpointError, match="cannot be read"):
        weights.take("a", (1000,))


def test_quantized_tensors_come_as_they_are_stored(tmp_path: Path) -> None:
    """A scale may be written as [1]; no dtype converts what a rounding would change."""
    tensors = {
        "fc.weight": torch.arange(64, dtype=torch.uint8).view(2, 32),
        "fc.weight_scale": torch.ones(2, 4).to(torch.float8_e4m3fn),
        "fc.weight_scale_2": torch.tensor([1.0 / 3]),
        "fc.input_scale": torch.tensor(1.0 / 3),
        "head.weight": torch.ones(2, 8).to(torch.float8_e4m3fn),
        "head.weight_scale": torch.tensor([0.1]),
        "norm.weight": torch.ones(3),
    }
    save_checkpoint(tmp_path / "c", {}, tensors)
    weights = SafetensorsSource(open_checkpoint(tmp_path / "c"), dtype=torch.bfloat16)
    weights.expect("fc.weight", (2, 64))  # in values, not in bytes
    weights.expect("head.weight", (2, 8))
    with pytest.raises(CheckpointError, match=r"shape \[2, 64\], expected \[2, 32\]"):
        weights.expect("fc.weight", (2, 32))
    assert weights.stored["fc.weight"] == ("U8", (2, 32))
    for name in ("fc.weight_scale_2", "head.weight_scale"):
        scale = weights.take(name, ())
        assert (scale.shape, scale.dtype) == ((), torch.float32)
        assert scale == tensors[name]
    for name in ("fc.weight", "fc.weight_scale", "fc.input_scale", "head.weight"):
        tensor = weights.take(name, tuple(tensors[name].shape))
        assert tensor.dtype == tensors[name].dtype
        assert torch.equal(tensor.double(), tensors[name].double())
    assert weights.take("norm.weight", (3,)).dtype == torch.bfloat16
    weights.finish()
