# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""What quantizing a Kimi-size draft saves: size, load time, memory, and bytes per draft step.

Makes a synthetic draft of the shapes of the Kimi-K2.x drafts (1.84 billion weights, normal
numbers), module by module, stores it in every tier of `quantization.policy.TIERS`, and loads each
in a process of its own, whose peak of memory it reports. One draft step runs in each process.
Then the float draft and its dequantized copy take turns in one process, and the ratio of their
step times is printed: both are plain matrices.

    python benchmarks/quantized_draft.py [--size kimi|small] [--tiers T ...] [--json] [--folder DIR]

It needs 8 GB of disk in DIR (a temporary folder by default), and a quarter of an hour.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import save_file

from tensorrt_llm_ext.checkpoints.loader import load_draft, read_draft_config
from tensorrt_llm_ext.configs.draft_tensors import expected_shapes
from tensorrt_llm_ext.configs.hf_draft import draft_config_from_hf
from tensorrt_llm_ext.configs.hf_target import target_config_from_hf
from tensorrt_llm_ext.configs.target import TargetConfig
from tensorrt_llm_ext.devices import probe
from tensorrt_llm_ext.models.blocks import TorchBlocks
from tensorrt_llm_ext.models.eagle3 import Eagle3Draft
from tensorrt_llm_ext.models.interfaces import ForwardContext
from tensorrt_llm_ext.ops.attention.metadata import DecodeMetadata, MLAMetadata
from tensorrt_llm_ext.ops.nvfp4.format import global_scale_of
from tensorrt_llm_ext.planning.budget import WEIGHT_BITS, step_budget
from tensorrt_llm_ext.quantization.linear import QuantLinear
from tensorrt_llm_ext.quantization.policy import TIERS, tier_formats
from tensorrt_llm_ext.quantization.siblings import quantize_siblings, sibling_groups
from tensorrt_llm_ext.quantization.tensors import fp8_scale_of, quantize_fp8

GIB = 2.0**30
LIMIT_GIB = 16.0
FLOAT = "bf16"
FULL = "layer_fc_head"
TRIALS = 5
PACKED_TRIALS = 1  # a packed step of a Kimi-size draft takes many seconds on two cores

_ATTENTION = {
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 50000.0,
    "rope_scaling": None,
    "max_position_embeddings": 4096,
    "hidden_act": "silu",
    "torch_dtype": "bfloat16",
}
SIZES: Mapping[str, Mapping[str, int]] = {
    "kimi": {"hidden_size": 7168, "intermediate_size": 18432, "vocab_size": 163840},
    "small": {
        "hidden_size": 256,
        "intermediate_size": 512,
        "vocab_size": 1024,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "q_lora_rank": 128,
    },
}


def target_config(size: str) -> TargetConfig:
    """The target that the draft belongs to; none of its weights exist but an empty embedding."""
    return target_config_from_hf(
        {
            **_ATTENTION,
            **SIZES[size],
            "architectures": ["DeepseekV3ForCausalLM"],
            "model_type": "deepseek_v3",
            "num_hidden_layers": 61,
            "bos_token_id": 0,
            "eos_token_id": 1,
        }
    )


def draft_json(size: str) -> dict[str, Any]:
    return {
        **_ATTENTION,
        **SIZES[size],
        "architectures": ["Eagle3DeepseekV2ForCausalLM"],
        "model_type": "deepseek_v3",
        "num_hidden_layers": 1,
        "draft_vocab_size": SIZES[size]["vocab_size"],
        "trtllm_ext_aux_boundaries": [2, 30, 58],
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 30, 58]},
    }


# Making the drafts -------------------------------------------------------------------------------


