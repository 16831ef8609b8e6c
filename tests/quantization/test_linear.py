# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""QuantLinear over every format and mode, and loading from a source."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

from tensorrt_llm_ext.errors import CheckpointError, ConfigError, ShapeError, UnsupportedError
from tensorrt_llm_ext.models.interfaces import Loadable
from tensorrt_llm_ext.ops.nvfp4 import torch_kernels
from tensorrt_llm_ext.quantization.linear import MODES, QuantLinear
from tensorrt_llm_ext.quantization.loading import (
    dense,
    stored_format,
    take_float,
    take_into,
    take_weight,
)
from tensorrt_llm_ext.quantization.siblings import (
    quantize_siblings,
    share_fp8_scales,
    share_nvfp4_scales,
)
from tensorrt_llm_ext.quantization.tensors import (
    Fp8Tensor,
    Nvfp4Tensor,
    Weight,
    quantize_fp8,
    quantize_nvfp4,
)
from tests.support.tiny_models import CPU, DictSource

E4M3 = torch.float8_e4m3fn
QUANTIZE = {"nvfp4": quantize_nvfp4, "fp8": quantize_fp8}
FORMATS = ["float", *QUANTIZE]
SHARE = {"nvfp4": share_nvfp4_scales, "fp8": share_fp8_scales}


def numbers(*shape: int, seed: int = 0, scale: float = 1.0) -> torch.Tensor:
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def weight_of(kind: str, weight: torch.Tensor, x: torch.Tensor) -> Weight:
    if kind == "float":
        return weight
    full = 448.0 * (6.0 if kind == "nvfp4" else 1.0)
    return QUANTIZE[kind](weight, input_scale=x.abs().max().float() / full)


def layer_of(
    weights: list[Weight], mode: str, dtype: torch.dtype = torch.float32, fc: str = ""
) -> QuantLinear:
    parts = [(f"part{i}" if len(weights) > 1 else fc, w.shape[0]) for i, w in enumerate(weights)]
    layer = QuantLinear(weights[0].shape[1], parts, mode=mode, device=CPU, dtype=dtype)
    layer.set_weights(weights)
    return layer


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", FORMATS)
def test_packed_equals_dequantized(kind: str, dtype: torch.dtype) -> None:
    x = numbers(5, 64, seed=1).to(dtype)
    weight = weight_of(kind, numbers(40, 64, scale=0.125), x)
    packed, plain = (layer_of([weight], mode, dtype) for mode in ("packed", "dequantized"))
    assert plain.weight.dtype == dtype
    want = functional.linear(x, dense(weight, dtype).to(dtype))
    tolerance = {torch.bfloat16: 2e-2, torch.float16: 2e-3}.get(dtype, 1e-5)
    torch.testing.assert_close(plain(x), want, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(packed(x), want, rtol=tolerance, atol=tolerance)
    assert packed(x).dtype == dtype


def quantized_input(kind: str, weight: Weight, x: torch.Tensor) -> torch.Tensor:
    if isinstance(weight, Nvfp4Tensor):
        # A weight's rule differs from an activation's only in blocks near zero; there are none.
        return quantize_nvfp4(x, global_scale=weight.input_scale).dequantize(torch.float64)
    if isinstance(weight, Fp8Tensor):
        return Fp8Tensor(
            data=(x / weight.input_scale).clamp(-448, 448).to(E4M3), scale=weight.input_scale
        ).dequantize(torch.float64)
    return x.double()


@pytest.mark.parametrize("kind", FORMATS)
def test_emulated_multiplies_the_quantized_input(kind: str) -> None:
    x = numbers(5, 64, seed=1)
    weight = weight_of(kind, numbers(40, 64), x)
    got = layer_of([weight], "emulated")(x)
    want = quantized_input(kind, weight, x) @ dense(weight, torch.float64).double().T
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5)
    if kind != "float":
        assert not torch.allclose(got, layer_of([weight], "packed")(x), rtol=1e-3)


