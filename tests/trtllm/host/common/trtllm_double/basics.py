# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Mapping, quantization settings, collectives and the ops of the host's library."""

from __future__ import annotations

import enum
import fnmatch
import os
import re
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from pydantic import BaseModel, ConfigDict
from torch.nn import functional

import trtllm_double

NVFP4_MAX, E4M3_MAX, BLOCK = 6.0, 448.0, 16
_BACKENDS = "cutlass,cublaslt,cuda_core"
_GRID = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
# Above which a code is the next one. A tie goes to the even code: every second bound is in it.
_BOUNDS = (_GRID[1:] + _GRID[:-1]) / 2
_BOUNDS[1::2] = torch.nextafter(_BOUNDS[1::2], torch.zeros(3))
_SIGNED = torch.cat((_GRID, -_GRID))
# The two values of each byte; the low half comes first.
_PAIRS = torch.stack((_SIGNED.repeat(16), _SIGNED.repeat_interleave(16)), -1)


def get_sm_version() -> int:
    """The capability of the GPU that the double pretends to have."""
    return int(os.environ.get("TRTLLM_DOUBLE_SM", "100"))


@dataclass
class Mapping:
    """Ranks of one server."""

    world_size: int = 1
    rank: int = 0
    tp_size: int = 1
    enable_attention_dp: bool = False
    moe_ep_size: int = 1

    @property
    def tp_rank(self) -> int:
        return self.rank % self.tp_size

    def is_last_pp_rank(self) -> bool:
        return True


def all_reduce(x: torch.Tensor) -> torch.Tensor:
    """Sums over the ranks."""
    if dist.is_initialized() and dist.get_world_size() > 1:
        x = x.contiguous()
        dist.all_reduce(x)
    return x


def all_gather(x: torch.Tensor, dim: int = -1) -> torch.Tensor:
    """Concatenates equal shapes of all ranks."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return x
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x.contiguous())
    return torch.cat(parts, dim=dim)


class QuantAlgo(str, enum.Enum):
    """Formats of weights and caches."""

    NVFP4 = "NVFP4"
    FP8 = "FP8"
    FP8_BLOCK_SCALES = "FP8_BLOCK_SCALES"
    MIXED_PRECISION = "MIXED_PRECISION"
    NO_QUANT = "NO_QUANT"


def _matches(name: str, patterns: list[str] | None) -> bool:
    """E1: the whole name. Later: ancestors too, and regular expressions after `re:`."""
    era = trtllm_double.ERA
    names = [name]
    if era != "E1":
        parts = name.split(".")
        names = [".".join(parts[:i]) for i in range(1, len(parts) + 1)]
    for pattern in patterns or []:
        if era != "E1" and pattern.startswith("re:"):
            found = re.fullmatch(pattern.removeprefix("re:"), name) is not None
        else:
            both = (pattern, pattern.removesuffix(".*")) if era == "E3" else (pattern,)
            found = any(fnmatch.fnmatchcase(each, p) for p in both for each in names)
        if found:
            return True
    return False


@dataclass
class _OldQuantConfig:
    """1.2: positional arguments, and a dictionary either way."""

    quant_algo: QuantAlgo | None = None
    kv_cache_quant_algo: QuantAlgo | None = None
    group_size: int | None = 128
    smoothquant_val: float = 0.5
    clamp_val: list[float] | None = None
    use_meta_recipe: bool = False
    has_zero_point: bool = False
    pre_quant_scale: bool = False
    exclude_modules: list[str] | None = None
    mamba_ssm_cache_dtype: str | None = None

    def is_module_excluded_from_quantization(self, name: str) -> bool:
        return _matches(name, self.exclude_modules)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, config: dict[str, Any]) -> _OldQuantConfig:
        return cls(**config)


class _NewQuantConfig(BaseModel):
    """Later: keywords only."""

    model_config = ConfigDict(extra="forbid")
    quant_algo: QuantAlgo | None = None
    kv_cache_quant_algo: QuantAlgo | None = None
    group_size: int | None = 128
    smoothquant_val: float = 0.5
    clamp_val: list[float] | None = None
    use_meta_recipe: bool = False
    has_zero_point: bool = False
    pre_quant_scale: bool = False
    exclude_modules: list[str] | None = None
    mamba_ssm_cache_dtype: str | None = None
    mamba_ssm_stochastic_rounding: bool = False
    mamba_ssm_philox_rounds: int = 10

    def is_module_excluded_from_quantization(self, name: str) -> bool:
        return _matches(name, self.exclude_modules)


# Format of a module's weight; excludes are patterns over module names.
QuantConfig: Any = _OldQuantConfig if trtllm_double.ERA == "E1" else _NewQuantConfig
QuantConfig.__name__ = QuantConfig.__qualname__ = "QuantConfig"


def swizzle(scales: torch.Tensor) -> torch.Tensor:
    """[rows, columns] bytes -> 1-D, in tiles of 128 x 4 as tensor cores read them."""
    rows, columns = scales.shape
    padded = scales.new_zeros(-(-rows // 128) * 128, -(-columns // 4) * 4)
    padded[:rows, :columns] = scales
    tiles = padded.view(padded.shape[0] // 128, 4, 32, padded.shape[1] // 4, 4)
    return tiles.permute(0, 3, 2, 1, 4).contiguous().flatten()


def unswizzle(flat: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """Undoes `swizzle`."""
    high, wide = -(-rows // 128), -(-columns // 4)
    tiles = flat.view(high, wide, 32, 4, 4).permute(0, 3, 2, 1, 4)
    return tiles.reshape(high * 128, wide * 4)[:rows, :columns].contiguous()


def _reversed(tiles: torch.Tensor) -> torch.Tensor:
    """[rows, columns] bytes in tiles, both padded -> the same in rows."""
    return unswizzle(tiles.flatten(), *tiles.shape)


def _row_scales(x: torch.Tensor, tokens_per_batch: torch.Tensor | None) -> torch.Tensor:
    """The largest global scale that clips no value of a row, [..., 1] float32."""
    return NVFP4_MAX * E4M3_MAX / x.float().abs().amax(-1, keepdim=True)


def values_of(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Packed codes times the scales of their blocks, float32."""
    values = functional.embedding(codes.int(), _PAIRS).flatten(-2)
    return values * scales.view(torch.float8_e4m3fn).float().repeat_interleave(BLOCK, dim=-1)


