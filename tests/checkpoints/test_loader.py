# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""From folders to models: every layout in, every bad input a typed error that says what to do."""

from __future__ import annotations

import json
import logging
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tensorrt_llm_ext.checkpoints.io import INDEX_NAME
from tensorrt_llm_ext.checkpoints.loader import (
    load_draft,
    load_target,
    read_draft_config,
    read_target_config,
)
from tensorrt_llm_ext.checkpoints.writer import save_checkpoint
from tensorrt_llm_ext.errors import CheckpointError, ConfigError, ExtError, UnsupportedError
from tensorrt_llm_ext.models.blocks import TorchBlocks
from tensorrt_llm_ext.models.deepseek import DeepseekV3
from tensorrt_llm_ext.models.eagle3 import Eagle3Draft
from tests.support.tiny_checkpoints import (
    draft_json,
    draft_shapes,
    random_tensors,
    target_json,
    target_shapes,
    write_draft,
    write_target,
)
from tests.support.tiny_models import DictSource, make_context

CPU = torch.device("cpu")
LOGGER = "tensorrt_llm_ext.checkpoints"


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> DeepseekV3:
    folder = tmp_path_factory.mktemp("target")
    write_target(folder)
    return load_target(folder)


def same_weights(left: torch.nn.Module, right: torch.nn.Module) -> bool:
    a, b = left.state_dict(), right.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def from_memory(config: Any, tensors: dict[str, torch.Tensor]) -> DeepseekV3:
    model = DeepseekV3(config, TorchBlocks(CPU, torch.float32))
    source = DictSource(tensors)
    model.load_weights(source)
    assert not source.remaining
    return model


# --- targets ------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrapper", [False, True])
@pytest.mark.parametrize("max_shard_bytes", [None, 20_000])
@pytest.mark.parametrize(
    "changes",
    [{}, {"q_lora_rank": None}, {"tie_word_embeddings": True}, {"n_group": 2, "topk_group": 1}],
    ids=str,
)
def test_target_layouts(
    tmp_path: Path, wrapper: bool, max_shard_bytes: int | None, changes: dict[str, Any]
) -> None:
    config = target_json(**changes)
    tensors = write_target(tmp_path / "t", config, wrapper=wrapper, max_shard_bytes=max_shard_bytes)
    assert (tmp_path / "t" / INDEX_NAME).exists() == (max_shard_bytes is not None)
    model = load_target(tmp_path / "t")
    assert not model.training
    assert same_weights(model, from_memory(model.config, tensors))


def test_vision_and_mtp_tensors_are_skipped_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger=LOGGER)
    extra = {f"vision_tower.blocks.{i}.weight": torch.ones(2) for i in range(3)}
    extra["mm_projector.proj.weight"] = torch.ones(2)
    extra["language_model.model.layers.8.eh_proj.weight"] = torch.ones(2)
    config = target_json(num_nextn_predict_layers=1)
    tensors = write_target(tmp_path / "t", config, wrapper=True, extra=extra)
    model = load_target(tmp_path / "t")
    assert same_weights(model, from_memory(model.config, tensors))
    assert "skipped 5 tensors" in caplog.text
    assert "vision_tower.: 3" in caplog.text
    assert "language_model.model.layers.8.: 1" in caplog.text


@pytest.mark.parametrize("grouped", [False, True])
def test_what_transformers_saves_computes_what_transformers_computes(
    tmp_path: Path, grouped: bool
) -> None:
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    config = target_json(num_nextn_predict_layers=0)
    config |= {"n_group": 2, "topk_group": 1} if grouped else {"q_lora_rank": None}
    for key in ("architectures", "model_type", "torch_dtype", "scoring_func", "topk_method"):
        del config[key]
    torch.manual_seed(0)
    reference = DeepseekV3ForCausalLM(DeepseekV3Config(**config)).eval()
    reference.save_pretrained(tmp_path / "t")
    model = load_target(tmp_path / "t")
    tokens = torch.randint(0, 64, (1, 13))
    run = make_context(8, model.config.mla.latent_size, [13], dtype=torch.float32)
    with torch.inference_mode():
        expected = reference(tokens).logits[0]
        hidden, _ = model(tokens[0], run.positions, run.ctx)
        actual = model.compute_logits(hidden)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("declared", "stored", "asked", "expected"),
    [
        ("bfloat16", torch.bfloat16, None, torch.bfloat16),
        ("bfloat16", torch.bfloat16, torch.float32, torch.float32),
        (None, torch.float16, None, torch.float16),
        ("float32", torch.float32, torch.float64, torch.float64),
    ],
)
def test_target_dtype(
    tmp_path: Path, declared: str | None, stored: torch.dtype, asked: Any, expected: torch.dtype
) -> None:
    config = target_json(torch_dtype=declared)
    save_checkpoint(tmp_path / "t", config, random_tensors(target_shapes(config), dtype=stored))
    model = load_target(tmp_path / "t", dtype=asked)
    assert model.embed_tokens.weight.dtype == expected


