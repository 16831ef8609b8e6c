# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""The doubles' own arithmetic, against references that share no code with it."""

from __future__ import annotations

import importlib
import json
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tensorrt_llm_ext.ops.nvfp4 import nvfp4_linear, nvfp4_quantize
from tests.trtllm.host import ERAS, environment, use_host
from tests.trtllm.serving import environ

NOPE, ROPE, VALUE, RANK, Q_RANK, HEADS, HIDDEN = 32, 64, 32, 512, 96, 4, 256
THETA, POSITIONS, EPS = 50000.0, 512, 1e-6
YARN = {
    "type": "yarn",
    "factor": 8.0,
    "original_max_position_embeddings": 64,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 3e-2}


@pytest.fixture
def double() -> Iterator[Any]:
    """The modules of the newest double."""
    with use_host("e3"):
        importlib.import_module("tensorrt_llm._torch.modules.linear")
        names = ("args", "attention", "basics", "linear", "rope")
        yield SimpleNamespace(**{n: importlib.import_module(f"trtllm_double.{n}") for n in names})


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("shape", [(1, 1), (128, 4), (130, 5), (300, 44)])
def test_swizzled_scales(double: Any, shape: tuple[int, int]) -> None:
    """Tiles of 128 x 4, by the formula of the offset of one byte."""
    rows, columns = shape
    scales = torch.randint(0, 256, shape, dtype=torch.uint8)
    flat = torch.ops.trtllm.block_scale_interleave(scales)
    wide = -(-columns // 4)
    assert flat.numel() == -(-rows // 128) * wide * 512
    row, column = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    offsets = (row // 128 * wide + column // 4) * 512
    offsets += row % 32 * 16 + row % 128 // 32 * 4 + column % 4
    assert torch.equal(flat[offsets], scales)
    padded = flat.view(-1, wide * 4)
    back = torch.ops.trtllm.block_scale_interleave_reverse(padded)
    assert torch.equal(back[:rows, :columns], scales)


def activations(kind: str) -> torch.Tensor:
    if kind == "ties":  # between neighbours, in blocks whose scale is exact
        row = [
            6,
            0.25,
            0.75,
            1.25,
            1.75,
            2.5,
            3.5,
            5,
            -0.25,
            -0.75,
            -1.25,
            -1.75,
            -2.5,
            -3.5,
            -5,
            0,
        ]
        return torch.tensor(row).repeat(8, 4)
    return torch.randn(64, 256).to(torch.bfloat16 if kind == "bf16" else torch.float32)


@pytest.mark.parametrize("kind", ["float32", "bf16", "ties"])
def test_quantized_activations(double: Any, kind: str) -> None:
    x = activations(kind)
    scale = torch.tensor(1.0) if kind == "ties" else x.abs().max().float() / (6 * 448)
    data, scales = nvfp4_quantize(x, scale, activation=True)
    packed, flat = torch.ops.trtllm.fp4_quantize(x, scale.reciprocal(), 16)
    assert torch.equal(packed, data)
    swizzled = double.basics.swizzle(scales.view(torch.uint8))
    assert torch.equal(flat, swizzled)
    plain = torch.ops.trtllm.fp4_quantize(x, scale.reciprocal(), 16, False, False)[1]
    assert torch.equal(plain, scales.view(torch.uint8).flatten())


def packed_parts(rows: int, columns: int) -> dict[str, torch.Tensor]:
    weight = torch.randn(rows, columns) * 0.05
    scale = weight.abs().max() / (6 * 448)
    data, scales = nvfp4_quantize(weight, scale)
    return {
        "weight": data,
        "weight_scale": scales,
        "weight_scale_2": scale,
        "input_scale": torch.tensor(0.002),
    }


def nvfp4_config(double: Any) -> Any:
    algo = double.basics.QuantAlgo.NVFP4
    return double.basics.QuantConfig(quant_algo=algo, group_size=16)


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_nvfp4_linear(double: Any, dtype: torch.dtype) -> None:
    parts, x = packed_parts(192, 256), torch.randn(33, 256).to(dtype)
    made = double.linear.Linear(
        256, 192, bias=False, dtype=dtype, quant_config=nvfp4_config(double)
    )
    made.load_weights([parts])
    wanted = nvfp4_linear(
        x, parts["weight"], parts["weight_scale"], parts["weight_scale_2"], parts["input_scale"]
    )
    tolerance = {torch.float64: 1e-9, torch.float32: 1e-6, torch.bfloat16: 1e-2}[dtype]
    assert (made(x) - wanted).abs().max() <= tolerance * wanted.abs().max()
    with environ(TRTLLM_DOUBLE_SM="90"), pytest.raises(RuntimeError, match="Arch unsupported"):
        made(x)


@pytest.mark.parametrize("name", ["weight_scale_2", "input_scale"])
def test_fused_parts_share_their_scales(double: Any, name: str) -> None:
    linear = double.linear
    fused = linear.WeightsLoadingConfig(weight_mode=linear.WeightMode.FUSED_GATE_UP_LINEAR)
    options = {"quant_config": nvfp4_config(double), "weights_loading_config": fused}
    made = linear.Linear(64, 64, bias=False, dtype=torch.float32, **options)
    gate, up = packed_parts(32, 64), packed_parts(32, 64)
    up |= {n: gate[n] for n in ("weight_scale_2", "input_scale") if n != name}
    up[name] = 2 * gate[name]
    with pytest.raises(AssertionError, match=f"{name} differs"):
        made.load_weights([gate, up])


class Attention:
    """The double's MLA with weights drawn by chance, and the sequences that it reads in pieces."""

    def __init__(self, double: Any, dtype: torch.dtype, *, is_yarn: bool, is_lite: bool) -> None:
        self.double, self.dtype, self.is_yarn, self.is_lite = double, dtype, is_yarn, is_lite
        attention = double.attention
        pretrained = SimpleNamespace(
            rms_norm_eps=EPS,
            torch_dtype=dtype,
            qk_rope_head_dim=ROPE,
            rope_theta=THETA,
            max_position_embeddings=POSITIONS,
            rope_scaling=YARN if is_yarn else None,
        )
        self.config = double.args.ModelConfig(pretrained_config=pretrained)
        self.mla = attention.MLA(
            hidden_size=HIDDEN,
            num_attention_heads=HEADS,
            num_key_value_heads=1,
            qk_nope_head_dim=NOPE,
            qk_rope_head_dim=ROPE,
            v_head_dim=VALUE,
            q_lora_rank=None if is_lite else Q_RANK,
            kv_lora_rank=RANK,
            predicted_tokens_per_seq=4,
            max_position_embeddings=POSITIONS,
            bias=False,
            pos_embd_params=double.rope.PositionalEmbeddingParams(
                type=double.rope.PositionEmbeddingType.yarn,
                rope=double.rope.RopeParams.from_config(pretrained),
                is_neox=False,
            ),
            layer_idx=0,
            dtype=dtype,
            config=self.config,
        )
        for name, value in self.mla.named_parameters():
            drawn = torch.randn(value.shape, dtype=torch.float64) * 0.06 + ("norm" in name)
            value.data.copy_(drawn)
        kv_b = self.mla.kv_b_proj.weight.data.view(HEADS, NOPE + VALUE, RANK)
        self.mla.k_b_proj_trans.data.copy_(kv_b[:, :NOPE].transpose(1, 2))
        self.mla.v_b_proj.data.copy_(kv_b[:, NOPE:])
        self.sequences = [torch.randn(count, HIDDEN, dtype=dtype) for count in (70, 41)]
        self.manager = attention.KVCacheManager(
            num_layers=1, head_dim=RANK + ROPE, num_blocks=16, tokens_per_block=32, dtype=dtype
        )

    def run(self, ids: list[int], num_contexts: int, spans: list[tuple[int, int]]) -> torch.Tensor:
        """One pass over some rows of some sequences."""
        metadata = self.double.attention.TrtllmAttentionMetadata(
            kv_cache_manager=self.manager, request_ids=ids, num_contexts=num_contexts
        )
        metadata.seq_lens = torch.tensor([end - begin for begin, end in spans], dtype=torch.int32)
        cached = [begin for begin, _ in spans]
        metadata.kv_cache_params = self.double.basics.KvCacheParams(
            num_cached_tokens_per_seq=cached
        )
        metadata.prepare()
        for index, (_, end) in zip(ids, spans, strict=True):
            self.manager.reserve(index, end)
        return self.mla(None, self.rows(self.sequences, ids, spans), metadata)

    @staticmethod
    def rows(parts: list[torch.Tensor], ids: list[int], spans: list[tuple[int, int]]) -> Any:
        return torch.cat([parts[i][a:b] for i, (a, b) in zip(ids, spans, strict=True)])

    def wanted(self, x: torch.Tensor) -> torch.Tensor:
        """The whole sequence at once, in float64: keys and values expanded, rope as complex."""
        x, count = x.double(), x.shape[0]

        def times(x: torch.Tensor, linear: Any) -> torch.Tensor:
            return x @ linear.weight.double().T

        def normed(x: torch.Tensor, norm: Any) -> torch.Tensor:
            return x * (x.square().mean(-1, keepdim=True) + EPS).rsqrt() * norm.weight.double()

        first = times(x, self.mla.kv_a_proj_with_mqa)
        if self.is_lite:
            queries, (latent, k_pe) = x, first.split([RANK, ROPE], -1)
        else:
            queries, latent, k_pe = first.split([Q_RANK, RANK, ROPE], -1)
            queries = normed(queries, self.mla.q_a_layernorm)
        queries = times(queries, self.mla.q_b_proj).view(count, HEADS, NOPE + ROPE)
        latent = normed(latent, self.mla.kv_a_layernorm)
        expanded = times(latent, self.mla.kv_b_proj).view(count, HEADS, NOPE + VALUE)
        turns = self.turns()[:count]
        k_pe = turned(k_pe, turns).unsqueeze(1).expand(-1, HEADS, -1)
        keys = torch.cat((expanded[..., :NOPE], k_pe), -1)
        q_pe = turned(queries[..., NOPE:], turns.unsqueeze(1))
        queries = torch.cat((queries[..., :NOPE], q_pe), -1)
        magnitude = 0.1 * math.log(8.0) + 1.0 if self.is_yarn else 1.0
        scores = torch.einsum("qhd,khd->hqk", queries, keys) * magnitude**2
        scores = scores / math.sqrt(NOPE + ROPE)
        hidden = torch.ones(count, count, dtype=torch.bool).triu(1)
        weights = scores.masked_fill(hidden, -math.inf).softmax(-1)
        attended = torch.einsum("hqk,khv->qhv", weights, expanded[..., NOPE:]).flatten(1)
        return times(attended, self.mla.o_proj)

    def turns(self) -> torch.Tensor:
        """[positions, ROPE / 2] complex: YaRN as its paper writes it; mscale cancels."""
        index = torch.arange(0, ROPE, 2, dtype=torch.float64)
        speeds = THETA ** (-index / ROPE)
        if self.is_yarn:

            def place(turns: float) -> float:
                return ROPE * math.log(64 / (turns * 2 * math.pi)) / (2 * math.log(THETA))

            low, high = max(math.floor(place(32)), 0), math.ceil(place(1))
            share = ((index / 2 - low) / (high - low)).clamp(0, 1)  # of interpolation
            speeds = speeds * (1 - share) + speeds / 8.0 * share
        angles = torch.arange(POSITIONS, dtype=torch.float64)[:, None] * speeds
        return torch.polar(torch.ones_like(angles), angles)


def turned(x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * turns).flatten(-2)


# Sequences, how many are contexts, and rows: chunks, a batch of both kinds, a rewind at the end.
PASSES = [
    ([0], 1, [(0, 40)]),
    ([1, 0], 1, [(0, 37), (40, 44)]),
    ([0, 1], 2, [(44, 66), (37, 38)]),
    ([0, 1], 0, [(66, 70), (38, 41)]),
    ([0, 1], 0, [(67, 70), (38, 41)]),
]


@pytest.mark.parametrize(
    ("dtype", "is_yarn", "is_lite"),
    [
        *((dtype, is_yarn, False) for dtype in TOLERANCES for is_yarn in (False, True)),
        (torch.float64, False, True),
    ],
)
def test_mla(double: Any, dtype: torch.dtype, is_yarn: bool, is_lite: bool) -> None:
    attention = Attention(double, dtype, is_yarn=is_yarn, is_lite=is_lite)
    whole = [attention.wanted(x) for x in attention.sequences]
    for ids, num_contexts, spans in PASSES:
        wanted = attention.rows(whole, ids, spans)
        out = attention.run(ids, num_contexts, spans).double()
        assert (out - wanted).abs().max() <= TOLERANCES[dtype] * wanted.abs().max()
    assert attention.config.extra_attrs["mla_layers"]["0"]() is attention.mla


def test_keys_that_nobody_wrote_are_seen(double: Any) -> None:
    """Pages are NaN when they are handed out, so that a pass which skips rows is noticed."""
    attention = Attention(double, torch.float64, is_yarn=False, is_lite=False)
    assert attention.run([0], 1, [(3, 9)]).isnan().any()


_TWO_RANKS = """
import json, sys
import torch, torch.distributed as dist
import tensorrt_llm._torch.modules.linear
from trtllm_double import args, basics, linear
from tests.trtllm.host.test_low_level import packed_parts

rank, store = int(sys.argv[1]), sys.argv[2]
torch.manual_seed(0)
torch.set_num_threads(1)

def parts(rows, columns, kind):
    if kind == "nvfp4":
        return packed_parts(rows, columns) | {"weight_scale_2": torch.tensor(1e-4)}
    weight = torch.randn(rows, columns) * 0.05
    if kind == "bf16":
        return {"weight": weight}
    fp8 = (weight / 0.01).to(torch.float8_e4m3fn)
    return {"weight": fp8, "weight_scale": torch.tensor(0.01), "input_scale": torch.tensor(0.02)}

KINDS = {"bf16": None, "fp8": basics.QuantAlgo.FP8, "nvfp4": basics.QuantAlgo.NVFP4}
shapes = ((256, 128), (256, 128), (128, 256))
data = {kind: [parts(*shape, kind) for shape in shapes] for kind in KINDS}
table, x = torch.randn(101, 128), torch.randn(9, 128).double()
split = {"dtype": torch.float64, "tensor_parallel_mode": linear.TensorParallelMode.COLUMN}

def build(mapping):
    out = {}
    for kind, algo in KINDS.items():
        config = args.ModelConfig(mapping=mapping, quant_config=basics.QuantConfig(quant_algo=algo))
        mlp = linear.GatedMLP(
            hidden_size=128, intermediate_size=256, bias=False, dtype=torch.float64, config=config
        )
        mlp.gate_up_proj.load_weights(data[kind][:2])
        mlp.down_proj.load_weights(data[kind][2:])
        out[kind] = mlp(x)
    embedding = linear.Embedding(101, 128, mapping=mapping, **split)
    head = linear.LMHead(101, 128, mapping=mapping, gather_output=True, **split)
    for module in (embedding, head):
        module.load_weights([{"weight": table}])
    return out | {"embedding": embedding(torch.arange(101)), "head": head(x)}

one = build(basics.Mapping(1, 0, 1))
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
two = build(basics.Mapping(2, rank, 2))
errors = {n: float((one[n] - two[n]).abs().max() / one[n].abs().max()) for n in one}
print("ERRORS" + json.dumps(errors))
dist.destroy_process_group()
"""


def test_two_ranks_compute_what_one_does(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _TWO_RANKS]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    ranks = [
        subprocess.Popen(
            [*command, str(r), str(tmp_path / "store")], env=environment("e3"), **options
        )
        for r in (0, 1)
    ]
    for process in ranks:
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err[-2000:]
        line = next(x for x in out.splitlines() if x.startswith("ERRORS"))
        errors = json.loads(line.removeprefix("ERRORS"))
        assert sorted(errors) == ["bf16", "embedding", "fp8", "head", "nvfp4"]
        assert max(errors.values()) < 1e-12, errors


@pytest.mark.parametrize("era", ERAS)
def test_exclude_patterns(era: str) -> None:
    """E1 matches whole names; later versions ancestors and expressions; E3 an open end."""
    with use_host(era):
        place = "tensorrt_llm.models.modeling_utils"
        config = importlib.import_module(place).QuantConfig
        found = {
            pattern: config(exclude_modules=[pattern]).is_module_excluded_from_quantization(
                "model.layers.3.mlp"
            )
            for pattern in ("*.mlp", "model.layers.3", r"re:model\.layers\.\d\.mlp", "*.mlp.*")
        }
    later, newest = era != "e1", era == "e3"
    assert list(found.values()) == [True, later, later, newest]
    assert hasattr(config, "to_dict") == (era == "e1")