def make_modules(folder: Path, size: str) -> dict[str, dict[str, Path]]:
    """Writes every module in every format to a file of its own, one after the other.

    Returns:
        The file of each module by format.
    """
    target = target_config(size)
    config = draft_config_from_hf(
        draft_json(size),
        tensors=_few_shapes(size),
        num_target_layers=target.num_layers,
        target_hidden_size=target.hidden_size,
    )
    shapes = {
        name.removesuffix(".weight"): shape for name, shape in expected_shapes(config).items()
    }
    files: dict[str, dict[str, Path]] = {"float": {}, "nvfp4": {}, "fp8": {}}
    groups = sibling_groups(tuple(shapes))
    alone = [(m,) for m in shapes if not any(m in group for group in groups)]
    for number, group in enumerate((*groups, *alone)):
        generator = torch.Generator().manual_seed(number)
        weights = {}
        for module in group:
            weight = torch.empty(shapes[module], dtype=torch.bfloat16)
            is_norm = weight.dim() == 1
            weight.normal_(std=0.02, generator=generator)
            weights[module] = weight.add_(1.0) if is_norm else weight
        _store(folder, "float", {f"{m}.weight": w for m, w in weights.items()}, group, files)
        if len(shapes[group[0]]) != 2 or group[0].endswith("kv_b_proj"):
            continue
        nvfp4 = quantize_siblings(weights, input_scale=global_scale_of(torch.tensor(64.0)))
        stored = {n: t.clone() for m, w in nvfp4.items() for n, t in w.tensors(m).items()}
        _store(folder, "nvfp4", stored, group, files)
        scale = fp8_scale_of(torch.stack([w.abs().amax() for w in weights.values()]).amax())
        fp8 = {
            m: quantize_fp8(w, scale=scale, input_scale=torch.tensor(64.0 / 448))
            for m, w in weights.items()
        }
        stored = {n: t.clone() for m, w in fp8.items() for n, t in w.tensors(m).items()}
        _store(folder, "fp8", stored, group, files)
    return files


def _few_shapes(size: str) -> dict[str, tuple[int, ...]]:
    """The shapes that tell what kind of draft this is."""
    hidden = SIZES[size]["hidden_size"]
    q_rank = {**_ATTENTION, **SIZES[size]}["q_lora_rank"]
    return {
        "fc.weight": (hidden, 3 * hidden),
        "norm.weight": (hidden,),
        "lm_head.weight": (SIZES[size]["vocab_size"], hidden),
        "layers.0.self_attn.kv_a_proj_with_mqa.weight": (576, 2 * hidden),
        "layers.0.self_attn.q_a_proj.weight": (q_rank, 2 * hidden),
        "layers.0.hidden_norm.weight": (hidden,),
    }


def _store(
    folder: Path,
    kind: str,
    tensors: dict[str, torch.Tensor],
    group: tuple[str, ...],
    files: dict[str, dict[str, Path]],
) -> None:
    for module in group:
        path = folder / f"{kind}-{module}.safetensors"
        own = {n: t for n, t in tensors.items() if n.rpartition(".")[0] == module}
        save_file(own, path, {"format": "pt"})
        files[kind][module] = path


def make_tier(folder: Path, size: str, tier: str, files: dict[str, dict[str, Path]]) -> int:
    """Puts a draft together from links to the modules' files; returns its bytes."""
    folder.mkdir()
    formats: Mapping[str, str] = {} if tier == FLOAT else tier_formats(tier, files["nvfp4"])
    config = draft_json(size)
    if formats:
        algo = (
            "MIXED_PRECISION"
            if len(set(formats.values()) - {"float"}) > 1
            else ("NVFP4" if "nvfp4" in formats.values() else "FP8")
        )
        config["quantization_config"] = {"quant_method": "modelopt", "quant_algo": algo}
    (folder / "config.json").write_text(json.dumps(config))
    index: dict[str, str] = {}
    for module in files["float"]:
        kind = formats.get(module, "float")
        path = files[kind][module]
        os.link(path, folder / path.name)
        suffixes = ["weight"]
        if kind != "float":
            suffixes += ["weight_scale", "input_scale"]
            suffixes += ["weight_scale_2"] * (kind == "nvfp4")
        index |= {f"{module}.{suffix}": path.name for suffix in suffixes}
    document = {"metadata": {}, "weight_map": index}
    (folder / "model.safetensors.index.json").write_text(json.dumps(document))
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


# Loading them ------------------------------------------------------------------------------------


def peak_gib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GIB