def test_unknown_declared_dtype(tmp_path: Path) -> None:
    write_target(tmp_path / "t", target_json(torch_dtype="int4"))
    with pytest.raises(ConfigError, match="declares dtype 'int4'"):
        load_target(tmp_path / "t")


def test_code_of_a_target_is_ignored(tmp_path: Path) -> None:
    config = target_json(auto_map={"AutoModelForCausalLM": "evil.Model"})
    write_target(tmp_path / "t", config)
    (tmp_path / "t" / "evil.py").write_text("raise SystemExit('ran')")
    assert isinstance(load_target(tmp_path / "t"), DeepseekV3)


def test_generation_config_adds_end_tokens(tmp_path: Path) -> None:
    write_target(tmp_path / "t")
    (tmp_path / "t" / "generation_config.json").write_text('{"eos_token_id": [9, 1]}')
    assert read_target_config(tmp_path / "t").eos_token_ids == (9, 1)
    assert load_target(tmp_path / "t").config.eos_token_ids == (9, 1)


# --- drafts -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "shapes"),
    [
        ({}, {}),
        ({"fc_norm": True, "norm_output": True}, {"embedding": True}),
        ({"norm_before_fc": True, "num_hidden_layers": 2}, {"head": False}),
        ({"draft_vocab_size": 40, "norm_before_residual": True}, {}),
        ({"q_lora_rank": None}, {}),
        ({"hidden_size": 40}, {"embedding": True, "target_hidden_size": 32}),
    ],
    ids=str,
)
@pytest.mark.parametrize("rename", [str, lambda n: "model." + n.replace("layers.0.", "midlayer.")])
def test_draft_layouts(
    tmp_path: Path,
    target: DeepseekV3,
    changes: dict[str, Any],
    shapes: dict[str, Any],
    rename: Callable[[str], str],
) -> None:
    tensors = write_draft(tmp_path / "d", draft_json(**changes), rename=rename, **shapes)
    draft = load_draft(tmp_path / "d", target)
    config = draft.config
    assert not draft.training
    assert config.boundaries == (2, 4, 5)
    assert config == read_draft_config(tmp_path / "d", target.config)
    reference = Eagle3Draft(config, TorchBlocks(CPU, torch.float32), target.config.num_layers)
    source = DictSource(tensors)
    reference.load_weights(source)
    assert not source.remaining
    reference.share_with(target)
    assert same_weights(draft, reference)
    layers = [module.layer_idx for module in draft.modules() if hasattr(module, "layer_idx")]
    assert layers == [8 + index for index in range(config.num_layers)]
    if not config.has_own_embedding:
        assert draft.embed_tokens is target.embed_tokens
    if not config.has_own_lm_head:
        assert draft.lm_head is target.lm_head


def test_an_equal_embedding_is_shared_and_another_is_kept(
    tmp_path: Path, target: DeepseekV3, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger=LOGGER)
    equal = target.embed_tokens.weight.detach().clone()
    write_draft(tmp_path / "equal", embedding=True, change={"embed_tokens.weight": equal})
    draft = load_draft(tmp_path / "equal", target)
    assert draft.embed_tokens is target.embed_tokens
    assert not draft.config.has_own_embedding
    assert "its embedding equals the target's and is shared" in caplog.text

    other = equal.clone()
    other[-1, -1] += 1e-3
    write_draft(tmp_path / "other", embedding=True, change={"embed_tokens.weight": other})
    draft = load_draft(tmp_path / "other", target)
    assert draft.config.has_own_embedding
    assert torch.equal(draft.embed_tokens.weight, other)


def test_t2d_is_consumed_and_checked(tmp_path: Path, target: DeepseekV3) -> None:
    config = draft_json(draft_vocab_size=32)
    d2t = torch.arange(32)  # every second id
    t2d = torch.zeros(64, dtype=torch.bool)
    t2d[::2] = True
    write_draft(tmp_path / "good", config, change={"d2t": d2t, "t2d": t2d})
    assert torch.equal(load_draft(tmp_path / "good", target).d2t, d2t)

    write_draft(tmp_path / "bad", config, change={"d2t": d2t, "t2d": t2d.roll(1)})
    with pytest.raises(CheckpointError, match="not the same ids"):
        load_draft(tmp_path / "bad", target)

    write_draft(tmp_path / "absolute", config, change={"d2t": 2 * d2t})
    with pytest.raises(CheckpointError, match=r"rise strictly|absolute"):
        load_draft(tmp_path / "absolute", target)

    write_draft(tmp_path / "full", change={"t2d": torch.ones(64, dtype=torch.bool)})
    assert load_draft(tmp_path / "full", target).d2t is None
    write_draft(tmp_path / "lost", change={"t2d": t2d})
    with pytest.raises(CheckpointError, match="but no d2t"):
        load_draft(tmp_path / "lost", target)


