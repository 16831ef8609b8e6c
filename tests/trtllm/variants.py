# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Copies of the example draft with one thing changed, and the copy that upstream can serve."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tensorrt_llm_ext.quantization.tensors import Nvfp4Tensor, quantize_nvfp4
from tests.support.faults import read_draft, write_draft
from tests.trtllm.serving import EXAMPLE

Config = dict[str, Any]
Tensors = dict[str, torch.Tensor]
Change = Callable[[Config, Tensors], Any]
LAYER, HOST_LAYER = "layers.0.", "midlayer."
SCALES = ("weight_scale", "weight_scale_2", "input_scale")


class Drafts:
    """Makes drafts below a folder, each once.

    Args:
        root: An empty folder.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def make(
        self, name: str, base: str, *changes: Change, excludes: list[str] | None = None
    ) -> Path:
        """Writes a changed copy of an example draft.

        Args:
            name: Of the copy.
            base: `draft` or `draft-nvfp4`.
            *changes: Each changes config and tensors in place.
            excludes: `exclude_modules` of the copy instead of the example's.
        """
        folder = self.root / name
        if folder.is_dir():
            return folder
        config, tensors = read_draft(EXAMPLE / base)
        config = copy.deepcopy(config)
        for change in changes:
            change(config, tensors)
        document = EXAMPLE / base / "hf_quant_config.json"
        if document.is_file():
            quant = json.loads(document.read_text(encoding="utf-8"))
            if excludes is not None:
                quant["quantization"]["exclude_modules"] = excludes
                config["quantization_config"]["ignore"] = excludes
        write_draft(folder, config, tensors)
        if document.is_file():
            (folder / document.name).write_text(json.dumps(quant), encoding="utf-8")
        return folder


def known_type(config: Config, tensors: Tensors) -> None:
    """A type of config that transformers knows."""
    config["model_type"] = "deepseek_v3"


def host_names(config: Config, tensors: Tensors) -> None:
    """The names of the host's modules."""
    rename(LAYER, HOST_LAYER)(config, tensors)


def plain_norms(config: Config, tensors: Tensors) -> None:
    """Neither of the norms that only the newest host has; acceptance falls, the path stays."""
    for flags in (config, config["eagle_config"]):
        flags["fc_norm"] = flags["norm_output"] = False
    for name in [n for n in tensors if n.startswith("fc_norm.")]:
        del tensors[name]


def rename(old: str, new: str) -> Change:
    """Names that begin in another way."""

    def change(config: Config, tensors: Tensors) -> None:
        for name in [n for n in tensors if n.startswith(old)]:
            tensors[new + name.removeprefix(old)] = tensors.pop(name)

    return change


def unpack(*modules: str) -> Change:
    """Modules in bfloat16 that were NVFP4."""

    def change(config: Config, tensors: Tensors) -> None:
        for module in modules:
            parts = [tensors.pop(f"{module}.{part}") for part in ("weight", *SCALES)]
            tensors[f"{module}.weight"] = Nvfp4Tensor(*parts).dequantize(torch.bfloat16)

    return change


def pack(module: str, amax: float) -> Change:
    """A module in NVFP4 that was bfloat16; `amax` is that of its activations."""

    def change(config: Config, tensors: Tensors) -> None:
        scale = torch.tensor(amax / (6.0 * 448.0))
        made = quantize_nvfp4(tensors.pop(f"{module}.weight"), input_scale=scale)
        tensors |= made.tensors(module)

    return change


# What upstream can serve in each era: every other draft differs from it in the hazard alone.
FRIENDLY = (known_type, host_names, plain_norms)