@pytest.mark.parametrize("kind", ["nvfp4", "fp8"])
def test_emulated_saturates_beyond_the_calibrated_range(kind: str) -> None:
    x = numbers(2, 32, seed=1)
    weight = weight_of(kind, torch.eye(32), x)
    got = layer_of([weight], "emulated")(1000 * x)
    ceiling = x.abs().max() * 1.1
    assert got.isfinite().all()
    assert got.abs().max() <= ceiling


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kinds", list(itertools.product(FORMATS, repeat=2)))
def test_stacked_parts_of_any_formats(kinds: tuple[str, str], mode: str) -> None:
    x = numbers(3, 32, seed=2)
    weights = [
        weight_of(kind, numbers(rows, 32, seed=rows), x)
        for kind, rows in zip(kinds, (24, 10), strict=True)
    ]
    whole = layer_of(weights, mode)
    if kinds[0] == kinds[1] and kinds[0] in SHARE:
        weights = SHARE[kinds[0]](weights)
    want = torch.cat([layer_of([weight], mode)(x) for weight in weights], dim=-1)
    got = whole(x)
    assert got.shape == (3, 34) == (3, whole.out_features)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    same_kind = kinds[0] == kinds[1] or mode == "dequantized"
    assert len(whole.stacks) == (1 if same_kind else 2)


