# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Which module of a draft or target may have which format, and why.

The recipes in `modelopt_recipes/` follow this table, and a test keeps them to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from tensorrt_llm_ext.errors import CheckpointError, unknown_key_error

Format: TypeAlias = Literal["float", "nvfp4", "fp8"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ModuleRule:
    """What one kind of module may be.

    Attributes:
        names: Last components of the names of such modules.
        part: What recipes switch on and off together: "layer", "fc", "head", "experts"; "never".
        formats: Allowed formats.
        why: The reason, for people.
    """

    names: tuple[str, ...]
    part: str
    formats: tuple[Format, ...]
    why: str


_ANY: tuple[Format, ...] = ("float", "nvfp4", "fp8")
_FLOAT: tuple[Format, ...] = ("float",)

RULES: tuple[ModuleRule, ...] = (
    ModuleRule(
        names=("kv_b_proj",),
        part="never",
        formats=_FLOAT,
        why=(
            "MLA engines absorb it into the products with queries and outputs and never multiply "
            "by it, so they need it in floating point"
        ),
    ),
    ModuleRule(
        names=("q_a_proj", "kv_a_proj_with_mqa"),
        part="layer",
        formats=_ANY,
        why="two hidden states wide and replicated on every rank; the two share their scales",
    ),
    ModuleRule(
        names=("q_proj", "q_b_proj", "o_proj"),
        part="layer",
        formats=_ANY,
        why="plain products of the attention layer",
    ),
    ModuleRule(
        names=("gate_proj", "up_proj", "down_proj"),
        part="layer",
        formats=_ANY,
        why="most of the layer's bytes; gate and up share their scales",
    ),
    ModuleRule(
        names=("fc",),
        part="fc",
        formats=_ANY,
        why=(
            "read once per round; its input is raw residual streams with outliers, so measure "
            "acceptance before quantizing it in a draft without fc_norm"
        ),
    ),
    ModuleRule(
        names=("lm_head",),
        part="head",
        formats=_ANY,
        why=(
            "two thirds of the bytes of a draft step; not every engine can load it quantized, and "
            "near-ties between tokens decide, so measure acceptance"
        ),
    ),
    ModuleRule(
        names=("embed_tokens",),
        part="never",
        formats=_FLOAT,
        why="single rows are read from it, so there are no bytes to save",
    ),
    ModuleRule(
        names=("gate", "e_score_correction_bias"),
        part="never",
        formats=_FLOAT,
        why="near-equal scores decide which expert runs",
    ),
)
_NORM = ModuleRule(names=(), part="never", formats=_FLOAT, why="a norm has no product to save")

# Format of each part in the recipes' tiers; a part that is not named stays float.
TIERS: Mapping[str, Mapping[str, Format]] = {
    "layer": {"layer": "nvfp4"},
    "layer_fc": {"layer": "nvfp4", "fc": "nvfp4"},
    "layer_fc_head": {"layer": "nvfp4", "fc": "nvfp4", "head": "nvfp4"},
    "layer_fc_fp8_head": {"layer": "nvfp4", "fc": "nvfp4", "head": "fp8"},
    "fp8_layer": {"layer": "fp8"},
    "fp8_layer_fc_head": {"layer": "fp8", "fc": "fp8", "head": "fp8"},
}


def rule_for(module: str) -> ModuleRule:
    """Returns the rule of a module, by the last component of its name.

    Args:
        module: Canonical name, for instance `layers.0.self_attn.kv_b_proj`.
    """
    last = module.rpartition(".")[2]
    for rule in RULES:
        if last in rule.names:
            return rule
    return _NORM


def tier_formats(tier: str, modules: Iterable[str]) -> dict[str, Format]:
    """Returns the format of each module in a tier.

    Args:
        tier: A key of `TIERS`.
        modules: Canonical names of linear modules.

    Raises:
        ConfigError: If the tier is unknown.
    """
    if tier not in TIERS:
        raise unknown_key_error("TIERS", tier, TIERS)
    parts = TIERS[tier]
    return {module: parts.get(rule_for(module).part, "float") for module in modules}


def check_format(module: str, kind: str) -> None:
    """Refuses a module that must not have the format that it is stored in.

    Args:
        module: Canonical name.
        kind: Format that the tensors show, for instance "nvfp4".

    Raises:
        CheckpointError: With check "V24".
    """
    rule = rule_for(module)
    if kind not in rule.formats:
        raise CheckpointError(
            f"{module} is stored in {kind}, expected floating point: {rule.why}. Quantize the "
            f"checkpoint again with {module.rpartition('.')[2]} excluded (the recipes in "
            "modelopt_recipes do), or restore it from the original.",
            check="V24",
        )
