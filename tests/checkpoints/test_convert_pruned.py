# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""A pruned head has the right rows, and costs acceptance only."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tensorrt_llm_ext.benchmarking.problems import load_problems
from tensorrt_llm_ext.benchmarking.runs import RunResult, Workload, encode_all, make_core, measure
from tensorrt_llm_ext.checkpoints.convert import ConvertOptions, convert_draft
from tensorrt_llm_ext.checkpoints.draft_vocabulary import DraftVocabulary
from tensorrt_llm_ext.checkpoints.loader import load_draft
from tensorrt_llm_ext.checkpoints.normalize import (
    draft_config,
    open_draft,
    open_target,
    target_config,
)
from tensorrt_llm_ext.checkpoints.writer import save_checkpoint
from tensorrt_llm_ext.configs.hf_target import target_config_from_hf
from tensorrt_llm_ext.configs.sampling import SamplingParams
from tensorrt_llm_ext.engine.loading import LoadedModels, load_models
from tensorrt_llm_ext.errors import ConfigError
from tests.support.nvfp4_drafts import hf_quant_config, nvfp4_tensors
from tests.support.tiny_checkpoints import (
    draft_json,
    draft_shapes,
    random_tensors,
    target_json,
    write_draft,
    write_target,
)

TARGET = target_config_from_hf(target_json())
TINY_KIMI = Path(__file__).parents[2] / "examples" / "tiny_kimi"
VOCAB = 64


def wish(ids: list[int], size: int | None = None) -> DraftVocabulary:
    """A wish for exactly these target ids, or for the first `size` of them."""
    counts = np.zeros(VOCAB, dtype=np.int64)
    counts[ids] = np.arange(len(ids), 0, -1)
    return DraftVocabulary(size=size or len(ids), counts=counts, source="made up")


def test_rows_maps_and_config_belong_together(tmp_path: Path) -> None:
    tensors = write_draft(tmp_path / "in")
    ids = [3, 5, 8, 9, 40, 63]
    report = convert_draft(
        open_draft(tmp_path / "in"), tmp_path / "a", to="vllm", target=TARGET, draft_vocab=wish(ids)
    )
    written = load_file(tmp_path / "a" / "model.safetensors")
    assert torch.equal(written["lm_head.weight"], tensors["lm_head.weight"][ids])
    assert written["d2t"].dtype == torch.int64
    assert (torch.arange(6) + written["d2t"]).tolist() == ids
    assert written["t2d"].dtype == torch.bool
    assert written["t2d"].nonzero().flatten().tolist() == ids
    assert json.loads((tmp_path / "a" / "config.json").read_text())["draft_vocab_size"] == 6
    assert not report.is_same_draft
    assert report.vocabulary is not None
    assert report.vocabulary.coverage == 1.0
    # Pruned again, by other counts: maps compose, rows are those of the first head.
    second = convert_draft(
        open_draft(tmp_path / "a"), tmp_path / "b", to="modelopt", draft_vocab=wish([63, 7, 5], 2)
    )
    again = load_file(tmp_path / "b" / "model.safetensors")
    assert torch.equal(again["lm_head.weight"], tensors["lm_head.weight"][[5, 63]])
    assert (torch.arange(2) + again["d2t"]).tolist() == [5, 63]
    assert "t2d" not in again  # not part of ModelOpt's layout
    assert second.vocabulary is not None
    assert second.vocabulary.coverage == pytest.approx(4 / 6)


def test_the_first_ids_are_a_legal_choice(tmp_path: Path) -> None:
    write_draft(tmp_path / "in")
    source = open_draft(tmp_path / "in")
    ids = list(range(8))
    convert_draft(source, tmp_path / "a", to="trtllm", target=TARGET, draft_vocab=wish(ids))
    config = draft_config(open_draft(tmp_path / "a"))
    assert (config.draft_vocab_size, config.has_d2t) == (8, True)
    assert not load_file(tmp_path / "a" / "model.safetensors")["d2t"].any()


def test_the_whole_vocabulary_prunes_nothing(tmp_path: Path) -> None:
    write_draft(tmp_path / "in")
    report = convert_draft(
        open_draft(tmp_path / "in"),
        tmp_path / "a",
        to="trtllm",
        target=TARGET,
        draft_vocab=wish(list(range(VOCAB))),
    )
    assert "d2t" not in load_file(tmp_path / "a" / "model.safetensors")
    assert report.vocabulary is not None
    assert report.vocabulary.coverage == 1.0