@pytest.mark.parametrize("mode", MODES)
def test_stacked_siblings_are_one_matrix_with_the_shared_scale(mode: str) -> None:
    x = numbers(3, 32, seed=2)
    scale = x.abs().max() / 2688
    siblings = quantize_siblings(
        {"q_a": numbers(6, 32, seed=3), "kv_a": numbers(4, 32, seed=4)}, input_scale=scale
    )
    stacked = layer_of(list(siblings.values()), mode)
    want = torch.cat([layer_of([weight], mode)(x) for weight in siblings.values()], dim=-1)
    torch.testing.assert_close(stacked(x), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mode", MODES)
def test_unequal_siblings_run_as_after_sharing(mode: str) -> None:
    """The same numbers in every mode, and those of a host that shares the larger scale."""
    x = numbers(3, 32, seed=2)
    parts = [
        quantize_nvfp4(numbers(6, 32, seed=5), input_scale=torch.tensor(0.001)),
        quantize_nvfp4(numbers(6, 32, seed=6, scale=0.3), input_scale=torch.tensor(0.002)),
    ]
    want = torch.cat([layer_of([part], mode)(x) for part in share_nvfp4_scales(parts)], dim=-1)
    torch.testing.assert_close(layer_of(parts, mode)(x), want, rtol=1e-5, atol=1e-5)


def test_memory_of_each_mode() -> None:
    weight = quantize_nvfp4(numbers(64, 128))
    assert layer_of([weight], "packed", torch.bfloat16).nbytes / (64 * 128) <= 0.60
    assert layer_of([weight], "dequantized", torch.bfloat16).nbytes == 2 * 64 * 128
    assert layer_of([quantize_fp8(numbers(64, 128))], "packed").nbytes == 64 * 128 + 4


def test_packed_never_holds_the_whole_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    plain = torch_kernels._values
    monkeypatch.setattr(
        torch_kernels, "_values", lambda data: sizes.append(2 * data.numel()) or plain(data)
    )
    layer = layer_of([quantize_nvfp4(numbers(64, 128))], "packed")
    sizes.clear()
    layer(numbers(1, 128))
    assert sizes
    assert max(sizes) <= 64 * 128 / 2


@pytest.mark.parametrize("layer_mode", ["packed", "emulated"])
def test_a_quantized_layer_reads_nothing_on_the_host(layer_mode: str) -> None:
    x = numbers(3, 32)
    layer = layer_of(
        [weight_of("nvfp4", numbers(8, 32), x), weight_of("fp8", numbers(4, 32), x)], layer_mode
    )
    mode = FakeTensorMode()
    for stack in layer.stacks:
        for name, tensor in [*stack.named_buffers(), *stack.named_parameters()]:
            delattr(stack, name)
            setattr(stack, name, mode.from_tensor(tensor.detach()))
    x = mode.from_tensor(x)
    with mode:
        assert layer(x).shape == (3, 12)


def test_argmax_takes_the_lowest_of_equals_and_maps_it() -> None:
    weight = numbers(48, 32)
    weight[7] = weight[3]
    head = layer_of([quantize_nvfp4(weight)], "packed")
    hidden = weight[[3, 7, 11]] * 10
    d2t = torch.arange(48) * 2
    ids, targets = head.argmax(hidden, d2t)
    assert ids.tolist() == [3, 3, 11]
    assert targets.tolist() == [9, 9, 33]
    assert torch.equal(head.argmax(hidden, None)[1], ids)


def test_weight_exists_only_in_floating_point() -> None:
    assert layer_of([quantize_nvfp4(numbers(8, 32))], "dequantized").weight.shape == (8, 32)
    with pytest.raises(UnsupportedError, match=r"keeps its weight as nvfp4 \(packed\)"):
        _ = layer_of([quantize_nvfp4(numbers(8, 32))], "packed").weight


def test_a_change_of_dtype_is_refused() -> None:
    layer = layer_of([quantize_nvfp4(numbers(8, 32))], "packed")
    layer.to("cpu")
    with pytest.raises(UnsupportedError, match="rounds its scales"):
        layer.bfloat16()


def test_a_layer_without_weights_says_so() -> None:
    layer = QuantLinear(32, (("", 8),), device=CPU, dtype=torch.float32)
    with pytest.raises(UnsupportedError, match="Call load or set_weights first"):
        layer(numbers(1, 32))


def test_it_is_a_loadable_block() -> None:
    assert isinstance(QuantLinear(32, (("", 8),), device=CPU, dtype=torch.float32), Loadable)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", FORMATS)
def test_load_takes_every_tensor(kind: str, mode: str) -> None:
    x = numbers(2, 32, seed=1)
    weight = weight_of(kind, numbers(8, 32), x)
    stored = {"fc.weight": weight} if kind == "float" else weight.tensors("fc")
    source = DictSource(stored)
    layer = QuantLinear(32, (("", 8),), mode=mode, device=CPU, dtype=torch.float32)
    layer.load(source, "fc")
    assert not source.remaining
    torch.testing.assert_close(layer(x), layer_of([weight], mode)(x))


def test_fused_parts_load_by_name() -> None:
    x = numbers(2, 32, seed=1)
    parts = (("gate_proj", 8), ("up_proj", 8))
    weights = {
        f"layers.0.mlp.{name}": numbers(rows, 32, seed=i) for i, (name, rows) in enumerate(parts)
    }
    siblings = quantize_siblings(weights)
    stored = {k: v for name, weight in siblings.items() for k, v in weight.tensors(name).items()}
    layer = QuantLinear(32, parts, mode="packed", device=CPU, dtype=torch.float32)
    source = DictSource(stored)
    layer.load(source, "layers.0.mlp")
    assert not source.remaining
    dense_rows = torch.cat([weight.dequantize(torch.float32) for weight in siblings.values()])
    torch.testing.assert_close(layer(x), x @ dense_rows.T)
    assert layer.describe() == "nvfp4 (packed)"


def test_take_into_a_slice_of_stacked_experts() -> None:
    weight = quantize_nvfp4(numbers(8, 32))
    stacked = torch.zeros(3, 16, 32)
    take_into(stacked[1, 8:], DictSource(weight.tensors("experts.1.up_proj")), "experts.1.up_proj")
    assert torch.equal(stacked[1, 8:], weight.dequantize(torch.float32))
    assert not stacked[1, :8].any()


def test_kv_b_proj_is_refused_and_told_why() -> None:
    name = "layers.0.self_attn.kv_b_proj"
    for take in (take_weight, take_float):
        with pytest.raises(CheckpointError, match=r"kv_b_proj is stored in nvfp4.*absorb") as error:
            take(DictSource(quantize_nvfp4(numbers(8, 32)).tensors(name)), name, (8, 32))
        assert error.value.check == "V24"
    plain = numbers(8, 32)
    assert take_float(DictSource({f"{name}.weight": plain}), name, (8, 32)) is plain


def test_take_float_refuses_any_packed_weight() -> None:
    source = DictSource(quantize_fp8(numbers(8, 32)).tensors("o_proj"))
    with pytest.raises(CheckpointError, match="o_proj is stored in fp8"):
        take_float(source, "o_proj", (8, 32))


@pytest.mark.parametrize(
    ("suffix", "label"),
    [
        ("weight_scale_inv", "FP8 in blocks"),
        ("weight_packed", "compressed-tensors"),
        ("qweight", "GPTQ or AWQ"),
        ("pre_quant_scale", "AWQ"),
        ("weight_zero_point", "zero points"),
    ],
)
def test_other_formats_are_refused_by_name(suffix: str, label: str) -> None:
    stored = quantize_nvfp4(numbers(8, 32)).tensors("fc") | {f"fc.{suffix}": torch.ones(1)}
    with pytest.raises(UnsupportedError, match=f"fc has a tensor {suffix}.*{label}"):
        stored_format(DictSource(stored), "fc")


def broken(**changes: torch.Tensor) -> DictSource:
    stored = quantize_nvfp4(numbers(8, 32), input_scale=torch.tensor(1.0)).tensors("fc")
    return DictSource(stored | {f"fc.{name}": value for name, value in changes.items()})


def nan_scales() -> torch.Tensor:
    scales = torch.ones(8, 2).to(E4M3).view(torch.uint8)
    scales[5, 1] = 0x7F
    return scales.view(E4M3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weight": torch.zeros(8, 16)}, r"fc\.weight has dtype torch\.float32, expected .*uint8"),
        ({"weight_scale": torch.ones(8, 2)}, "weight_scale has dtype torch.float32"),
        ({"weight_scale": nan_scales()}, "NaN or a negative scale, first in row 5"),
        ({"weight_scale": (-torch.ones(8, 2)).to(E4M3)}, "negative scale, first in row 0"),
        ({"weight_scale_2": torch.tensor(1.0).bfloat16()}, "weight_scale_2 has dtype"),
        ({"weight_scale_2": torch.tensor(0.0)}, r"weight_scale_2 is 0\.0, expected a positive"),
        ({"input_scale": torch.tensor(float("nan"))}, "input_scale is nan"),
        ({"input_scale": torch.tensor(float("inf"))}, "input_scale is inf"),
        ({"weight_scale": torch.ones(8, 1).to(E4M3)}, "weight_scale has shape"),
    ],
)
def test_damaged_nvfp4_is_refused(changes: dict[str, torch.Tensor], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        take_weight(broken(**changes), "fc", (8, 32))


def test_damaged_fp8_is_refused() -> None:
    stored = {"fc.weight": torch.zeros(8, 32), "fc.weight_scale": torch.tensor(1.0)}
    with pytest.raises(CheckpointError, match=r"fc\.weight has dtype torch\.float32, expected"):
        take_weight(DictSource(stored), "fc", (8, 32))
    with pytest.raises(CheckpointError, match="no scale beside it"):
        take_weight(DictSource({"fc.weight": torch.zeros(8, 32).to(E4M3)}), "fc", (8, 32))


def test_nvfp4_of_an_odd_width_is_refused() -> None:
    with pytest.raises(ShapeError, match="24 inputs are no multiple of 16"):
        take_weight(broken(), "fc", (8, 24))


def test_w4a16_cannot_be_emulated() -> None:
    with pytest.raises(ConfigError, match="W4A16"):
        layer_of([quantize_nvfp4(numbers(8, 32))], "emulated")


def test_unknown_modes_and_wrong_shapes_are_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean 'packed'"):
        QuantLinear(32, (("", 8),), mode="paked", device=CPU, dtype=torch.float32)
    layer = QuantLinear(32, (("", 8),), device=CPU, dtype=torch.float32)
    with pytest.raises(ShapeError, match=r"shapes \[\(4, 32\)\], expected \[\(8, 32\)\]"):
        layer.set_weights([numbers(4, 32)])