def test_the_users_boundaries(tmp_path: Path, target: DeepseekV3) -> None:
    write_draft(tmp_path / "d", draft_json(eagle_config=None))
    draft = load_draft(tmp_path / "d", target, boundaries=(3, 5, 7))
    assert draft.config.boundaries == (3, 5, 7)
    with pytest.raises(ConfigError, match="does not say which target layers"):
        load_draft(tmp_path / "d", target)


def test_capture_is_logged_in_both_conventions(
    tmp_path: Path, target: DeepseekV3, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger=LOGGER)
    write_draft(tmp_path / "d")
    load_draft(tmp_path / "d", target)
    assert "boundaries [2, 4, 5], that is after target layers [1, 3, 4]" in caplog.text


@pytest.mark.parametrize("bring", ["auto_map", "file", "nested"])
def test_drafts_with_code_are_refused(tmp_path: Path, target: DeepseekV3, bring: str) -> None:
    write_draft(
        tmp_path / "d", draft_json(**({"auto_map": {"a": "b"}} if bring == "auto_map" else {}))
    )
    if bring != "auto_map":
        script = tmp_path / "d" / ("sub/x.py" if bring == "nested" else "modeling.py")
        script.parent.mkdir(exist_ok=True)
        script.write_text("raise SystemExit('ran')")
    with pytest.raises(CheckpointError, match="brings code"):
        load_draft(tmp_path / "d", target)


# --- bad input (issue: must hold 9) --------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "message", "error"),
    [
        (
            {"hidden_size": 48, "target_hidden_size": 48},
            "width 48, but the target's hidden_size is 32",
            ConfigError,
        ),
        ({"kv_lora_rank": 32}, "rows of 40 values", UnsupportedError),
        ({"qk_rope_head_dim": 4}, "rows of 20 values", UnsupportedError),
        (
            {"vocab_size": 60, "draft_vocab_size": 60},
            "vocab_size is 60, the target's 64",
            ConfigError,
        ),
        (
            {"eagle_config": None, "trtllm_ext_aux_boundaries": [2, 4, 9]},
            r"within 0\.\.8",
            ConfigError,
        ),
    ],
)
def test_draft_of_another_target(
    tmp_path: Path, target: DeepseekV3, config: dict[str, Any], message: str, error: type[ExtError]
) -> None:
    write_draft(tmp_path / "d", draft_json(**config))
    with pytest.raises(error, match=message):
        load_draft(tmp_path / "d", target)


def test_non_mla_draft(tmp_path: Path, target: DeepseekV3) -> None:
    tensors = {
        f"midlayer.self_attn.{name}_proj.weight": torch.ones(32, 64) for name in ("q", "k", "v")
    }
    tensors["fc.weight"] = torch.ones(32, 96)
    save_checkpoint(tmp_path / "d", draft_json(architectures=["LlamaForCausalLMEagle3"]), tensors)
    with pytest.raises(UnsupportedError, match="MHA draft"):
        load_draft(tmp_path / "d", target)


def test_wrong_shape(tmp_path: Path, target: DeepseekV3) -> None:
    name = "model.layers.3.self_attn.o_proj.weight"
    tensors = random_tensors(target_shapes(target_json()))
    tensors[name] = torch.ones(32, 17)
    save_checkpoint(tmp_path / "t", target_json(), tensors)
    with pytest.raises(
        CheckpointError,
        match=r"o_proj\.weight' has shape \[32, 17\], expected \[32, 16\].*v_head_dim",
    ):
        load_target(tmp_path / "t")
    write_draft(tmp_path / "d", change={"layers.0.mlp.up_proj.weight": torch.ones(40, 32)})
    with pytest.raises(
        CheckpointError, match=r"draft: tensor 'layers\.0\.mlp\.up_proj.*intermediate"
    ):
        load_draft(tmp_path / "d", target)


