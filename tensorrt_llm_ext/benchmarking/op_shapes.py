# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Shapes that single ops are timed at, with the bytes and the arithmetic that they cost at least.

"kimi" and "deepseek" are Kimi-K2.5 and DeepSeek-V3 with their drafts, one rank of eight; "thunder"
is the unbalanced verification batch of the ThunderMLA report (Hazy Research, 2025-03-04); "small"
is for a CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from tensorrt_llm_ext.ops.attention.metadata import DecodeMetadata, PrefillMetadata
from tensorrt_llm_ext.ops.nvfp4 import nvfp4_quantize
from tensorrt_llm_ext.ops.nvfp4.format import global_scale_of
from tensorrt_llm_ext.ops.sampling import SamplingRows

Inputs = dict[str, Any]
PRESETS: Final = ("small", "kimi", "deepseek", "thunder")
_BLOCK: Final = 64
_NVFP4_BYTES: Final = 0.5625  # per weight
# (name, out_features, in_features) of a Kimi-K2.5 draft.
_DRAFT_LAYERS: Final = (
    ("q_a_kv_a", 2112, 14336),
    ("o", 7168, 8192),
    ("gate_up", 36864, 7168),
    ("down", 7168, 18432),
    ("fc", 7168, 21504),
)


@dataclass(frozen=True, kw_only=True)
class OpShape:
    """One timed call.

    Attributes:
        op: Public op.
        preset: One of `PRESETS`.
        name: What is particular.
        build: Makes the keyword arguments on a device, with weights and states of a dtype.
        num_bytes: Bytes that have to be read and written, of 2-byte states.
        flops: Multiplications and additions.
    """

    op: str
    preset: str
    name: str
    build: Callable[[torch.device, torch.dtype], Inputs]
    num_bytes: float
    flops: float = 0.0


def _numbers(device: torch.device, dtype: torch.dtype, *shape: int, scale: float = 1.0) -> Any:
    generator = torch.Generator(device=device).manual_seed(len(shape) + shape[0])
    return (torch.randn(*shape, generator=generator, device=device) * scale).to(dtype)


