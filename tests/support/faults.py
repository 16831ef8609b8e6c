# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Faults planted into a healthy draft, each as public drafts and exporters have had it."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from tensorrt_llm_ext.checkpoints.writer import save_checkpoint

Config = dict[str, Any]
Tensors = dict[str, torch.Tensor]
Plant = Callable[[Config, Tensors], None]

EXAMPLE = Path(__file__).parents[2] / "examples" / "tiny_kimi"
_MSCALE = 0.1 * 1.3862943611198906 + 1.0  # yarn of factor 4


@dataclass(frozen=True)
class Fault:
    """One kind of fault.

    Attributes:
        name: Short stable name.
        title: What went wrong, in words.
        plant: Changes config and tensors in place.
        checks: Checks of the validator that name it, if any can.
        factors: Names of the canary's factors that name it; empty when nothing can mend it.
        is_pruned: Planted into the draft with a reduced vocabulary.
    """

    name: str
    title: str
    plant: Plant
    checks: tuple[str, ...] = ()
    factors: tuple[str, ...] = ()
    is_pruned: bool = False


def read_draft(folder: Path) -> tuple[Config, Tensors]:
    """Reads a draft's config.json and tensors."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return config, load_file(folder / "model.safetensors")


def write_draft(folder: Path, config: Config, tensors: Tensors) -> Path:
    """Writes a draft's folder."""
    save_checkpoint(folder, config, {name: t.contiguous() for name, t in tensors.items()})
    return folder


def prune(config: Config, tensors: Tensors, keep: Sequence[int]) -> tuple[Config, Tensors]:
    """Reduces a draft's vocabulary to some target ids, with an offset table and t2d."""
    ids = torch.tensor(sorted(set(keep)))
    config, tensors = copy.deepcopy(config), dict(tensors)
    head = tensors["lm_head.weight"]
    tensors["lm_head.weight"] = head[ids].clone()
    tensors["d2t"] = ids - torch.arange(ids.numel())
    tensors["t2d"] = torch.zeros(head.shape[0], dtype=torch.bool).index_fill(0, ids, True)
    config["draft_vocab_size"] = ids.numel()
    return config, tensors


def plant(fault: Fault, config: Config, tensors: Tensors) -> tuple[Config, Tensors]:
    """Returns a faulty copy."""
    config, tensors = copy.deepcopy(config), dict(tensors)
    fault.plant(config, tensors)
    return config, tensors


def _shift_ids(by: int) -> Plant:
    def change(config: Config, tensors: Tensors) -> None:
        config["trtllm_ext_aux_boundaries"] = [b + by for b in config["trtllm_ext_aux_boundaries"]]
        eagle = config["eagle_config"]
        eagle["eagle_aux_hidden_state_layer_ids"] = [
            i + by for i in eagle["eagle_aux_hidden_state_layer_ids"]
        ]

    return change


def _reorder(order: tuple[int, ...]) -> Plant:
    """Column block i is of captured layer order[i], as in a producer that did not sort."""

    def change(config: Config, tensors: Tensors) -> None:
        chunks = tensors["fc.weight"].chunk(len(order), dim=1)
        norms = [tensors[f"fc_norm.{i}.weight"] for i in range(len(order))]
        tensors["fc.weight"] = torch.cat([chunks[i] for i in order], dim=1)
        for place, index in enumerate(order):
            tensors[f"fc_norm.{place}.weight"] = norms[index]

    return change


def _flag(name: str, value: bool) -> Plant:
    def change(config: Config, tensors: Tensors) -> None:
        config[name] = value
        if name in config["eagle_config"]:
            config["eagle_config"][name] = value

    return change


def _rope(changes: Config, drop: tuple[str, ...] = ()) -> Plant:
    def change(config: Config, tensors: Tensors) -> None:
        for key in ("rope_scaling", "rope_parameters"):
            config[key] |= changes
            for name in drop:
                config[key].pop(name, None)

    return change


def _theta(value: float) -> Plant:
    def change(config: Config, tensors: Tensors) -> None:
        config["rope_theta"] = value
        for key in ("rope_scaling", "rope_parameters"):
            if "rope_theta" in config[key]:
                config[key]["rope_theta"] = value

    return change