def open_draft(folder: Path, size: str, mode: str) -> Eagle3Draft:
    config = target_config(size)
    blocks = TorchBlocks(torch.device("cpu"), torch.bfloat16)
    # What a draft borrows of its target. Rows that nobody reads take no memory.
    embedding = blocks.embedding("model.embed_tokens", config.vocab_size, config.hidden_size)
    target: Any = SimpleNamespace(config=config, embed_tokens=embedding, lm_head=None)
    return load_draft(folder, target, quant_mode=mode)


@torch.no_grad()
def step_of(draft: Eagle3Draft) -> Any:
    """Returns a function that runs one draft step of one row: body and head."""
    config = draft.config
    block = 64
    cache = torch.zeros(2, block, config.mla.latent_size, dtype=torch.bfloat16)
    layers = (cache,) * (61 + config.num_layers)
    captured = torch.randn(1, config.num_captured * config.target_hidden_size).bfloat16()
    hidden = draft.combine(captured)
    ids, positions = torch.tensor([3]), torch.tensor([7])

    @torch.no_grad()
    def run() -> None:
        decode = DecodeMetadata(
            block_table=torch.tensor([[1]]), positions=positions[None], block_size=block
        )
        metadata = MLAMetadata(slot_mapping=positions + block, decode=decode)
        state = draft(hidden, ids, positions, ForwardContext(layers, metadata))
        draft.propose(state)

    return run


def timed(run: Any) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def measure_one(folder: Path, size: str, mode: str) -> dict[str, Any]:
    before = peak_gib()
    begin = time.perf_counter()
    draft = open_draft(folder, size, mode)
    loaded = time.perf_counter() - begin
    after_load = peak_gib()
    layers = [m for m in draft.modules() if isinstance(m, QuantLinear)]
    run = step_of(draft)
    run()
    tensors = {id(t): t for t in (*draft.parameters(), *draft.buffers())}
    shared = {id(t) for t in draft.embed_tokens.parameters()} if draft.embed_tokens else set()
    return {
        "load_s": loaded,
        "step_s": statistics.median(timed(run) for _ in range(PACKED_TRIALS if layers else TRIALS)),
        "peak_before_gib": before,
        "peak_load_gib": after_load,
        "peak_gib": peak_gib(),
        "held_gib": sum(t.nbytes for key, t in tensors.items() if key not in shared) / GIB,
        "packed_bytes_per_weight": (
            sum(layer.nbytes for layer in layers)
            / sum(layer.in_features * layer.out_features for layer in layers)
            if layers
            else None
        ),
    }


def measure_ratio(folders: list[Path], size: str) -> dict[str, Any]:
    """Times the steps of a float draft and a dequantized one in turns."""
    steps = [step_of(open_draft(folder, size, "dequantized")) for folder in folders]
    for step in steps:
        step()
    pairs = []
    for trial in range(2 * TRIALS):
        order = (0, 1) if trial % 2 == 0 else (1, 0)  # neither always goes first
        times = {which: timed(steps[which]) for which in order}
        pairs.append((times[0], times[1]))
    return {
        "float_s": statistics.median(a for a, _ in pairs),
        "dequantized_s": statistics.median(b for _, b in pairs),
        "ratio": statistics.median(b / a for a, b in pairs),
        "peak_gib": peak_gib(),
    }


# Running it --------------------------------------------------------------------------------------


def child(*arguments: str) -> dict[str, Any]:
    """Runs this script in a process of its own."""
    command = [sys.executable, __file__, *arguments]
    result = subprocess.run(command, check=False, capture_output=True, text=True)
    if result.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{result.stderr}")
    document: dict[str, Any] = json.loads(result.stdout.strip().splitlines()[-1])
    return document