def test_scales_of_an_nvfp4_head_follow_its_rows(tmp_path: Path) -> None:
    shapes = draft_shapes(draft_json())
    tensors = nvfp4_tensors(random_tensors(shapes), ("lm_head",))
    save_checkpoint(
        tmp_path / "in",
        draft_json(),
        tensors,
        extra_json={"hf_quant_config.json": hf_quant_config(["layers*", "fc"])},
    )
    ids = [1, 2, 30]
    source = open_draft(tmp_path / "in")
    convert_draft(source, tmp_path / "a", to="trtllm", target=TARGET, draft_vocab=wish(ids))
    written = load_file(tmp_path / "a" / "model.safetensors")
    for kind in ("weight", "weight_scale"):
        before = tensors[f"lm_head.{kind}"].view(torch.uint8)
        assert torch.equal(written[f"lm_head.{kind}"].view(torch.uint8), before[ids])
    for kind in ("weight_scale_2", "input_scale"):
        assert torch.equal(written[f"lm_head.{kind}"], tensors[f"lm_head.{kind}"])
    quant = json.loads((tmp_path / "a" / "hf_quant_config.json").read_text())["quantization"]
    assert "lm_head" not in quant["exclude_modules"]
    assert "model.midlayer.self_attn.kv_b_proj" in quant["exclude_modules"]


def test_block_scales_cannot_be_cut_by_rows(tmp_path: Path) -> None:
    tensors = random_tensors(draft_shapes(draft_json()))
    tensors["lm_head.weight"] = tensors["lm_head.weight"].to(torch.float8_e4m3fn)
    tensors["lm_head.weight_scale_inv"] = torch.ones(2, 1)
    tensors["lm_head.weight"] = tensors["lm_head.weight"]
    save_checkpoint(tmp_path / "in", draft_json(), tensors)
    source = open_draft(tmp_path / "in")
    with pytest.raises(ConfigError, match=r"lm_head\.weight_scale_inv.*cannot be pruned"):
        convert_draft(source, tmp_path / "a", to="trtllm", target=TARGET, draft_vocab=wish([1, 2]))


def test_a_borrowed_head_is_pruned_from_the_targets(tmp_path: Path) -> None:
    target_tensors = write_target(tmp_path / "target")
    write_draft(tmp_path / "in", head=False)
    source = open_draft(tmp_path / "in")
    with pytest.raises(ConfigError, match=r"no lm_head\.weight"):
        convert_draft(source, tmp_path / "a", to="vllm", target=TARGET, draft_vocab=wish([2, 9]))
    options = ConvertOptions(target_checkpoint=open_target(tmp_path / "target"))
    convert_draft(
        source,
        tmp_path / "a",
        to="vllm",
        target=TARGET,
        draft_vocab=wish([2, 9]),
        options=options,
    )
    head = load_file(tmp_path / "a" / "model.safetensors")["lm_head.weight"]
    assert torch.equal(head, target_tensors["lm_head.weight"][[2, 9]])


@pytest.mark.skipif(
    not (TINY_KIMI / "draft" / "config.json").is_file(), reason="examples/tiny_kimi has no weights"
)
def test_a_pruned_draft_gives_the_same_text_and_nearly_the_same_acceptance(tmp_path: Path) -> None:
    models = load_models(TINY_KIMI / "target", draft=TINY_KIMI / "draft", device="cpu")
    problems = load_problems(TINY_KIMI / "heldout.jsonl", 4)
    work = Workload(
        prompts=encode_all(models, [problem.prompt for problem in problems]),
        sampling=SamplingParams(max_tokens=64),
        batch_size=4,
    )

    def run(with_models: LoadedModels, draft_len: int) -> RunResult:
        return measure(make_core(with_models, work, draft_len), work, models.eos_token_ids)

    alone, full = run(models, 0), run(models, 3)
    size = models.target.config.vocab_size
    counts = np.bincount(np.concatenate([*full.token_ids, *work.prompts]), minlength=size)
    vocabulary = DraftVocabulary(size=256, counts=counts, source="own output")
    target = target_config(open_target(TINY_KIMI / "target"))
    report = convert_draft(
        open_draft(TINY_KIMI / "draft"),
        tmp_path / "out",
        to="trtllm",
        target=target,
        draft_vocab=vocabulary,
    )
    assert report.vocabulary is not None
    assert report.vocabulary.coverage == 1.0
    draft = load_draft(tmp_path / "out", models.target)
    assert draft.config.draft_vocab_size == 256
    pruned = run(dataclasses.replace(models, draft=draft), 3)
    assert pruned.token_ids == full.token_ids == alone.token_ids
    # Every token of the text can be drafted still; only wrong drafts change.
    before, after = full.acceptance.acceptance_length, pruned.acceptance.acceptance_length
    assert after is not None
    assert before is not None
    assert after >= before - 0.02
    # With a table that is off by one it would be near 1: the map is what makes it work.
    assert after > 2