def test_missing_and_superfluous_tensors(tmp_path: Path, target: DeepseekV3) -> None:
    tensors = random_tensors(target_shapes(target_json()))
    norm = tensors.pop("model.norm.weight")
    save_checkpoint(tmp_path / "t", target_json(), {**tensors, "model.nrom.weight": norm})
    with pytest.raises(CheckpointError, match=r"'model\.norm\.weight' is missing.*model\.nrom"):
        load_target(tmp_path / "t")
    write_draft(tmp_path / "d", change={"layers.0.mlp.extra.weight": torch.ones(2)})
    with pytest.raises(CheckpointError, match=r"1 tensors belong to no part.*mlp\.extra\.weight"):
        load_draft(tmp_path / "d", target)


def missing_shard(folder: Path) -> None:
    sorted(folder.glob("model-00002*"))[0].unlink()


def pickled_only(folder: Path) -> None:
    for path in (*folder.glob("*.safetensors"), folder / INDEX_NAME):
        path.unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"a": 1}))


def path_leaving(folder: Path) -> None:
    index = json.loads((folder / INDEX_NAME).read_text())
    first = next(iter(index["weight_map"]))
    index["weight_map"][first] = "../elsewhere.safetensors"
    (folder / INDEX_NAME).write_text(json.dumps(index))


def symlink_leaving(folder: Path) -> None:
    shard = sorted(folder.glob("*.safetensors"))[0]
    outside = folder.parent / "outside.safetensors"
    shard.rename(outside)
    shard.symlink_to(outside)


def no_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def huge_config(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps({"a": "x" * (17 << 20)}))


def truncated(folder: Path) -> None:
    shard = sorted(folder.glob("*.safetensors"))[0]
    shard.write_bytes(shard.read_bytes()[:-4])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (missing_shard, "shards are missing.*run it again"),
        (pickled_only, "Convert them to safetensors"),
        (path_leaving, "not a plain file name inside the folder"),
        (symlink_leaving, "outside the checkpoint's folder"),
        (no_config, r"config\.json cannot be read"),
        (huge_config, "more than the 16777216"),
        (truncated, "the file is truncated"),
    ],
)
@pytest.mark.parametrize("kind", ["target", "draft"])
def test_damaged_folders(
    tmp_path: Path,
    target: DeepseekV3,
    kind: str,
    damage: Callable[[Path], None],
    message: str,
) -> None:
    folder = tmp_path / kind
    if kind == "target":
        write_target(folder, max_shard_bytes=20_000)
    else:
        shapes = draft_shapes(draft_json())
        save_checkpoint(folder, draft_json(), random_tensors(shapes), max_shard_bytes=20_000)
    damage(folder)
    with pytest.raises(CheckpointError, match=message):
        load_target(folder) if kind == "target" else load_draft(folder, target)


@pytest.mark.parametrize("wrapper", [False, True])
def test_a_declaration_without_quantized_tensors_is_said_and_does_not_matter(
    tmp_path: Path, wrapper: bool, caplog: pytest.LogCaptureFixture
) -> None:
    config = target_json(quantization_config={"quant_method": "modelopt", "quant_algo": "NVFP4"})
    tensors = write_target(tmp_path / "t", config, wrapper=wrapper)
    model = load_target(tmp_path / "t")
    assert torch.equal(model.lm_head.weight, tensors["lm_head.weight"])
    assert "declares NVFP4 (modelopt), but every tensor is in floating point" in caplog.text


