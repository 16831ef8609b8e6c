# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Any layout in, one canonical view out: configs, names, scales, captured layers."""

from __future__ import annotations

import copy
import json
import struct
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from tensorrt_llm_ext.checkpoints.formats.common import flat_config, null_keys
from tensorrt_llm_ext.checkpoints.normalize import (
    draft_config,
    open_draft,
    open_target,
    target_config,
)
from tensorrt_llm_ext.checkpoints.quantized import module_formats
from tensorrt_llm_ext.checkpoints.source import SafetensorsSource
from tensorrt_llm_ext.checkpoints.store import FolderStore
from tensorrt_llm_ext.checkpoints.writer import save_checkpoint
from tensorrt_llm_ext.configs.draft import DraftConfig
from tensorrt_llm_ext.configs.hf_target import target_config_from_hf
from tensorrt_llm_ext.errors import CheckpointError, ConfigError, ExtError
from tests.support.tiny_checkpoints import (
    draft_json,
    draft_shapes,
    random_tensors,
    target_json,
    write_draft,
    write_target,
)

TARGET = target_config_from_hf(target_json())
IDS = "eagle_aux_hidden_state_layer_ids"
LAYER = "layers.0."
# Widths that NVFP4's blocks of 16 divide, for a target of the same shape.
WIDE: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96, "q_lora_rank": 32}
PACKED = (
    *(f"{LAYER}self_attn.{n}" for n in ("q_a_proj", "kv_a_proj_with_mqa", "q_b_proj", "o_proj")),
    *(f"{LAYER}mlp.{n}" for n in ("gate_proj", "up_proj", "down_proj")),
)
Tensors = dict[str, torch.Tensor]


