# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""What tensors say about quantization, and where the metadata disagree (V23, V24)."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tensorrt_llm_ext.checkpoints.quantized import (
    QuantProblem,
    logical_shapes,
    match_excludes,
    module_formats,
    quantization_problems,
)
from tensorrt_llm_ext.configs.quant import QuantConfig
from tests.support.tiny_checkpoints import draft_json, draft_shapes

Stored = dict[str, tuple[str, tuple[int, ...]]]
ATTENTION = "layers.0.self_attn."
QUANTIZED = (
    *(f"{ATTENTION}{name}" for name in ("q_a_proj", "kv_a_proj_with_mqa", "q_b_proj", "o_proj")),
    *(f"layers.0.mlp.{name}" for name in ("gate_proj", "up_proj", "down_proj")),
)
EXCLUDE = ("fc", "layers.0.self_attn.kv_b_proj", "lm_head")
NVFP4 = QuantConfig(
    method="modelopt", algo="NVFP4", group_size=16, exclude=EXCLUDE, source="hf_quant_config.json"
)


def nvfp4(rows: int, columns: int) -> Stored:
    return {
        "weight": ("U8", (rows, columns // 2)),
        "weight_scale": ("F8_E4M3", (rows, columns // 16)),
        "weight_scale_2": ("F32", ()),
        "input_scale": ("F32", ()),
    }


def draft(quantized: tuple[str, ...] = QUANTIZED) -> Stored:
    """A draft of real widths, NVFP4 but for kv_b, fc and the head."""
    config = draft_json(hidden_size=64, num_attention_heads=4, q_lora_rank=32, kv_lora_rank=16)
    stored: Stored = {}
    for name, shape in draft_shapes(config, embedding=True).items():
        module = name.removesuffix(".weight")
        if module in quantized:
            stored |= {f"{module}.{kind}": value for kind, value in nvfp4(*shape).items()}
        else:
            stored[name] = ("BF16", shape)
    return stored


def problems(stored: Stored, quant: QuantConfig = NVFP4) -> tuple[QuantProblem, ...]:
    return quantization_problems(quant, module_formats(stored))


def one(parts: dict[str, tuple[str, tuple[int, ...]]]) -> Any:
    return module_formats({f"m.{kind}": value for kind, value in parts.items()})["m"]


@pytest.mark.parametrize(
    ("parts", "kind", "shape", "group"),
    [
        ({"weight": ("BF16", (8, 64))}, "float", (8, 64), None),
        (nvfp4(8, 64), "nvfp4", (8, 64), 16),
        ({**nvfp4(8, 64), "bias": ("BF16", (8,))}, "nvfp4", (8, 64), 16),
        (
            {
                "weight_packed": ("U8", (8, 32)),
                "weight_scale": ("F8_E4M3", (8, 4)),
                "weight_global_scale": ("F32", (1,)),
            },
            "nvfp4",
            (8, 64),
            16,
        ),
        ({"weight": ("F8_E4M3", (8, 64)), "weight_scale": ("F32", ())}, "fp8", (8, 64), None),
        ({"weight": ("F8_E4M3", (8, 64)), "weight_scale": ("F32", (8, 1))}, "fp8", (8, 64), None),
        (
            {"weight": ("F8_E4M3", (8, 64)), "weight_scale": ("U8", (8, 2))},  # MXFP8
            "unknown",
            (8, 64),
            32,
        ),
        (
            {"weight": ("F8_E4M3", (200, 300)), "weight_scale_inv": ("F32", (2, 3))},
            "fp8_block",
            (200, 300),
            128,
        ),
        (
            {
                "weight_packed": ("I32", (8, 8)),
                "weight_scale": ("BF16", (8, 2)),
                "weight_shape": ("I64", (2,)),
            },
            "int4",
            (8, 64),
            None,
        ),
        (
            {"qweight": ("I32", (8, 8)), "qzeros": ("I32", (1, 1)), "scales": ("F16", (1, 8))},
            "int4",
            (),
            None,
        ),
    ],
    ids=str,
)
def test_kinds(parts: Any, kind: str, shape: tuple[int, ...], group: int | None) -> None:
    form = one(parts)
    assert (form.kind, form.shape, form.group_size, form.problems) == (kind, shape, group, ())


@pytest.mark.parametrize(
    ("parts", "problem"),
    [
        ({"weight": ("U8", (8, 32))}, "stored as U8 without weight_scale"),
        ({"weight_scale": ("F32", ())}, "has weight_scale but no weight"),
        ({"weight": ("BF16", (8, 64)), "weight_scale": ("F32", ())}, "a float weight has no scale"),
        ({**nvfp4(8, 64), "weight_scale": ("F8_E4M3", (128, 4))}, r"expected \[out, in/16\], not"),
        ({**nvfp4(8, 64), "weight_scale": ("F8_E4M3", (512,))}, "not swizzled"),
        ({**nvfp4(8, 64), "weight_scale": ("F8_E4M3", (8, 5))}, "5 scales for 64 values"),
        ({**nvfp4(8, 64), "weight_scale": ("BF16", (8, 4))}, "dtype BF16, expected F8_E4M3"),
        (
            {k: v for k, v in nvfp4(8, 64).items() if k != "weight_scale_2"},
            "no weight_scale_2",
        ),
        ({"weight": ("F8_E4M3", (8, 64))}, "neither weight_scale nor"),
        (
            {"weight": ("F8_E4M3", (200, 300)), "weight_scale_inv": ("F32", (3, 2))},
            r"one per 128 x 128 block, \[2, 3\]",
        ),
    ],
    ids=str,
)
def test_inconsistent_tensors(parts: Any, problem: str) -> None:
    found = quantization_problems(QuantConfig(), {"m": one(parts)})
    assert found[0].check == "V23"
    assert re.search(problem, found[0].message)


def test_logical_shapes_are_those_of_the_float_draft() -> None:
    assert logical_shapes(draft()) == logical_shapes(draft(quantized=()))
    scales = {"layers.0.self_attn.k_proj.k_scale": ("F32", ())}
    assert logical_shapes({**draft(), **scales}) == logical_shapes(draft())


def test_a_consistent_draft_has_no_fatal_problem() -> None:
    found = problems(draft())
    assert not [p for p in found if p.fatal]
    # The exporter's names are not those that the host matches.
    assert [p.message.split("'")[1] for p in found] == ["fc", "layers.0.self_attn.kv_b_proj"]
    assert "'model.fc'" in found[0].message
    assert "'model.midlayer.self_attn.kv_b_proj'" in found[1].message
    in_host_names = QuantConfig(
        method="modelopt",
        algo="NVFP4",
        exclude=("model.fc", "model.midlayer.self_attn.kv_b_proj", "lm_head"),
        source="config.json",
    )
    assert problems(draft(), in_host_names) == ()
    assert problems(draft(quantized=()), QuantConfig()) == ()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"algo": None}, r"7 modules are quantized \(.*neither hf_quant_config"),
        ({"algo": "FP8"}, "is nvfp4, but hf_quant_config.json declares FP8"),
        ({"exclude": (*EXCLUDE, "layers.0.mlp*")}, r"gate_proj is nvfp4, but .* excludes it"),
        ({"exclude": EXCLUDE[1:]}, "fc is float, but .* declares NVFP4 and excludes it by no"),
        (
            {"algo": "MIXED_PRECISION", "layers": {"layers.0.mlp.up_proj": "NVFP4"}},
            "is nvfp4, but .* does not list it",
        ),
        (
            {"algo": "MIXED_PRECISION", "layers": dict.fromkeys(QUANTIZED, "FP8")},
            "is nvfp4, but .* declares FP8",
        ),
    ],
    ids=str,
)
def test_metadata_that_disagree(changes: dict[str, Any], message: str) -> None:
    values = {"method": "modelopt", "algo": "NVFP4", "exclude": EXCLUDE, **changes}
    found = problems(draft(), QuantConfig(source="hf_quant_config.json", **values))
    fatal = [p for p in found if p.fatal]
    assert {p.check for p in fatal} == {"V23"}
    assert re.search(message, " ".join(p.message for p in fatal))


