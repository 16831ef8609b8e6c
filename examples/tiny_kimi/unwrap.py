# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Writes the target without its Kimi-K2.5 wrapper, as `DeepseekV3ForCausalLM`.

For hosts that do not know the wrapper: the same language model, its names without the prefix, and
neither the vision tensors nor the files that describe them. What a quantized target excludes is
renamed as well.

    python examples/tiny_kimi/unwrap.py --out unwrapped
    python examples/tiny_kimi/unwrap.py --target target-nvfp4 --out unwrapped-nvfp4
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from export import HERE, copy_tokenizer, write_folder
from hf_names import WRAPPER_PREFIX
from safetensors.torch import load_file


def unwrap(folder: Path, out: Path) -> None:
    """Writes the text part of a wrapped target.

    Args:
        folder: Written by `export.py`.
        out: Another folder; created, or its files replaced.

    Raises:
        ValueError: If `folder` is not wrapped, or `out` is the same folder.
    """
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if "text_config" not in config:
        raise ValueError(
            f"{folder / 'config.json'} has no text_config: this folder is not wrapped. Its "
            "architecture is " + ", ".join(config.get("architectures", ["unknown"])) + "."
        )
    if out.resolve() == folder.resolve():
        raise ValueError(f"{out} is the wrapped folder itself. Choose another one to write.")
    stored = load_file(folder / "model.safetensors")
    text = {
        name.removeprefix(WRAPPER_PREFIX): tensor
        for name, tensor in stored.items()
        if name.startswith(WRAPPER_PREFIX)
    }
    generation = json.loads((folder / "generation_config.json").read_text(encoding="utf-8"))
    documents = {"config.json": config["text_config"], "generation_config.json": generation}
    write_folder(out, text, {**documents, **_quantization(folder, config)})
    copy_tokenizer(out)


def _quantization(folder: Path, config: dict[str, Any]) -> dict[str, Any]:
    """Returns the documents of a quantized target that name modules, renamed."""
    if "quantization_config" not in config:
        return {}
    inline = config["quantization_config"]
    inline = {**inline, "ignore": _unwrapped(inline["ignore"])}
    separate = json.loads((folder / "hf_quant_config.json").read_text(encoding="utf-8"))
    quantization = separate["quantization"]
    excluded = _unwrapped(quantization["exclude_modules"])
    return {
        "config.json": {**config["text_config"], "quantization_config": inline},
        "hf_quant_config.json": {
            **separate,
            "quantization": {**quantization, "exclude_modules": excluded},
        },
    }


def _unwrapped(patterns: list[str]) -> list[str]:
    """Returns the patterns of the text part, without the prefix."""
    return [p.removeprefix(WRAPPER_PREFIX) for p in patterns if p.startswith(WRAPPER_PREFIX)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", type=Path, default=HERE / "target", help="wrapped folder")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    options = parser.parse_args()
    unwrap(options.target, options.out)
    print(f"{options.out}: DeepseekV3ForCausalLM")


if __name__ == "__main__":
    main()
