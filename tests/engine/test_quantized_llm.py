# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Quantized models through `LLM` and `load_models`: who chooses the mode, and where it ends up."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tensorrt_llm_ext import LLM, EagleDecodingConfig, SamplingParams
from tensorrt_llm_ext.engine.llm_args import LLMArgs
from tensorrt_llm_ext.engine.loading import TokenizerChoice, load_models
from tensorrt_llm_ext.errors import ConfigError
from tensorrt_llm_ext.quantization.linear import QuantLinear
from tests.support.quantized import write_quantized_draft, write_quantized_target

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
NO_TOKENIZER = TokenizerChoice(is_skipped=True)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("quantized")
    write_quantized_target(root / "t", "all_but_kv_b", config={"vocab_size": 12})
    write_quantized_draft(
        root / "d", "layer_fc_head", config={"vocab_size": 12, "draft_vocab_size": 12}
    )
    return root / "t", root / "d"


def modes_of(model: torch.nn.Module) -> set[str]:
    return {module.mode for module in model.modules() if isinstance(module, QuantLinear)}


@pytest.mark.parametrize(
    ("choices", "target_modes", "draft_modes"),
    [
        ({}, set(), set()),
        ({"quant_mode": "packed"}, {"packed"}, {"packed"}),
        ({"draft_quant_mode": "w4a4"}, set(), {"emulated"}),
        ({"quant_mode": "w4a4", "draft_quant_mode": "dequantized"}, {"emulated"}, set()),
    ],
)
def test_each_model_has_its_mode(
    folders: tuple[Path, Path],
    choices: dict[str, str],
    target_modes: set[str],
    draft_modes: set[str],
) -> None:
    target, draft = folders
    models = load_models(target, draft=draft, tokenizer=NO_TOKENIZER, device="cpu", **choices)
    assert modes_of(models.target) == target_modes
    assert modes_of(models.draft) == draft_modes
    assert (models.device.type, models.dtype) == ("cpu", torch.float32)


def test_llm_generates_the_same_in_every_exact_mode(folders: tuple[Path, Path]) -> None:
    target, draft = folders
    tokens = {}
    for mode in ("packed", "dequantized", "w4a4"):
        with LLM(
            target,
            skip_tokenizer_init=True,
            speculative_config=EagleDecodingConfig(max_draft_len=3, speculative_model=draft),
            device="cpu",
            dtype="float64",
            draft_quant_mode=mode,
        ) as llm:
            sampling = SamplingParams(max_tokens=24, ignore_eos=True)
            tokens[mode] = llm.generate(PROMPT, sampling).outputs[0].token_ids
            assert llm.acceptance.num_drafted > 0
    # Verification is exact, so the draft's arithmetic never shows in the text.
    assert tokens["packed"] == tokens["dequantized"] == tokens["w4a4"]


@pytest.mark.parametrize("name", ["quant_mode", "draft_quant_mode"])
def test_unknown_modes_are_refused_before_loading(
    folders: tuple[Path, Path], tmp_path: Path, name: str
) -> None:
    with pytest.raises(ConfigError, match=rf"LLMArgs\.{name} is 'W4A4'.*Did you mean 'w4a4'"):
        LLMArgs(model=tmp_path, **{name: "W4A4"})
    with pytest.raises(ConfigError, match=rf"{name} is 'fp4', expected one of auto, packed"):
        load_models(folders[0], draft=folders[1], **{name: "fp4"})