def scaled(weight: torch.Tensor) -> Tensors:
    """Tensors in the shapes and dtypes of an NVFP4 weight; the bytes are arbitrary."""
    columns = weight.shape[1]
    raw = weight.contiguous().view(torch.uint8)
    return {
        "weight": raw[:, : columns // 2].clone(),
        "weight_scale": weight[:, : columns // 16].abs().to(torch.float8_e4m3fn),
        "weight_scale_2": torch.tensor(0.25),
        "input_scale": torch.tensor(0.5),
    }


def canonical_draft(config: dict[str, Any], *, embedding: bool, nvfp4: bool) -> Tensors:
    tensors = random_tensors(draft_shapes(config, embedding=embedding), seed=3)
    if not nvfp4:
        return tensors
    for module in PACKED:
        parts = scaled(tensors.pop(f"{module}.weight"))
        tensors |= {f"{module}.{kind}": value for kind, value in parts.items()}
    return tensors


def fused(tensors: Tensors, name: str) -> Tensors:
    """Stacks the a-projections, gate and up, with their scales."""
    result = dict(tensors)
    pairs = {
        f"{LAYER}self_attn.{name}": ("self_attn.q_a_proj", "self_attn.kv_a_proj_with_mqa"),
        f"{LAYER}mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj"),
    }
    for module, (first, second) in pairs.items():
        kinds = [n.rpartition(".")[2] for n in tensors if n.startswith(f"{LAYER}{first}.")]
        for kind in kinds:
            a = result.pop(f"{LAYER}{first}.{kind}")
            b = result.pop(f"{LAYER}{second}.{kind}")
            both = torch.cat([a.view(torch.uint8), b.view(torch.uint8)]) if a.dim() else a
            result[f"{module}.{kind}"] = both.view(a.dtype) if a.dim() else a
    return result


def write(folder: Path, config: dict[str, Any], tensors: Tensors, rename: Any = str) -> Path:
    save_checkpoint(folder, config, {rename(name): value for name, value in tensors.items()})
    return folder


def read_back(folder: Path) -> tuple[Tensors, DraftConfig]:
    draft = open_draft(folder)
    source = SafetensorsSource(draft.files, draft.tensors)
    target = target_config_from_hf(target_json(hidden_size=draft.config["hidden_size"]))
    config = draft_config(draft, target)
    return {name: source.peek(name) for name in draft.tensors.refs}, config


# --- T2: round trips ------------------------------------------------------------------------------


@pytest.mark.parametrize("nvfp4", [False, True], ids=["float", "nvfp4"])
@pytest.mark.parametrize("embedding", [False, True], ids=["borrowed", "own"])
def test_every_spelling_is_the_same_canonical_draft(
    tmp_path: Path, embedding: bool, nvfp4: bool
) -> None:
    base = draft_json(**WIDE)
    tensors = canonical_draft(base, embedding=embedding, nvfp4=nvfp4)
    found = []
    for number, (prefix, layer, fuse, ids) in enumerate(
        product(
            ["", "model.", "eagle_module.", "draft_model.model."],
            [LAYER, "midlayer."],
            [None, "fused_qkv_a_proj_with_mqa", "fused_qkv_a_proj"],
            [[2, 4, 5], [1, 3, 4]],
        )
    ):
        config = {**copy.deepcopy(base), "eagle_config": {IDS: ids}}
        stored = fused(tensors, fuse) if fuse else tensors
        rename: Callable[[str], str] = lambda n, p=prefix, y=layer: p + n.replace(LAYER, y)  # type: ignore[misc]  # noqa: E731
        found.append(read_back(write(tmp_path / str(number), config, stored, rename)))
    for seen, config in found:
        assert config.boundaries == (2, 4, 5)
        assert seen.keys() == tensors.keys()
        for name, value in tensors.items():
            assert seen[name].dtype == value.dtype
            left, right = (t.reshape(-1).view(torch.uint8) for t in (seen[name], value))
            assert torch.equal(left, right), name


def test_a_fused_scale_has_the_rows_of_its_part_and_scalars_go_to_both(tmp_path: Path) -> None:
    config = draft_json(**WIDE)
    tensors = canonical_draft(config, embedding=False, nvfp4=True)
    name = "fused_qkv_a_proj_with_mqa"
    draft = open_draft(write(tmp_path / "d", config, fused(tensors, name)))
    stored = f"{LAYER}self_attn.{name}"
    refs = draft.tensors.refs
    for kind, rows in (("weight", (0, 32)), ("weight_scale", (0, 32)), ("input_scale", None)):
        ref = refs[f"{LAYER}self_attn.q_a_proj.{kind}"]
        assert (ref.name, ref.rows) == (f"{stored}.{kind}", rows)
    shared = refs[f"{LAYER}self_attn.kv_a_proj_with_mqa.weight_scale_2"]
    assert shared == refs[f"{LAYER}self_attn.q_a_proj.weight_scale_2"]
    # Every stored row belongs to some canonical tensor.
    covered: dict[str, int] = {}
    for ref in refs.values():
        rows = ref.rows or (0, (draft.files.shapes[ref.name] or (1,))[0])
        covered[ref.name] = covered.get(ref.name, 0) + rows[1] - rows[0]
    for stored_name, shape in draft.files.shapes.items():
        copies = 2 if shape == () and ("fused" in stored_name or "gate_up" in stored_name) else 1
        assert covered[stored_name] == copies * (shape or (1,))[0], stored_name
    kinds = {m: f.kind for m, f in module_formats(draft.stored).items()}
    assert {m for m, kind in kinds.items() if kind == "nvfp4"} == set(PACKED)
    assert draft.shapes == draft_shapes(config)


# --- configs --------------------------------------------------------------------------------------


def test_nested_keys_move_up_and_nulls_go() -> None:
    raw = {
        "hidden_size": 8,
        "target_hidden_size": None,
        "draft_vocab_size": None,
        "num_nextn_predict_layers": 0,
        "rope_scaling": {"type": "yarn", "mscale": None, "factor": 4.0},
        "eagle_config": {IDS: [1, 3, 4], "norm_output": True, "fc_norm": None},
    }
    before = copy.deepcopy(raw)
    assert flat_config(raw) == {
        "hidden_size": 8,
        "rope_scaling": {"type": "yarn", "factor": 4.0},
        IDS: [1, 3, 4],
        "norm_output": True,
    }
    assert raw == before
    assert null_keys(raw) == (
        *("draft_vocab_size", "eagle_config.fc_norm", "rope_scaling.mscale"),
        "target_hidden_size",
    )


@pytest.mark.parametrize("wrapper", ["text_config", "transformer_layer_config"])
def test_wrappers_are_taken_off(wrapper: str) -> None:
    inner = draft_json()
    flat = flat_config({"architectures": ["Wrapper"], "torch_dtype": "bfloat16", wrapper: inner})
    assert flat.pop(IDS) == [2, 4, 5]
    expected = {k: v for k, v in inner.items() if k != "eagle_config"}
    assert flat == expected


@pytest.mark.parametrize(
    ("config", "match"),
    [
        (
            draft_json(norm_output=True, eagle_config={IDS: [2, 4, 5], "norm_output": False}),
            "contradicts itself",
        ),
        (draft_json(**{IDS: [1, 3, 4]}), "different captured layers"),
        (draft_json(**{IDS: [1, 3, 4]}, text_config={IDS: [2, 4, 5]}), "different captured"),
        ({"norm_output": True, "text_config": draft_json(norm_output=False)}, "contradicts itself"),
        (draft_json(eagle_config=[2, 4, 5]), "'eagle_config' must be a JSON object"),
    ],
    ids=["flag", "ids", "wrapped ids", "wrapped flag", "list"],
)
def test_contradictions_survive_flattening(
    tmp_path: Path, config: dict[str, Any], match: str
) -> None:
    tensors = random_tensors(draft_shapes(draft_json()))
    draft = open_draft(write(tmp_path / "d", config, tensors))
    with pytest.raises(ConfigError, match=match):
        draft_config(draft, TARGET)


# --- judgement ------------------------------------------------------------------------------------


def midlayer(name: str) -> str:
    return name.replace(LAYER, "midlayer.")


TORCHSPEC_KEYS = {"use_last_layernorm": True, "use_mtp_layernorm": False}
MODELOPT_KEYS = {"next_layer_regular": True, "parallel_draft_step": 1}


@pytest.mark.parametrize(
    ("eagle", "rename", "embedding", "expected"),
    [
        ({IDS: [2, 4, 6], **MODELOPT_KEYS}, str, False, (3, 5, 7)),
        ({IDS: [2, 4, 6], **MODELOPT_KEYS}, str, True, (3, 5, 7)),
        ({IDS: [2, 4, 6], **TORCHSPEC_KEYS}, midlayer, True, (3, 5, 7)),
        ({IDS: [2, 4, 6]}, midlayer, True, (3, 5, 7)),
        ({IDS: [2, 4, 6], **TORCHSPEC_KEYS}, str, True, (2, 4, 6)),
        ({IDS: [1, 3, 4], **MODELOPT_KEYS}, str, False, (2, 4, 5)),
        ({IDS: [2, 4, 5]}, midlayer, True, (2, 4, 5)),
        ({IDS: [2, 4, 5], **MODELOPT_KEYS}, str, False, "V10"),
        ({IDS: [2, 4, 5], **TORCHSPEC_KEYS}, midlayer, True, "V10"),
        ({IDS: [3, 4, 6]}, str, True, "V10"),
        ({IDS: [3, 4, 6], **MODELOPT_KEYS, "norm_output": 3}, str, True, "V19"),
        ({IDS: [2, 4, 8], **MODELOPT_KEYS}, str, False, "V13"),
        ({IDS: [-1, 4, 6], **MODELOPT_KEYS}, str, False, "V31"),
        ({}, str, False, "V9"),
    ],
    ids=lambda value: getattr(value, "__name__", None) or str(value),
)
def test_captured_layers(
    tmp_path: Path, eagle: dict[str, Any], rename: Any, embedding: bool, expected: Any
) -> None:
    write_draft(tmp_path / "d", draft_json(eagle_config=eagle), rename=rename, embedding=embedding)
    draft = open_draft(tmp_path / "d")
    if isinstance(expected, tuple):
        assert draft_config(draft, TARGET).boundaries == expected
        return
    with pytest.raises(ExtError) as raised:
        draft_config(draft, TARGET)
    assert raised.value.check == expected


def test_a_number_of_layers_stands_for_the_target(tmp_path: Path) -> None:
    write_draft(tmp_path / "d", draft_json(model_type="deepseek_v3"))
    draft = open_draft(tmp_path / "d")
    with pytest.raises(ConfigError, match="unknown target"):
        draft_config(draft)
    assert draft_config(draft, num_target_layers=8).boundaries == (2, 4, 5)
    assert draft_config(draft, boundaries=(2, 4, 5)).boundaries == (2, 4, 5)


@pytest.mark.parametrize(
    ("config", "check"),
    [
        ({"num_hidden_layers": 2}, "V6"),
        ({"mla_use_nope": True}, "V2"),
        ({"mla_use_output_gate": True}, "V2"),
        ({"use_aux_hidden_state": False}, "V2"),
        ({"rms_norm_eps": 0}, "V15"),
        ({"rope_scaling": {"type": "linear", "factor": 4.0}}, "V16"),
        ({"rope_scaling": {"type": "yarn"}}, "V16"),
        ({"rope_theta": None}, "V16"),
        ({"fc_norm": True}, "V18"),
        ({"norm_before_fc": True}, "V20"),
        ({"draft_vocab_size": 40}, "V8"),
        ({"draft_vocab_size": 65}, "V8"),
        ({"vocab_size": 60, "draft_vocab_size": 60}, "V8"),
        ({"target_hidden_size": 48}, "V14"),
        ({"num_aux_hidden_states": 4}, "V14"),
    ],
    ids=str,
)
def test_refusals_carry_the_id_of_their_check(
    tmp_path: Path, config: dict[str, Any], check: str
) -> None:
    tensors = random_tensors(draft_shapes(draft_json()))
    draft = open_draft(write(tmp_path / "d", draft_json(**config), tensors))
    with pytest.raises(ExtError) as raised:
        draft_config(draft, TARGET)
    assert raised.value.check == check, str(raised.value)


def test_plain_rope_without_a_length(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = draft_json(rope_scaling={"rope_type": "default"}, max_position_embeddings=None)
    write_draft(tmp_path / "d", config)
    rope = draft_config(open_draft(tmp_path / "d"), TARGET).mla.rope
    assert (rope.yarn, rope.max_position_embeddings) == (None, 4096)
    assert "taken to be 4096" in caplog.text


# --- files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("bring", ["auto_map", "modeling.py", "sub/x.py"])
def test_code_is_refused(tmp_path: Path, bring: str) -> None:
    config = draft_json(**({"auto_map": {"AutoModel": "a.B"}} if bring == "auto_map" else {}))
    write_draft(tmp_path / "d", config)
    if bring != "auto_map":
        script = tmp_path / "d" / bring
        script.parent.mkdir(exist_ok=True)
        script.write_text("raise SystemExit('ran')")
    with pytest.raises(CheckpointError, match="brings code"):
        open_draft(tmp_path / "d")


def test_a_store_will_do_and_a_target_keeps_its_code(tmp_path: Path) -> None:
    write_target(tmp_path / "t", target_json(auto_map={"AutoModel": "a.B"}))
    (tmp_path / "t" / "generation_config.json").write_text('{"eos_token_id": 9}')
    target = open_target(FolderStore(tmp_path / "t"))
    assert target_config(target).eos_token_ids == (9, 1)
    assert not target.quant.is_quantized
    write_draft(tmp_path / "d")
    assert open_draft(FolderStore(tmp_path / "d")).detection.format.name == "generic"


def test_two_files_about_quantization_that_contradict(tmp_path: Path) -> None:
    write_draft(tmp_path / "d", draft_json(quantization_config={"quant_algo": "FP8"}))
    document = {"quantization": {"quant_algo": "NVFP4"}}
    (tmp_path / "d" / "hf_quant_config.json").write_text(json.dumps(document))
    with pytest.raises(ConfigError, match="NVFP4 against FP8") as raised:
        open_draft(tmp_path / "d")
    assert raised.value.check == "V23"


def test_fused_projections_of_another_size(tmp_path: Path) -> None:
    tensors = random_tensors(draft_shapes(draft_json()))
    tensors["layers.0.self_attn.fused_qkv_a_proj.weight"] = torch.ones(50, 64)
    with pytest.raises(CheckpointError, match="expected 48 rows") as raised:
        open_draft(write(tmp_path / "d", draft_json(), tensors))
    assert raised.value.check == "V6"


@pytest.mark.parametrize("name", ["config.json", "hf_quant_config.json"])
def test_settings_that_nest_without_end(tmp_path: Path, name: str) -> None:
    write_draft(tmp_path / "d")
    (tmp_path / "d" / name).write_text('{"a":' * 200 + "1" + "}" * 200)
    with pytest.raises(CheckpointError, match="nests more than 32 levels"):
        open_draft(tmp_path / "d")


def test_a_target_in_the_place_of_a_draft(tmp_path: Path) -> None:
    header = {f"t{i}": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]} for i in range(50_001)}
    text = json.dumps(header).encode()
    (tmp_path / "config.json").write_text(json.dumps(draft_json()))
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text)
    with pytest.raises(CheckpointError, match=r"50001 tensors.*swapped"):
        open_draft(tmp_path)