def test_metadata_of_another_model() -> None:
    found = problems(draft(quantized=()))
    assert [(p.check, p.fatal) for p in found] == [("V23", True)]
    assert "every tensor is float" in found[0].message


def test_mixed_precision_with_the_exporters_prefix() -> None:
    layers = {f"eagle_module.{name}": "NVFP4" for name in QUANTIZED}
    quant = QuantConfig(method="modelopt", algo="MIXED_PRECISION", layers=layers, source="x")
    assert problems(draft(), quant) == ()


@pytest.mark.parametrize(
    ("module", "fatal", "message"),
    [
        (f"{ATTENTION}kv_b_proj", True, "need it in floating point"),
        ("lm_head", False, "head in floating point only"),
    ],
)
def test_modules_that_engines_cannot_run_quantized(module: str, fatal: bool, message: str) -> None:
    stored = draft((*QUANTIZED, module))
    quant = QuantConfig(
        method="modelopt",
        algo="NVFP4",
        exclude=tuple(name for name in EXCLUDE if name != module),
        source="x",
    )
    found = [p for p in problems(stored, quant) if p.check == "V24"]
    assert [p.fatal for p in found] == [fatal]
    assert message in found[0].message


def test_kv_b_in_fp8_blocks_runs() -> None:
    stored = draft()
    stored[f"{ATTENTION}kv_b_proj.weight"] = ("F8_E4M3", (64, 16))
    stored[f"{ATTENTION}kv_b_proj.weight_scale_inv"] = ("F32", (1, 1))
    quant = QuantConfig(
        method="modelopt",
        algo="MIXED_PRECISION",
        layers={f"{ATTENTION}kv_b_proj": "FP8_BLOCK_SCALES", **dict.fromkeys(QUANTIZED, "NVFP4")},
        source="x",
    )
    assert [(p.check, p.fatal) for p in problems(stored, quant)] == [("V24", False)]