def ones(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(shape).to(dtype)


FOREIGN = {
    "int4": ({"weight_packed": ones(4, 4, dtype=torch.int32)}, "packed integers.*decompress"),
    "gptq": ({"qweight": ones(4, 4, dtype=torch.int32)}, "INT4 of compressed-tensors, GPTQ or"),
    "nvfp4 of compressed-tensors": (
        {
            "weight_packed": ones(4, 16, dtype=torch.uint8),
            "weight_scale": ones(4, 2, dtype=torch.float8_e4m3fn),
            "weight_global_scale": ones(1),
        },
        r"NVFP4 in the layout of compressed-tensors \(weight_packed\)",
    ),
    "blocks of 32": (
        {
            "weight": ones(4, 32, dtype=torch.uint8),
            "weight_scale": ones(4, 2, dtype=torch.float8_e4m3fn),
            "weight_scale_2": ones(),
        },
        "FP4 in blocks of 32",
    ),
    "awq": (
        {
            "weight": ones(4, 16, dtype=torch.uint8),
            "weight_scale": ones(4, 2, dtype=torch.float8_e4m3fn),
            "weight_scale_2": ones(),
            "pre_quant_scale": ones(32),
        },
        "nvfp4 with pre_quant_scale",
    ),
    "fp8 blocks": (
        {
            "weight": ones(256, 128, dtype=torch.float8_e4m3fn),
            "weight_scale_inv": ones(2, 1),
        },
        "FP8 with a scale per block of 128 x 128.*Dequantize its",
    ),
    "fp8 rows": (
        {"weight": ones(4, 8, dtype=torch.float8_e4m3fn), "weight_scale": ones(4, 1)},
        "FP8 with 4 scales, one per output row.*one scale per tensor",
    ),
    "fp8 e5m2": (
        {"weight": ones(4, 8, dtype=torch.float8_e5m2), "weight_scale": ones()},
        "F8_E5M2, expected F8_E4M3",
    ),
    "bytes": ({"weight": ones(4, 8, dtype=torch.uint8)}, "a format that is not known.*as U8"),
}


@pytest.mark.parametrize("kind", FOREIGN)
@pytest.mark.parametrize("wrapper", [False, True])
def test_other_quantizations_are_refused_by_name(
    tmp_path: Path, target: DeepseekV3, kind: str, wrapper: bool
) -> None:
    parts, message = FOREIGN[kind]
    module = "layers.0.mlp.down_proj"
    prefix = "language_model.model." if wrapper else "model."
    extra = {f"{prefix}{module}2.{name}": value for name, value in parts.items()}
    config = target_json(quantization_config={"quant_method": "exotic"})
    write_target(tmp_path / "t", config, wrapper=wrapper, extra=extra)
    with pytest.raises(UnsupportedError, match=rf"down_proj2.*{message}") as raised:
        load_target(tmp_path / "t")
    assert "declared as EXOTIC" in str(raised.value)
    if not wrapper:
        change = {f"{module}2.{name}": value for name, value in parts.items()}
        write_draft(tmp_path / "d", change=change)
        for load in (read_draft_config, lambda folder: load_draft(folder, target)):
            with pytest.raises(UnsupportedError, match=rf"down_proj2.*{message}"):
                load(tmp_path / "d")


def test_integer_weights_are_described(tmp_path: Path) -> None:
    group = {"weights": {"num_bits": 4, "type": "int", "group_size": 32}}
    quant = {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}}
    name = "model.layers.1.mlp.experts.0.gate_proj.weight_packed"
    write_target(
        tmp_path / "t",
        target_json(quantization_config=quant),
        extra={name: ones(4, 4, dtype=torch.int32)},
    )
    with pytest.raises(
        UnsupportedError, match=r"declared as INT4 \(compressed-tensors, group 32\).*decompress"
    ):
        load_target(tmp_path / "t")


def test_metadata_that_declare_nothing_do_not_matter(tmp_path: Path, target: DeepseekV3) -> None:
    write_draft(tmp_path / "d", draft_json(quantization_config={"quant_algo": None}))
    assert isinstance(load_draft(tmp_path / "d", target), Eagle3Draft)


def test_an_all_zero_d2t_needs_an_opt_in(tmp_path: Path, target: DeepseekV3) -> None:
    config, zeros = draft_json(draft_vocab_size=40), torch.zeros(40, dtype=torch.int64)
    write_draft(tmp_path / "lost", config, change={"d2t": zeros})
    with pytest.raises(CheckpointError, match="sign of a lost table") as raised:
        load_draft(tmp_path / "lost", target)
    assert raised.value.check == "V21"
    write_draft(
        tmp_path / "meant", {**config, "trtllm_ext_identity_d2t": True}, change={"d2t": zeros}
    )
    assert torch.equal(load_draft(tmp_path / "meant", target).d2t, zeros)


def test_what_is_known_of_a_producer_is_said(
    tmp_path: Path, target: DeepseekV3, caplog: pytest.LogCaptureFixture
) -> None:
    def rename(name: str) -> str:
        return name if name == "lm_head.weight" else f"model.{name}"

    write_draft(tmp_path / "d", rename=rename)
    load_draft(tmp_path / "d", target)
    assert "without YaRN's mscale" in caplog.text


def test_errors_of_the_tensors_carry_the_id_of_their_check(
    tmp_path: Path, target: DeepseekV3
) -> None:
    changes: list[tuple[dict[str, torch.Tensor | None], str]] = [
        ({"layers.0.mlp.up_proj.weight": torch.ones(40, 32)}, "V6"),
        ({"layers.0.mlp.extra.weight": torch.ones(2)}, "V5"),
        ({"norm.weight": None}, "V5"),
    ]
    for number, (change, check) in enumerate(changes):
        write_draft(tmp_path / str(number), change=change)
        with pytest.raises(CheckpointError) as raised:
            load_draft(tmp_path / str(number), target)
        assert raised.value.check == check