def _decode(
    preset: str, name: str, lengths: Sequence[int], query_len: int, heads: int, rank: int = 512
) -> OpShape:
    rope = rank // 8
    width, batch = rank + rope, len(lengths)

    def build(device: torch.device, dtype: torch.dtype) -> Inputs:
        columns = [-(-length // _BLOCK) for length in lengths]
        table = torch.zeros(batch, max(columns), dtype=torch.int64, device=device)
        order = torch.randperm(sum(columns), generator=torch.Generator().manual_seed(0)) + 1
        begin = 0
        for row, count in enumerate(columns):
            table[row, :count] = order[begin : begin + count].to(device)
            begin += count
        last = torch.tensor(lengths, device=device)[:, None] - 1
        positions = last - torch.arange(query_len - 1, -1, -1, device=device)
        return {
            "q": _numbers(device, dtype, batch, query_len, heads, width, scale=0.3),
            "latent_cache": _numbers(device, dtype, sum(columns) + 1, _BLOCK, width),
            "metadata": DecodeMetadata(table, positions, _BLOCK),
            "kv_lora_rank": rank,
            "softmax_scale": 192**-0.5,
        }

    rows = batch * query_len * heads
    keys = sum(lengths)
    return OpShape(
        op="mla_decode",
        preset=preset,
        name=name,
        build=build,
        num_bytes=2.0 * (keys * width + rows * (width + rank)),
        flops=2.0 * keys * query_len * heads * (width + rank),
    )


def _prefill(preset: str, name: str, start: int, tokens: int, heads: int) -> OpShape:
    rank, rope, nope, value = (512, 64, 128, 128) if preset != "small" else (32, 8, 16, 16)

    def build(device: torch.device, dtype: torch.dtype) -> Inputs:
        blocks = -(-(start + tokens) // _BLOCK)
        return {
            "q_nope": _numbers(device, dtype, tokens, heads, nope, scale=0.3),
            "q_pe": _numbers(device, dtype, tokens, heads, rope, scale=0.3),
            "latent_cache": _numbers(device, dtype, blocks + 1, _BLOCK, rank + rope),
            "metadata": PrefillMetadata(
                torch.arange(1, blocks + 1, device=device), start, tokens, _BLOCK
            ),
            "w_kc": _numbers(device, dtype, heads, nope, rank, scale=rank**-0.5),
            "w_vc": _numbers(device, dtype, heads, rank, value, scale=rank**-0.5),
            "softmax_scale": (nope + rope) ** -0.5,
        }

    pairs = tokens * start + tokens * (tokens + 1) / 2
    return OpShape(
        op="mla_prefill",
        preset=preset,
        name=name,
        build=build,
        num_bytes=2.0 * ((start + tokens) * (rank + rope) + tokens * heads * (nope + value)),
        flops=2.0 * pairs * heads * (nope + rope + value),
    )


def _append(preset: str, tokens: int, heads: int) -> OpShape:
    rank, rope = 512, 64

    def build(device: torch.device, dtype: torch.dtype) -> Inputs:
        blocks = -(-tokens // _BLOCK) + 1
        return {
            "q_pe": _numbers(device, dtype, tokens, heads, rope),
            "k_pe": _numbers(device, dtype, tokens, rope),
            "latent": _numbers(device, dtype, tokens, rank),
            "rope_rows": _numbers(device, torch.float32, tokens, rope // 2, 2),
            "slot_mapping": torch.arange(tokens, device=device) + _BLOCK,
            "latent_cache": _numbers(device, dtype, blocks, _BLOCK, rank + rope),
            "has_padding": False,
        }

    moved = 2.0 * tokens * (2 * heads * rope + 2 * (rank + rope)) + 4.0 * tokens * rope
    return OpShape(
        op="mla_rope_append",
        preset=preset,
        name=f"{tokens}_rows",
        build=build,
        num_bytes=moved,
    )


def _draft_input(preset: str, rows: int, hidden: int) -> OpShape:
    def build(device: torch.device, dtype: torch.dtype) -> Inputs:
        return {
            "token_ids": torch.arange(rows, device=device) * 7 % 1024,
            "embedding": _numbers(device, dtype, 1024, hidden),
            "embed_weight": _numbers(device, dtype, hidden),
            "hidden": _numbers(device, dtype, rows, hidden),
            "hidden_weight": _numbers(device, dtype, hidden),
            "eps": 1e-6,
        }

    return OpShape(
        op="draft_input_norm",
        preset=preset,
        name=f"{rows}x{hidden}",
        build=build,
        num_bytes=2.0 * hidden * (4 * rows + 2),
    )


def _norm_pair(preset: str, rows: int, first: int, second: int) -> OpShape:
    def build(device: torch.device, dtype: torch.dtype) -> Inputs:
        fused = _numbers(device, dtype, rows, first + second)
        return {
            "first": fused[:, :first],
            "second": fused[:, first:],
            "first_weight": _numbers(device, dtype, first),
            "second_weight": _numbers(device, dtype, second),
            "eps": 1e-6,
        }

    return OpShape(
        op="latent_norm_pair",
        preset=preset,
        name=f"{rows}x{first}_{second}",
        build=build,
        num_bytes=2.0 * (first + second) * (2 * rows + 1),
    )


def _packed(device: torch.device, rows: int, columns: int) -> Inputs:
    weight = _numbers(device, torch.bfloat16, rows, columns, scale=columns**-0.5)
    scale = global_scale_of(weight.abs().amax().float())
    data, block_scale = nvfp4_quantize(weight, scale)
    return {"data": data, "block_scale": block_scale, "global_scale": scale}


def _linear(preset: str, name: str, rows: int, out: int, columns: int) -> OpShape:
    def build(device: torch.device, dtype: torch.dtype) -> Inputs:
        return {"x": _numbers(device, dtype, rows, columns), **_packed(device, out, columns)}

    return OpShape(
        op="nvfp4_linear",
        preset=preset,
        name=f"{name}_{rows}x{out}x{columns}",
        build=build,
        num_bytes=_NVFP4_BYTES * out * columns + 2.0 * rows * (out + columns),
        flops=2.0 * rows * out * columns,
    )


def _quantize(preset: str, rows: int, columns: int) -> OpShape:
    def build(device: torch.device, dtype: torch.dtype) -> Inputs:
        x = _numbers(device, dtype, rows, columns)
        scale = global_scale_of(x.abs().amax().float())
        return {"x": x, "global_scale": scale, "activation": True}

    return OpShape(
        op="nvfp4_quantize",
        preset=preset,
        name=f"{rows}x{columns}",
        build=build,
        num_bytes=(2.0 + _NVFP4_BYTES) * rows * columns,
    )


def _head(preset: str, rows: int, vocab: int, hidden: int, is_packed: bool) -> OpShape:
    def build(device: torch.device, dtype: torch.dtype) -> Inputs:
        inputs: Inputs = {"hidden": _numbers(device, dtype, rows, hidden), "d2t": None}
        if not is_packed:
            return {**inputs, "weight": _numbers(device, dtype, vocab, hidden)}
        packed = _packed(device, vocab, hidden)
        return {**inputs, "weight": packed.pop("data"), **packed}

    return OpShape(
        op="lm_head_argmax",
        preset=preset,
        name=f"{'nvfp4' if is_packed else 'float'}_{rows}x{vocab}x{hidden}",
        build=build,
        num_bytes=(_NVFP4_BYTES if is_packed else 2.0) * vocab * hidden + 2.0 * rows * hidden,
        flops=2.0 * rows * vocab * hidden,
    )


def _route(preset: str, tokens: int, experts: int, groups: int, topk_group: int) -> OpShape:
    def build(device: torch.device, dtype: torch.dtype) -> Inputs:
        return {
            "logits": _numbers(device, torch.float32, tokens, experts),
            "bias": _numbers(device, torch.float32, experts, scale=0.1),
            "num_groups": groups,
            "topk_group": topk_group,
            "top_k": 8,
            "norm_topk_prob": True,
            "routed_scaling_factor": 2.5,
        }

    return OpShape(
        op="moe_route",
        preset=preset,
        name=f"{tokens}x{experts}",
        build=build,
        num_bytes=4.0 * tokens * experts + 12.0 * tokens * 8,
    )


def _experts(
    preset: str, tokens: int, experts: int, hidden: int, inter: int, top_k: int = 8
) -> OpShape:
    def build(device: torch.device, dtype: torch.dtype) -> Inputs:
        chances = _numbers(device, torch.float32, tokens, experts)
        return {
            "x": _numbers(device, dtype, tokens, hidden),
            "w_gate_up": _numbers(device, dtype, experts, 2 * inter, hidden, scale=hidden**-0.5),
            "w_down": _numbers(device, dtype, experts, hidden, inter, scale=inter**-0.5),
            "weights": torch.full((tokens, top_k), 1.0 / top_k, device=device),
            "expert_ids": chances.topk(top_k).indices,
        }

    used = experts * (1.0 - (1.0 - top_k / experts) ** tokens)  # expected, for random routing
    return OpShape(
        op="moe_experts",
        preset=preset,
        name=f"{tokens}_tokens_{experts}_experts",
        build=build,
        num_bytes=2.0 * (used * 3 * inter * hidden + 2 * tokens * hidden),
        flops=6.0 * tokens * top_k * inter * hidden,
    )


def _sample(preset: str, rows: int, vocab: int) -> OpShape:
    def build(device: torch.device, dtype: torch.dtype) -> Inputs:
        generator = torch.Generator().manual_seed(1)
        uniforms = torch.rand(rows, generator=generator, dtype=torch.float64)
        return {
            "logits": _numbers(device, torch.float32, rows, vocab, scale=3.0),
            "rows": SamplingRows(temperature=torch.full((rows,), 0.7, device=device)),
            "uniforms": uniforms.to(device),
        }

    return OpShape(
        op="sample",
        preset=preset,
        name=f"{rows}x{vocab}",
        build=build,
        num_bytes=4.0 * rows * vocab,
    )


def _verify(preset: str, batch: int, query_len: int) -> OpShape:
    def build(device: torch.device, dtype: torch.dtype) -> Inputs:
        sampled = torch.arange(batch * query_len, device=device).view(batch, query_len) % 3
        return {
            "sampled": sampled,
            "drafts": sampled[:, :-1].contiguous(),
            "num_drafts": torch.full((batch,), query_len - 1, device=device),
        }

    return OpShape(
        op="verify_greedy",
        preset=preset,
        name=f"{batch}x{query_len}",
        build=build,
        num_bytes=16.0 * batch * query_len,
    )


def _model(
    preset: str, heads: int, groups: int, topk_group: int, experts: int
) -> Iterator[OpShape]:
    """Shapes of a Kimi-K2.5 or DeepSeek-V3 rank of eight and of its draft."""
    for batch, query_len, length in ((1, 1, 4096), (1, 4, 4096), (64, 1, 8192), (64, 4, 8192)):
        yield _decode(preset, f"b{batch}_q{query_len}_{length}", [length] * batch, query_len, heads)
    yield _decode(preset, "all_heads_b16_q4_16384", [16384] * 16, 4, 8 * heads)
    yield _prefill(preset, "2048_after_6144", 6144, 2048, heads)
    for rows in (4, 256):
        yield _append(preset, rows, heads)
        yield _draft_input(preset, rows, 7168)
        yield _norm_pair(preset, rows, 1536, 512)
        yield _quantize(preset, rows, 7168)
        yield _route(preset, rows, experts, groups, topk_group)
        yield _verify(preset, rows, 4)
    for rows in (1, 8, 64, 256):
        for name, out, columns in _DRAFT_LAYERS:
            yield _linear(preset, name, rows, out, columns)
    for rows in (1, 16, 64):
        for is_packed in (False, True):
            yield _head(preset, rows, 163840 if preset == "kimi" else 129280, 7168, is_packed)
        yield _experts(preset, rows, experts // 8, 7168, 2048)
    for rows in (4, 64):
        yield _sample(preset, rows, 163840 if preset == "kimi" else 129280)


def shapes() -> tuple[OpShape, ...]:
    """Returns every shape of every op."""
    return (
        _decode("small", "b2_q4", [50, 130], 4, 4, rank=64),
        _prefill("small", "40_after_30", 30, 40, 4),
        _append("small", 64, 8),
        _draft_input("small", 64, 256),
        _norm_pair("small", 64, 96, 64),
        _linear("small", "layer", 4, 256, 256),
        _quantize("small", 64, 256),
        _head("small", 4, 2048, 256, False),
        _head("small", 4, 2048, 256, True),
        _route("small", 64, 32, 4, 2),
        _experts("small", 8, 16, 128, 64, top_k=2),
        _sample("small", 4, 4096),
        _verify("small", 64, 4),
        *_model("kimi", 8, 1, 1, 384),
        *_model("deepseek", 16, 8, 4, 256),
        _decode("thunder", "b4_q4_unbalanced", [4641, 45118, 1730, 1696], 4, 16),
    )


__all__ = ["PRESETS", "OpShape", "shapes"]
