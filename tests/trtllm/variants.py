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
from safetensors.torch import load_file
from torch.nn import functional

from tensorrt_llm_ext.quantization.tensors import Nvfp4Tensor, quantize_nvfp4
from tests.support.faults import prune, read_draft, write_draft
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


def below(prefix: str) -> Change:
    """Names of the body below a prefix; the head keeps its own."""

    def change(config: Config, tensors: Tensors) -> None:
        for name in [n for n in tensors if not n.startswith("lm_head.")]:
            tensors[prefix + name] = tensors.pop(name)

    return change


def packed(tensors: Tensors, module: str) -> Nvfp4Tensor:
    """A stored NVFP4 weight."""
    return Nvfp4Tensor(
        data=tensors[f"{module}.weight"],
        block_scale=tensors[f"{module}.weight_scale"],
        global_scale=tensors[f"{module}.weight_scale_2"],
        input_scale=tensors[f"{module}.input_scale"],
    )


def unpack(*modules: str) -> Change:
    """Modules in bfloat16 that were NVFP4."""

    def change(config: Config, tensors: Tensors) -> None:
        for module in modules:
            tensors[f"{module}.weight"] = packed(tensors, module).dequantize(torch.bfloat16)
            for scale in SCALES:
                del tensors[f"{module}.{scale}"]

    return change


def pack(module: str, amax: float) -> Change:
    """A module in NVFP4 that was bfloat16; `amax` is that of its activations."""

    def change(config: Config, tensors: Tensors) -> None:
        scale = torch.tensor(amax / (6.0 * 448.0))
        made = quantize_nvfp4(tensors.pop(f"{module}.weight"), input_scale=scale)
        tensors |= made.tensors(module)

    return change


def own_scale(module: str, factor: float) -> Change:
    """An NVFP4 module whose global scale is another one than its neighbour's."""

    def change(config: Config, tensors: Tensors) -> None:
        weight = packed(tensors, module)
        made = quantize_nvfp4(
            weight.dequantize(torch.float32) * factor, input_scale=weight.input_scale
        )
        tensors |= made.tensors(module)

    return change


def reduced_vocabulary(config: Config, tensors: Tensors) -> None:
    """A head of every fourth row away, with d2t and t2d."""
    keep = [i for i in range(config["vocab_size"]) if i % 4]
    new_config, new_tensors = prune(config, tensors, keep)
    config.update(new_config)
    tensors.update(new_tensors)


def unscaled(config: Config, tensors: Tensors) -> None:
    """Another rotary table than it was trained with: one without scaling."""
    config["rope_scaling"] = None
    config["rope_parameters"] = {"rope_type": "default", "rope_theta": config["rope_theta"]}


def transformers_5(config: Config, tensors: Tensors) -> None:
    """Rope as transformers 5 writes it."""
    del config["rope_scaling"], config["rope_theta"]


def without_q_lora(config: Config, tensors: Tensors) -> None:
    """Queries without a low-rank projection."""
    config["q_lora_rank"] = None
    for name in [n for n in tensors if ".q_a_" in n]:
        del tensors[name]
    old = next(n for n in tensors if n.endswith(".q_b_proj.weight"))
    rows = tensors.pop(old).shape[0]
    weight = torch.full((rows, 2 * config["hidden_size"]), 0.01, dtype=torch.bfloat16)
    tensors[old.replace("q_b_proj", "q_proj")] = weight


def two_layers(config: Config, tensors: Tensors) -> None:
    """A second layer that adds little."""
    config["num_hidden_layers"] = 2
    for name in [n for n in tensors if n.startswith(LAYER)]:
        if name.endswith(".hidden_norm.weight"):
            continue
        tensor = tensors[name]
        if ".q_a_proj." in name or ".kv_a_proj_with_mqa." in name:
            tensor = tensor[:, : config["hidden_size"]]
        if "o_proj" in name or "down_proj" in name:
            tensor = tensor * 0.01
        tensors[name.replace(LAYER, "layers.1.")] = tensor.clone()


def wide(config: Config, tensors: Tensors) -> None:
    """The same draft in states three times as wide as the target's, with zeros in the new places.

    Its width is that of the captured states, by which upstream takes them for combined ones.
    """
    old, new = config["hidden_size"], config["num_aux_hidden_states"] * config["hidden_size"]
    config["hidden_size"] = new
    target = load_file(EXAMPLE / "target" / "model.safetensors")
    embedding = next(t for n, t in target.items() if n.endswith("embed_tokens.weight"))
    for name, tensor in tensors.items():
        if name.startswith("fc_norm.") or ".q_a_layernorm." in name or ".kv_" in name:
            widened = tensor
        elif tensor.dim() == 1:  # zeros make the mean square smaller
            widened = functional.pad(tensor, (0, new - old)) * (old / new) ** 0.5
        elif name.endswith(("fc.weight", "o_proj.weight", "down_proj.weight")):
            widened = functional.pad(tensor, (0, 0, 0, new - old))
        else:
            widened = tensor
        tensors[name] = widened
    for name in [n for n in tensors if ".q_a_proj." in n or ".kv_a_proj_with_mqa." in n]:
        halves = [functional.pad(half, (0, new - old)) for half in tensors[name].chunk(2, 1)]
        tensors[name] = torch.cat(halves, 1)
    for name in [n for n in tensors if n.endswith(("gate_proj.weight", "up_proj.weight"))]:
        tensors[name] = functional.pad(tensors[name], (0, new - old))
    tensors["lm_head.weight"] = functional.pad(tensors["lm_head.weight"], (0, new - old))
    tensors["embed_tokens.weight"] = functional.pad(embedding, (0, new - old))


# What upstream can serve in each era: every other draft differs from it in the hazard alone.
FRIENDLY = (known_type, host_names, plain_norms)