def _head_rows_by_offset(config: Config, tensors: Tensors) -> None:
    """A pruning tool took the offsets for row numbers of the whole head."""
    whole = read_draft(EXAMPLE / "draft")[1]["lm_head.weight"]
    tensors["lm_head.weight"] = whole[tensors["d2t"]].clone()


def _trained_without_mscale(config: Config, tensors: Tensors) -> None:
    """The query weights of a trainer whose softmax scale had no mscale."""
    name = "layers.0.self_attn.q_b_proj.weight"
    weight = tensors[name]
    tensors[name] = (weight.double() * _MSCALE**2).to(weight.dtype)


def _permute_head(config: Config, tensors: Tensors) -> None:
    generator = torch.Generator().manual_seed(7)
    order = torch.randperm(tensors["lm_head.weight"].shape[0], generator=generator)
    tensors["lm_head.weight"] = tensors["lm_head.weight"][order].clone()


def _d2t_read_as_absolute(config: Config, tensors: Tensors) -> None:
    """The receiver subtracts draft ids from what were offsets already; t2d is lost."""
    d2t = tensors["d2t"]
    tensors["d2t"] = d2t - torch.arange(d2t.numel())
    tensors.pop("t2d", None)


def _d2t_absolute(config: Config, tensors: Tensors) -> None:
    """The exporter wrote target ids where offsets belong."""
    d2t = tensors["d2t"]
    tensors["d2t"] = d2t + torch.arange(d2t.numel())
    tensors.pop("t2d", None)


def _d2t_zeros(config: Config, tensors: Tensors) -> None:
    """The table was lost and filled with zeros."""
    tensors["d2t"] = torch.zeros_like(tensors["d2t"])
    tensors.pop("t2d", None)


FAULTS: tuple[Fault, ...] = (
    Fault("ids+1", "layer ids one too high", _shift_ids(1), factors=("boundaries-1",)),
    Fault("ids-1", "layer ids one too low", _shift_ids(-1), factors=("boundaries+1",)),
    Fault(
        "chunk order",
        "fc columns in another order",
        _reorder((2, 0, 1)),
        factors=("order[3,1,2]",),
    ),
    Fault(
        "norm_output",
        "`norm_output` flipped",
        _flag("norm_output", False),
        checks=("V19",),
        factors=("norm_output=on",),
    ),
    Fault(
        "fc_norm",
        "`fc_norm` flag dropped",
        _flag("fc_norm", False),
        checks=("V18",),
        factors=("fc_norm=on",),
    ),
    Fault(
        "mscale",
        "yarn `mscale` dropped",
        _rope({}, drop=("mscale", "mscale_all_dim")),
        factors=("mscale=softmax",),
    ),
    Fault(
        "trained without mscale",
        "trained without mscale, declared with",
        _trained_without_mscale,
        factors=("mscale=none",),
    ),
    Fault(
        "target's rope",
        "the target's rope used for the draft",
        _rope({"beta_fast": 32.0}),
        factors=("rope=yarn(1)",),
    ),
    Fault(
        "rope_theta",
        "`rope_theta` of another family",
        _theta(10000.0),
        factors=("rope=theta",),
    ),
    Fault(
        "d2t",
        "`d2t` read as absolute",
        _d2t_read_as_absolute,
        checks=("V21",),
        factors=("d2t: d2t with draft ids added back",),
        is_pruned=True,
    ),
    Fault(
        "absolute d2t",
        "`d2t` written as absolute ids",
        _d2t_absolute,
        checks=("V21",),
        factors=("d2t: d2t read as target ids",),
        is_pruned=True,
    ),
    Fault(
        "lost d2t",
        "`d2t` all zeros",
        _d2t_zeros,
        checks=("V21",),
        factors=("d2t: the map that the head's rows say",),
        is_pruned=True,
    ),
    Fault(
        "head rows by offset",
        "head pruned by offsets as row numbers",
        _head_rows_by_offset,
        factors=("lm_head: the target's own head rows",),
        is_pruned=True,
    ),
    Fault(
        "permuted head",
        "head rows permuted",
        _permute_head,
        factors=("lm_head: head rows in the target's order",),
    ),
)
