# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Writes target and draft in NVFP4: the target's routed experts, all large products of the draft.

Needs NVIDIA ModelOpt (`pip install "nvidia-modelopt[hf]>=0.45,<0.48"`), best in an environment of
its own, and no GPU. The target first, because the draft is calibrated on what the quantized target
writes, which is what it will be served beside:

    python quantize.py --target-out target-nvfp4
    python quantize.py --draft-out draft-nvfp4 --target target-nvfp4

The second line does what this does, on problems of the training split:

    trtllm-ext quantize draft draft-nvfp4 --recipe nvfp4_layer_fc_head --target target-nvfp4 \
        --prompts-file prompts.jsonl
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from export import HERE, copy_tokenizer, write_folder
from hf_names import WRAPPER_PREFIX
from problems import format_prompt, format_text, generate
from safetensors.torch import load_file
from unwrap import unwrap

from tensorrt_llm_ext.quantizing.recipes import find_recipe

SEED = 77  # of the problems; a split that no measurement uses
TARGET_RECIPE = "kimi_k25/ptq/nvfp4_experts_only"
DRAFT_RECIPE = "eagle3_deepseek_mla/ptq/nvfp4_layer_fc_head"
_VISION = ("vision_tower", "mm_projector")


def quantize_target(folder: Path, out: Path, count: int) -> None:
    """Quantizes the language model with ModelOpt and puts the wrapper around it again.

    Args:
        folder: Written by `export.py`.
        out: Created, or its files replaced.
        count: Texts to calibrate on.
    """
    with tempfile.TemporaryDirectory() as scratch:
        plain, packed = Path(scratch) / "plain", Path(scratch) / "packed"
        unwrap(folder, plain)
        _run_modelopt(plain, packed, count)
        tensors = {
            f"{WRAPPER_PREFIX}{name}": tensor
            for name, tensor in load_file(packed / "model.safetensors").items()
        }
        metadata = _read(packed / "hf_quant_config.json")
        section = _read(packed / "config.json")["quantization_config"]
    stored = load_file(folder / "model.safetensors")
    tensors |= {name: tensor for name, tensor in stored.items() if name.startswith(_VISION)}
    for name, tensor in stored.items():
        if name.endswith("e_score_correction_bias"):  # must not be rounded
            tensors[name] = tensor
    exclude = _wrapped(metadata["quantization"]["exclude_modules"])
    metadata["quantization"]["exclude_modules"] = exclude
    section["ignore"] = exclude
    config = _read(folder / "config.json") | {"quantization_config": section}
    documents = {"config.json": config, "hf_quant_config.json": metadata}
    documents |= {
        n: _read(folder / n) for n in ("generation_config.json", "preprocessor_config.json")
    }
    write_folder(out, tensors, documents)
    copy_tokenizer(out)


def _run_modelopt(plain: Path, packed: Path, count: int) -> None:
    import modelopt.torch.quantization as mtq
    from modelopt.recipe import load_recipe
    from modelopt.torch.export import export_hf_checkpoint
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(plain, dtype=torch.bfloat16).eval()
    tokenizer = AutoTokenizer.from_pretrained(plain)
    texts = [format_text(problem) for problem in generate("train", SEED, count)]

    def calibrate(net: torch.nn.Module) -> None:
        with torch.no_grad():
            for text in texts:
                net(torch.tensor([tokenizer.encode(text)]))

    recipe = load_recipe(str(find_recipe(TARGET_RECIPE)))
    mtq.quantize(model, recipe.quantize.model_dump(exclude_unset=True), calibrate)
    export_hf_checkpoint(model, dtype=torch.bfloat16, export_dir=packed)


def _wrapped(patterns: list[str]) -> list[str]:
    """Exclude patterns below the wrapper's prefix, and what the wrapper adds."""
    return [f"{WRAPPER_PREFIX}{pattern}" for pattern in patterns] + [f"{n}*" for n in _VISION]


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def quantize_draft(folder: Path, target: Path, out: Path, count: int, recipe: str) -> None:
    """Quantizes the draft on what the target answers to problems of the training split.

    Args:
        folder: The float draft.
        target: The target that it is to be served beside.
        out: Replaced if it is a checkpoint.
        count: Prompts.
        recipe: Name of the recipe.
    """
    from rich.progress import Progress

    from tensorrt_llm_ext.cli.quantize_report import show_report
    from tensorrt_llm_ext.quantizing.job import QuantizeOptions
    from tensorrt_llm_ext.quantizing.runner import quantize_draft as run

    prompts = [format_prompt(problem) for problem in generate("train", SEED, count)]
    with Progress(transient=True) as bar:
        task = bar.add_task("quantizing")

        def show(text: str, done: int, total: int) -> None:
            bar.update(task, description=text, completed=done, total=total)

        report = run(
            folder,
            out,
            recipe=recipe,
            target=target,
            prompts=prompts,
            options=QuantizeOptions(max_tokens=96, overwrite=True),
            progress=show,
        )
    show_report(report)


def size_of(folder: Path) -> float:
    """Size of a folder in MiB."""
    return sum(file.stat().st_size for file in folder.iterdir()) / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--target-out", type=Path, help="write the quantized target")
    which.add_argument("--draft-out", type=Path, help="write the quantized draft")
    parser.add_argument("--target", type=Path, default=HERE / "target")
    parser.add_argument("--draft", type=Path, default=HERE / "draft")
    parser.add_argument("--count", type=int, default=128, help="problems to calibrate on")
    parser.add_argument("--recipe", default=DRAFT_RECIPE, help="of the draft (%(default)s)")
    options = parser.parse_args()
    out = options.target_out or options.draft_out
    if options.target_out is not None:
        quantize_target(options.target, out, options.count)
    else:
        quantize_draft(options.draft, options.target, out, options.count, options.recipe)
    print(f"{out}: {size_of(out):.1f} MiB")


if __name__ == "__main__":
    main()
