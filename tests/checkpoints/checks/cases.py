# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Damaged and unusual pairs, at least one for each check, with what the check has to say.

Each case starts from the healthy tiny pair of `tests.support.tiny_checkpoints` and changes one
thing.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from tensorrt_llm_ext.checkpoints.checks.base import CheckContext, HostFacts, Status
from tensorrt_llm_ext.checkpoints.normalize import open_draft, open_target
from tests.support.tiny_checkpoints import (
    TINY_YARN,
    draft_json,
    draft_shapes,
    random_tensors,
    target_json,
    target_shapes,
    write_draft,
    write_target,
)

IDS = "eagle_aux_hidden_state_layer_ids"
MAX_POSITIONS = 128
NVFP4 = {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16}
# Modules of the tiny draft that NVFP4 can hold; kv_b_proj and the norms stay float.
LINEAR = (
    *(f"layers.0.self_attn.{name}_proj" for name in ("q_a", "q_b", "o")),
    "layers.0.self_attn.kv_a_proj_with_mqa",
    *(f"layers.0.mlp.{name}_proj" for name in ("gate", "up", "down")),
)
EXCLUDED = ["lm_head", "model.fc", "model.midlayer.self_attn.kv_b_proj"]
Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One pair and what one check says about it.

    Attributes:
        check_id: The check.
        name: What is special about the pair.
        status: Outcome of the check.
        says: Parts of its message.
        pair: Writes the pair below a folder.
        data: Values of the finding that must be so.
        also: Checks that rightly call the same pair faulty, beside this one.
    """

    check_id: str
    name: str
    status: Status
    says: tuple[str, ...]
    pair: Callable[[Path], CheckContext]
    data: Mapping[str, Any] = field(default_factory=dict)
    also: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.check_id}-{self.name.replace(' ', '-')}"


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Writes a tiny pair, with changes.

    Attributes:
        draft: Keys of the draft's config.json; a None is written as null.
        eagle: Keys of its `eagle_config`.
        without: Keys to leave out, of the draft's config.json.
        change: Tensors that replace or, when None, remove those of the draft.
        shapes: Passed to `draft_shapes`.
        rename: Canonical to stored name.
        target: Keys of the target's config.json; None for no target.
        target_tensors: Tensors that replace those of the target.
        files: Files by name to put into the draft's folder.
        context: Further fields of the context.
    """

    draft: Mapping[str, Any] = field(default_factory=dict)
    eagle: Mapping[str, Any] = field(default_factory=dict)
    without: tuple[str, ...] = ()
    change: Mapping[str, torch.Tensor | None] = field(default_factory=dict)
    shapes: Mapping[str, Any] = field(default_factory=dict)
    rename: Callable[[str], str] = str
    target: Mapping[str, Any] | None = field(default_factory=dict)
    target_tensors: Mapping[str, torch.Tensor] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)
    target_files: Mapping[str, bytes] = field(default_factory=dict)
    context: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, folder: Path) -> CheckContext:
        config = {**draft_json(), **copy.deepcopy(dict(self.draft))}
        if self.eagle:
            config["eagle_config"] = {**config.get("eagle_config", {}), **self.eagle}
        for key in self.without:
            del config[key]
        write_draft(
            folder / "draft", config, change=self.change, rename=self.rename, **self.shapes
        )
        _put(folder / "draft", self.files)
        target = None
        if self.target is not None:
            write_target(folder / "target", {**target_json(), **self.target}, extra=None)
            if self.target_tensors:
                write_over(folder / "target", self.target_tensors)
            _put(folder / "target", self.target_files)
            target = open_target(folder / "target")
        return CheckContext(draft=open_draft(folder / "draft"), target=target, **self.context)


def _put(folder: Path, files: Mapping[str, bytes]) -> None:
    for name, content in files.items():
        (folder / name).write_bytes(content)