def fp4_quantize(
    x: torch.Tensor,
    global_scale: torch.Tensor,
    sf_vec_size: int,
    sf_use_ue8m0: bool = False,
    is_sf_swizzled: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantizes activations; `global_scale` is the inverse of a checkpoint's input_scale."""
    blocks = x.float().unflatten(-1, (-1, BLOCK))
    scale = (blocks.abs().amax(-1) * (1.0 / NVFP4_MAX) * global_scale).clamp_max(E4M3_MAX)
    scale = scale.to(torch.float8_e4m3fn)
    step = scale.float() * global_scale.reciprocal()
    factor = step.reciprocal().masked_fill(scale.float() == 0, 0.0)
    quotients = blocks * factor.unsqueeze(-1)
    codes = torch.bucketize(quotients.abs(), _BOUNDS).to(torch.uint8)
    codes |= (quotients < 0).to(torch.uint8) << 3
    codes = codes.flatten(-2)
    scale = scale.view(torch.uint8)
    scales = swizzle(scale) if is_sf_swizzled else scale.flatten()
    return codes[..., ::2] | codes[..., 1::2] << 4, scales


def requantize(part: dict[str, torch.Tensor], scale: torch.Tensor) -> dict[str, torch.Tensor]:
    """A packed weight under another global scale."""
    wide = values_of(part["weight"], part["weight_scale"]) * part["weight_scale_2"]
    data, scales = fp4_quantize(wide, scale.reciprocal(), BLOCK)
    rows, columns = part["weight_scale"].shape
    return part | {"weight": data, "weight_scale": unswizzle(scales, rows, columns)}


def nvfp4_gemm(
    act_fp4: torch.Tensor,
    weight: torch.Tensor,
    act_sf: torch.Tensor,
    weight_scale: torch.Tensor,
    alpha: torch.Tensor,
    output_dtype: torch.dtype,
    to_userbuffers: bool = False,
    allowed_backends: str = _BACKENDS,
) -> torch.Tensor:
    """Both operands packed, scales swizzled: what Blackwell does, in float32 or wider."""
    if get_sm_version() < 100:
        raise RuntimeError("Arch unsupported for CUTLASS FP4 GEMM")
    wide = torch.promote_types(output_dtype, torch.float32)
    columns = act_fp4.shape[-1] * 2 // BLOCK
    left = values_of(act_fp4, unswizzle(act_sf, act_fp4.shape[0], columns)).to(wide)
    right = values_of(weight, unswizzle(weight_scale, weight.shape[0], columns)).to(wide)
    return (left @ right.T * alpha).to(output_dtype)


def register_ops() -> None:
    """Defines `torch.ops.trtllm` once per process."""
    if hasattr(torch.ops.trtllm, "fp4_quantize"):
        return
    library = torch.library.Library("trtllm", "FRAGMENT")
    library.define(
        "fp4_quantize(Tensor input, Tensor? globalScale, int sfVecSize, bool sfUseUE8M0=False,"
        " bool isSfSwizzledLayout=True) -> (Tensor, Tensor)"
    )
    library.define(
        "nvfp4_gemm(Tensor act_fp4, Tensor weight, Tensor act_sf, Tensor weight_scale,"
        " Tensor alpha, ScalarType output_dtype, bool to_userbuffers=False,"
        f" str allowed_backends='{_BACKENDS}') -> Tensor"
    )
    library.define("block_scale_interleave(Tensor input) -> Tensor")
    library.define("block_scale_interleave_reverse(Tensor input) -> Tensor")
    library.define("calculate_nvfp4_global_scale(Tensor input, Tensor? tokensPerBatch) -> Tensor")
    functions = {
        "fp4_quantize": fp4_quantize,
        "nvfp4_gemm": nvfp4_gemm,
        "block_scale_interleave": swizzle,
        "block_scale_interleave_reverse": _reversed,
        "calculate_nvfp4_global_scale": _row_scales,
    }
    for name, function in functions.items():
        library.impl(name, function, "CompositeExplicitAutograd")
    _kept.append(library)


_kept: list[Any] = []


@dataclass
class KvCacheParams:
    """What is cached before a pass, per sequence."""

    use_cache: bool = True
    num_cached_tokens_per_seq: list[int] = field(default_factory=list)