def run(folder: Path, size: str, tiers: Sequence[str], *, with_ratio: bool) -> dict[str, Any]:
    begin = time.perf_counter()
    made = child("--size", size, "--make", str(folder))
    made["seconds"] = time.perf_counter() - begin
    files = {k: {m: Path(p) for m, p in v.items()} for k, v in made.pop("files").items()}
    rows = []
    for tier in tiers:
        size_bytes = make_tier(folder / tier, size, tier, files)
        config = read_draft_config(folder / tier, target_config(size))
        formats = {} if tier == FLOAT else tier_formats(tier, files["nvfp4"])
        budget = step_budget(config, {m: WEIGHT_BITS[k] for m, k in formats.items()})
        row: dict[str, Any] = {
            "tier": tier,
            "gb": size_bytes / 1e9,
            "step_gb": budget.total_recurrent / 1e9,
            "fc_gb": budget.fc / 1e9,
        }
        for mode in ("dequantized",) if tier == FLOAT else ("packed", "dequantized"):
            row[mode] = child("--size", size, "--load", str(folder / tier), "--mode", mode)
        rows.append(row)
    result = {
        "size": size,
        "device": str(probe("cpu")),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "making": made,
        "rows": rows,
    }
    if with_ratio:
        result["ratio"] = child("--size", size, "--ratio", str(folder / FLOAT), str(folder / FULL))
    return result


def table(result: Mapping[str, Any]) -> str:
    """Returns the results as a Markdown table with a line below it."""
    lines = [
        "| tier | size | computed bytes per draft step | + fc per round | load, packed | peak | "
        "load, dequantized | peak |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in result["rows"]:
        cells = [row["tier"], f"{row['gb']:.2f} GB", f"{row['step_gb']:.2f} GB"]
        cells.append(f"{row['fc_gb']:.2f} GB")
        for mode in ("packed", "dequantized"):
            one = row.get(mode)
            cells += [f"{one['load_s']:.1f} s", f"{one['peak_gib']:.1f} GiB"] if one else ["-", "-"]
        lines.append(f"| {' | '.join(cells)} |")
    ratio, made = result.get("ratio"), result["making"]
    speed = (
        f" A step of the dequantized draft takes {ratio['ratio']:.2f} times as long as one of the "
        "float draft (one process, taking turns)."
        if ratio
        else ""
    )
    lines += [
        "",
        f"{result['device']}, {result['threads']} thread(s), bfloat16, torch {result['torch']}. "
        "Peak: resident memory of a process that loads the draft and runs a step, what the files "
        "map into it included. Quantizing all modules to NVFP4 and FP8, one after the other, took "
        f"{made['seconds']:.0f} s and {made['peak_gib']:.1f} GiB.{speed}",
    ]
    return "\n".join(lines)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=_Raw)
    parser.add_argument("--size", choices=SIZES, default="kimi")
    parser.add_argument("--tiers", nargs="+", choices=(FLOAT, *TIERS), default=(FLOAT, *TIERS))
    parser.add_argument("--no-ratio", action="store_true", help="do not compare step times")
    parser.add_argument("--json", action="store_true", help="print all numbers")
    parser.add_argument("--folder", type=Path, help="where to make the drafts; emptied afterwards")
    for internal in ("--make", "--load", "--mode"):
        parser.add_argument(internal, help=argparse.SUPPRESS)
    parser.add_argument("--ratio", nargs=2, type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


class _Raw(argparse.RawDescriptionHelpFormatter):
    """Keeps the lines of the module's docstring."""


def main() -> int:
    args = parse()
    if args.make:
        files = make_modules(Path(args.make), args.size)
        names = {k: {m: str(p) for m, p in v.items()} for k, v in files.items()}
        print(json.dumps({"files": names, "peak_gib": peak_gib()}))
        return 0
    if args.load:
        print(json.dumps(measure_one(Path(args.load), args.size, args.mode)))
        return 0
    if args.ratio:
        print(json.dumps(measure_ratio(args.ratio, args.size)))
        return 0
    folder = Path(tempfile.mkdtemp(prefix="quantized-draft-", dir=args.folder))
    try:
        with_ratio = not args.no_ratio and {FLOAT, FULL} <= set(args.tiers)
        result = run(folder, args.size, args.tiers, with_ratio=with_ratio)
    finally:
        shutil.rmtree(folder)
    print(json.dumps(result, indent=2) if args.json else table(result))
    peaks = [row[m]["peak_gib"] for row in result["rows"] for m in row if isinstance(row[m], dict)]
    return int(max(*peaks, result["making"]["peak_gib"]) > LIMIT_GIB)


if __name__ == "__main__":
    sys.exit(main())