def write_over(folder: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Replaces tensors of a checkpoint of one file."""
    from safetensors.torch import load_file, save_file

    path = next(folder.glob("*.safetensors"))
    save_file({**load_file(path), **tensors}, path, metadata={"format": "pt"})


def stored(config: Mapping[str, Any] | None = None, **shapes: Any) -> Tensors:
    """The tensors that `write_draft` writes by default."""
    return random_tensors(draft_shapes(config or draft_json(), **shapes), seed=1)


def packed(
    module: str, shape: tuple[int, int], *, scale_2: float = 1e-3, input_scale: float = 0.02
) -> Tensors:
    """NVFP4 tensors of one module, in the layout of ModelOpt."""
    rows, columns = shape
    return {
        f"{module}.weight": torch.full((rows, columns // 2), 0x21, dtype=torch.uint8),
        f"{module}.weight_scale": torch.ones(rows, columns // 16).to(torch.float8_e4m3fn),
        f"{module}.weight_scale_2": torch.tensor(scale_2),
        f"{module}.input_scale": torch.tensor(input_scale),
    }


def nvfp4(
    *, modules: tuple[str, ...] = LINEAR, change: Mapping[str, Any] | None = None, **keys: Any
) -> Pair:
    """A pair whose draft is quantized; `q_lora_rank` is a multiple of the block size."""
    keys.setdefault("exclude_modules", EXCLUDED)
    draft = {"q_lora_rank": 32, "quantization_config": {**NVFP4, **keys}}
    shapes = draft_shapes(draft_json(**draft))
    tensors: dict[str, torch.Tensor | None] = {}
    for module in modules:
        tensors |= packed(module, shapes[f"{module}.weight"])
    return Pair(draft=draft, change={**tensors, **(change or {})})


def rows_of(tensor: torch.Tensor, *changed: int) -> torch.Tensor:
    """A copy with other values in some rows."""
    copied = tensor.clone()
    copied[list(changed)] += 1.0
    return copied


PRUNED: dict[str, Any] = {"draft_vocab_size": 48}
OFFSETS = torch.arange(48) // 3  # draft id + offset: 0, 1, 2, 4, 5, 6, 8 ...
KEPT = torch.arange(48) + OFFSETS
T2D = torch.zeros(64, dtype=torch.bool).index_fill(0, KEPT, True)
TARGET_EMBEDDING = random_tensors(target_shapes(target_json()))["model.embed_tokens.weight"]
MHA_NAMES = {
    f"layers.0.self_attn.{name}.weight": None
    for name in ("q_a_proj", "q_a_layernorm", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj")
} | {"layers.0.self_attn.kv_a_layernorm.weight": None}
MHA_PROJECTIONS = {
    f"layers.0.self_attn.{name}_proj.weight": torch.ones(16, 64) for name in ("q", "k", "v")
}
EAGLE_31 = {"fc_norm": True, "norm_output": True}
NO_YARN = {"rope_scaling": None}
TWO_NORMS = {"fc_norm.2.weight": None}
WITH_EMBEDDING = {"embedding": True}
BIG_YARN = {**TINY_YARN, "factor": 64.0, "original_max_position_embeddings": 4096}
KIMI_ROPE = {"qk_rope_head_dim": 64, "rope_theta": 50000.0, "max_position_embeddings": 262144}


def fc_norm(values: float) -> dict[str, torch.Tensor]:
    return {f"fc_norm.{i}.weight": torch.full((32,), values) for i in range(3)}


ERROR, WARNING, INFO, PASSED = Status.ERROR, Status.WARNING, Status.INFO, Status.PASSED
ABSENT, UNUSED = Status.NOT_CHECKED, Status.NOT_APPLICABLE


def with_host(version: str | None, *missing: str) -> Mapping[str, Any]:
    return {"host": HostFacts(version=version, missing=missing)}


CASES: tuple[Case, ...] = (
    Case(
        check_id="V1",
        name="host lacks names",
        status=ERROR,
        says=("TensorRT-LLM 1.2.1 lacks", "modules.mla.MLA", "embedded engine"),
        pair=Pair(context=with_host("1.2.1", "modules.mla.MLA")),
        data={"missing": ["modules.mla.MLA"]},
    ),
    Case(
        check_id="V1",
        name="host cannot be imported",
        status=ERROR,
        says=("(version unknown) lacks tensorrt_llm (importing it raises OSError: no driver)",),
        pair=Pair(
            context=with_host(None, "tensorrt_llm (importing it raises OSError: no driver)")
        ),
    ),
    Case(
        check_id="V1",
        name="wrapper missing for a plain target",
        status=WARNING,
        says=("KimiK25ForConditionalGeneration", "no Kimi-K2.5 wrapper"),
        pair=Pair(context=with_host("1.2.1", "x.KimiK25ForConditionalGeneration")),
    ),
    Case(
        check_id="V1",
        name="complete host",
        status=PASSED,
        says=("TensorRT-LLM 1.4.0 has all",),
        pair=Pair(context=with_host("1.4.0")),
    ),
    Case(
        check_id="V1",
        name="no host",
        status=ABSENT,
        says=("not installed",),
        pair=Pair(context=with_host(None)),
    ),
    Case(
        check_id="V2",
        name="MHA draft",
        status=ERROR,
        says=("MHA draft", "k_proj", "built-in Eagle3 path"),
        pair=Pair(change={**MHA_NAMES, **MHA_PROJECTIONS}),
    ),
    Case(
        check_id="V2",
        name="gated K3 draft",
        status=ERROR,
        says=("g_proj", "gated MLA"),
        pair=Pair(change={"layers.0.self_attn.g_proj.weight": torch.ones(16, 64)}),
    ),
    Case(
        check_id="V2",
        name="another activation",
        status=ERROR,
        says=("hidden_act='gelu'", "'silu'"),
        pair=Pair(draft={"hidden_act": "gelu"}),
    ),
    Case(
        check_id="V3",
        name="missing size",
        status=ERROR,
        says=("lacks 'intermediate_size'",),
        pair=Pair(without=("intermediate_size",)),
    ),
    Case(
        check_id="V3",
        name="target of another family",
        status=ERROR,
        says=("Target ", "Qwen3ForCausalLM"),
        pair=Pair(target={"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}),
    ),
    Case(
        check_id="V3",
        name="spellings",
        status=INFO,
        says=("eagle_config merged", "rotary settings from rope_scaling", "predict_layers 0"),
        pair=Pair(draft={"num_nextn_predict_layers": 0}),
    ),
    Case(
        check_id="V4",
        name="prefixed midlayer",
        status=INFO,
        says=("layout", "names brought into canonical form"),
        pair=Pair(rename=lambda name: "model." + name.replace("layers.0.", "midlayer.")),
        data={"renamed": 16, "split": 0},
    ),
    Case(
        check_id="V5",
        name="missing tensor",
        status=ERROR,
        says=("1 of 16 tensors", "layers.0.self_attn.o_proj.weight [32, 16]", "incomplete"),
        pair=Pair(change={"layers.0.self_attn.o_proj.weight": None}),
    ),
    Case(
        check_id="V5",
        name="misspelt tensor",
        status=ERROR,
        says=("layers.0.hidden_nrom.weight [32]", "near layers.0.hidden_norm.weight"),
        pair=Pair(
            change={
                "layers.0.hidden_norm.weight": None,
                "layers.0.hidden_nrom.weight": torch.ones(32),
            }
        ),
    ),
    Case(
        check_id="V5",
        name="tensor of no module",
        status=ERROR,
        says=("1 tensors belong to no part of the draft", "adapter.weight [2, 2]"),
        pair=Pair(change={"adapter.weight": torch.ones(2, 2)}),
    ),
    Case(
        check_id="V6",
        name="shape of another draft",
        status=ERROR,
        says=(
            "layers.0.self_attn.o_proj.weight has shape [32, 24], expected [32, 16]",
            "num_attention_heads",
            "num_attention_heads by o_proj 3",
        ),
        pair=Pair(change={"layers.0.self_attn.o_proj.weight": torch.ones(32, 24)}),
    ),
    Case(
        check_id="V6",
        name="number of layers",
        status=ERROR,
        says=("num_hidden_layers is 2", "1 layers"),
        pair=Pair(draft={"num_hidden_layers": 2}, shapes={}, change=_second_layer_removed())
        if False
        else Pair(draft={"num_hidden_layers": 2}, change={}),
    ),
)