MODULES = ("fc", "norm", "lm_head", f"{ATTENTION}kv_b_proj", f"{ATTENTION}o_proj")


@pytest.mark.parametrize(
    ("pattern", "matched", "renamed"),
    [
        ("lm_head", ["lm_head"], False),
        ("fc", ["fc"], True),
        ("model.fc", ["fc"], False),
        ("*fc", ["fc"], False),
        ("eagle_module.fc", ["fc"], True),
        ("eagle_module.layers.0.self_attn.kv_b_proj", [f"{ATTENTION}kv_b_proj"], True),
        ("model.midlayer.self_attn.kv_b_proj", [f"{ATTENTION}kv_b_proj"], False),
        ("*kv_b_proj*", [f"{ATTENTION}kv_b_proj"], False),
        ("layers.0.self_attn*", [f"{ATTENTION}kv_b_proj", f"{ATTENTION}o_proj"], True),
        ("layers.0", [f"{ATTENTION}kv_b_proj", f"{ATTENTION}o_proj"], True),
        ("layers.0.self_attn.*", [f"{ATTENTION}kv_b_proj", f"{ATTENTION}o_proj"], True),
        ("re:.*self_attn.*", [f"{ATTENTION}kv_b_proj", f"{ATTENTION}o_proj"], False),
        (r"re:model\.layers\.0\.self_attn\.o_proj", [f"{ATTENTION}o_proj"], True),
        (r"re:midlayer\.self_attn\.o_proj", [f"{ATTENTION}o_proj"], True),
        # Left over from the base model: in an engine's names it would exclude everything.
        ("model*", [], None),
        ("embed_tokens", [], None),
        ("language_model.model.layers.1*", [], None),
        ("re:((broken", [], None),
        # Could run for ever on a long name.
        (r"re:(\w+\.?)+$", [], None),
        ("re:" + ".*a" * 30, [], None),
        ("*" + "x" * 2000, [], None),
    ],
)
def test_exclude_patterns(pattern: str, matched: list[str], renamed: bool | None) -> None:
    report = match_excludes([pattern], MODULES)
    assert sorted(report.matched.get(pattern, ())) == sorted(matched)
    assert bool(report.stale) == (not matched)
    if matched:
        assert (report.renamed == (pattern,)) == renamed
