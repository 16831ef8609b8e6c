# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Damaged and unusual pairs, at least one for each check, with what the check has to say.

Each case starts from the healthy tiny pair of `tests.support.tiny_checkpoints` and changes one
thing.
"""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from tensorrt_llm_ext.checkpoints.checks.base import CheckContext, HostFacts, Status
from tensorrt_llm_ext.checkpoints.normalize import open_draft, open_target
from tensorrt_llm_ext.configs.boundaries import EXPLICIT_KEY
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
FP8_CACHE = {"quant_method": "modelopt", "quant_algo": None, "kv_cache_quant_algo": "FP8"}
ROTATED = {"quant_method": "modelopt", "quant_algo": None, "quarot": {"enabled": True}}
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
    """

    check_id: str
    name: str
    status: Status
    says: tuple[str, ...]
    pair: Callable[[Path], CheckContext]
    data: Mapping[str, Any] = field(default_factory=dict)

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
        write_draft(folder / "draft", config, change=self.change, rename=self.rename, **self.shapes)
        for key in self.without:
            del config[key]
        _put(folder / "draft", {"config.json": json.dumps(config).encode(), **self.files})
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


FP8 = {
    "quant_method": "modelopt",
    "quant_algo": "FP8",
    "exclude_modules": ["lm_head", "model.fc", "*.self_attn*", "*.down_proj"],
}


def fp8(module: str, scale: float) -> Tensors:
    """FP8 tensors of one module of the first layer, [48, 32]."""
    return {
        f"layers.0.{module}.weight": torch.ones(48, 32).to(torch.float8_e4m3fn),
        f"layers.0.{module}.weight_scale": torch.tensor(scale),
        f"layers.0.{module}.input_scale": torch.tensor(0.1),
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
SAME_EMBEDDING = {"embed_tokens.weight": TARGET_EMBEDDING}
BIG_YARN = {**TINY_YARN, "factor": 64.0, "original_max_position_embeddings": 4096}
KIMI_ROPE = {"qk_rope_head_dim": 64, "rope_theta": 50000.0, "max_position_embeddings": 262144}


SECOND_LAYER = {
    name: None
    for name in draft_shapes(draft_json(num_hidden_layers=2))
    if name.startswith("layers.1.")
}


def one_hot(index: int) -> torch.Tensor:
    return torch.zeros(64, dtype=torch.bool).index_fill(0, torch.tensor(index), True)


def infinite(*shape: int) -> torch.Tensor:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    values[1, 1] = torch.inf
    return values


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
        pair=Pair(context=with_host(None, "tensorrt_llm (importing it raises OSError: no driver)")),
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
        pair=Pair(draft={"num_hidden_layers": 2}, change=SECOND_LAYER),
    ),
    Case(
        check_id="V6",
        name="cached rows of another width",
        status=ERROR,
        says=("caches rows of 24 values", "target 32"),
        pair=Pair(target={"kv_lora_rank": 24}),
    ),
    Case(
        check_id="V6",
        name="derived sizes",
        status=PASSED,
        says=("hidden_size 32, target_hidden_size 32, q_lora_rank 24, kv_lora_rank 16",),
        pair=Pair(),
        data={
            "derived": {
                "hidden_size": 32,
                "target_hidden_size": 32,
                "q_lora_rank": 24,
                "kv_lora_rank": 16,
                "qk_rope_head_dim": 8,
                "intermediate_size": 48,
                "draft_vocab_size": 64,
                "num_attention_heads": 2,
            }
        },
    ),
    Case(
        check_id="V7",
        name="inherited MoE keys",
        status=INFO,
        says=("Dense by its tensors", "n_routed_experts=384", "first_k_dense_replace=1"),
        pair=Pair(draft={"n_routed_experts": 384, "first_k_dense_replace": 1}),
        data={"ignored": {"n_routed_experts": 384, "first_k_dense_replace": 1}},
    ),
    Case(
        check_id="V7",
        name="experts",
        status=ERROR,
        says=("layers.0.mlp.experts.0.up_proj.weight", "only dense drafts"),
        pair=Pair(change={"layers.0.mlp.experts.0.up_proj.weight": torch.ones(16, 32)}),
    ),
    Case(
        check_id="V8",
        name="head of another vocabulary",
        status=ERROR,
        says=("lm_head.weight has shape [48, 32], expected 64 rows",),
        pair=Pair(change={"lm_head.weight": torch.ones(48, 32)}),
    ),
    Case(
        check_id="V8",
        name="target of another vocabulary",
        status=ERROR,
        says=("draft's vocab_size is 64, the target's 96",),
        pair=Pair(target={"vocab_size": 96}),
    ),
    Case(
        check_id="V8",
        name="another tokenizer",
        status=WARNING,
        says=("different tokenizer.json (2 and 10 bytes)", "The target's is used"),
        pair=Pair(files={"tokenizer.json": b"{}"}, target_files={"tokenizer.json": b'{"a": "b"}'}),
    ),
    Case(
        check_id="V8",
        name="table of another length",
        status=ERROR,
        says=("d2t has shape [40], expected 48 rows",),
        pair=Pair(draft=PRUNED, change={"d2t": OFFSETS[:40]}),
    ),
    Case(
        check_id="V8",
        name="table of floats",
        status=ERROR,
        says=("d2t must hold integer offsets, got dtype torch.float32",),
        pair=Pair(draft=PRUNED, change={"d2t": OFFSETS.float()}),
    ),
    Case(
        check_id="V9",
        name="no ids",
        status=ERROR,
        says=("does not say which target layers it captures",),
        pair=Pair(without=("eagle_config",)),
    ),
    Case(
        check_id="V9",
        name="two lists",
        status=ERROR,
        says=("[2, 4, 5]", "[1, 3, 6]", "Keep one of them"),
        pair=Pair(draft={IDS: [1, 3, 6]}),
    ),
    Case(
        check_id="V10",
        name="ids of either kind",
        status=ERROR,
        says=("[3, 4, 6] can be read in two ways for a target of 8 layers",),
        pair=Pair(eagle={IDS: [3, 4, 6]}, shapes=WITH_EMBEDDING, change=SAME_EMBEDDING),
    ),
    Case(
        check_id="V10",
        name="resolved by default triple",
        status=PASSED,
        says=("Boundaries [2, 4, 5]", "default boundaries for 8 layers"),
        pair=Pair(),
        data={"boundaries": [2, 4, 5]},
    ),
    Case(
        check_id="V11",
        name="both countings",
        status=INFO,
        says=(
            "captures after target layers [1, 3, 4] (0-based), i.e. boundaries [2, 4, 5]; evidence",
        ),
        pair=Pair(),
        data={"after_layers": [1, 3, 4], "boundaries": [2, 4, 5]},
    ),
    Case(
        check_id="V12",
        name="option holds boundaries",
        status=ERROR,
        says=("eagle3_layers_to_capture is [2, 4, 5]", "after layers [1, 3, 4]", "Set it to"),
        pair=Pair(context={"layers_to_capture": [2, 4, 5]}),
    ),
    Case(
        check_id="V12",
        name="option equals",
        status=PASSED,
        says=("[1, 3, 4] names the same states",),
        pair=Pair(context={"layers_to_capture": [4, 3, 1]}),
    ),
    Case(
        check_id="V12",
        name="default of the host differs",
        status=INFO,
        says=("Set eagle3_layers_to_capture to [1, 3, 5]", "the host captures [1, 3, 4]"),
        pair=Pair(draft={EXPLICIT_KEY: [2, 4, 6]}, eagle={IDS: [2, 4, 6]}),
        data={"eagle3_layers_to_capture": [1, 3, 5], "host_default": [1, 3, 4]},
    ),
    Case(
        check_id="V12",
        name="embeddings captured",
        status=ERROR,
        says=("Boundary 0", "-1 means the state after the final norm"),
        pair=Pair(eagle={IDS: [0, 4, 5]}, context={"boundaries": (0, 4, 5)}),
    ),
    Case(
        check_id="V12",
        name="override contradicts the file",
        status=ERROR,
        says=("[2, 4, 6]", "contradict", "[2, 4, 5]"),
        pair=Pair(draft={EXPLICIT_KEY: [2, 4, 5]}, context={"boundaries": (2, 4, 6)}),
    ),
    Case(
        check_id="V13",
        name="target not deep enough",
        status=ERROR,
        says=("[2, 4, 9] must lie within 0..8",),
        pair=Pair(draft={EXPLICIT_KEY: [2, 4, 9]}, eagle={IDS: [2, 4, 9]}),
    ),
    Case(
        check_id="V13",
        name="unsorted",
        status=ERROR,
        says=("unique and ascending, got [5, 2, 4]",),
        pair=Pair(draft={EXPLICIT_KEY: [5, 2, 4]}, eagle={IDS: [5, 2, 4]}),
    ),
    Case(
        check_id="V13",
        name="no target",
        status=ABSENT,
        says=("whether the target is deep enough",),
        pair=Pair(draft={EXPLICIT_KEY: [2, 4, 5]}, target=None),
    ),
    Case(
        check_id="V14",
        name="four states into a fc for three",
        status=ERROR,
        says=("4 captured states of width 24", "hidden_size is 32"),
        pair=Pair(draft={EXPLICIT_KEY: [2, 4, 5, 7]}, eagle={IDS: [2, 4, 5, 7]}),
    ),
    Case(
        check_id="V14",
        name="declared number of states",
        status=ERROR,
        says=("num_aux_hidden_states is 4, but 3 layers are captured",),
        pair=Pair(draft={"num_aux_hidden_states": 4}),
    ),
    Case(
        check_id="V14",
        name="target of another width",
        status=ERROR,
        says=("captured states of width 32", "hidden_size is 64"),
        pair=Pair(target={"hidden_size": 64}),
    ),
    Case(
        check_id="V15",
        name="no epsilon",
        status=ERROR,
        says=("lacks 'rms_norm_eps'",),
        pair=Pair(without=("rms_norm_eps",)),
    ),
    Case(
        check_id="V15",
        name="implausible epsilon",
        status=WARNING,
        says=("rms_norm_eps is 0.1, expected 1e-6 or 1e-5",),
        pair=Pair(draft={"rms_norm_eps": 0.1}),
    ),
    Case(
        check_id="V16",
        name="unknown scaling",
        status=ERROR,
        says=("unknown kind of rope scaling 'longrope'", "'yarn'"),
        pair=Pair(draft={"rope_scaling": {"type": "longrope", "factor": 4.0}}),
    ),
    Case(
        check_id="V16",
        name="frequency of a wrong type",
        status=ERROR,
        says=("'rope_theta' must be a number", "'fast'"),
        pair=Pair(draft={"rope_theta": "fast"}),
    ),
    Case(
        check_id="V16",
        name="Kimi draft beside Kimi target",
        status=PASSED,
        says=(
            "theta 50000, yarn factor 64 over 4096, beta 1/1",
            "inv_freq of pairs 0: 1.0000e+00",
            "differs at 11 of 32 pairs (9-19), most at pair 19 by a factor of 10.240",
        ),
        pair=Pair(
            draft={**KIMI_ROPE, "rope_scaling": {**BIG_YARN, "beta_fast": 1.0}},
            target={**KIMI_ROPE, "rope_scaling": BIG_YARN},
        ),
        data={"differs_from_target": list(range(9, 20))},
    ),
    Case(
        check_id="V16",
        name="trainer without mscale",
        status=WARNING,
        says=("leaves mscale out of the softmax scale (0.25000)", "asks for", "mscale_all_dim"),
        pair=Pair(
            draft={EXPLICIT_KEY: None},
            rename=lambda n: n if n.startswith("lm_head") else f"model.{n}",
        ),
    ),
    Case(
        check_id="V17",
        name="no scaling beside yarn",
        status=WARNING,
        says=("scaled by YaRN (original length 32)", "the draft's are not"),
        pair=Pair(draft=NO_YARN),
    ),
    Case(
        check_id="V18",
        name="flag without tensors",
        status=ERROR,
        says=("fc_norm is True, but the checkpoint has 0 fc_norm tensors",),
        pair=Pair(draft=EAGLE_31, change=dict.fromkeys(fc_norm(1.0))),
    ),
    Case(
        check_id="V18",
        name="tensors without flag",
        status=ERROR,
        says=("fc_norm is False, but the checkpoint has 3 fc_norm tensors",),
        pair=Pair(change=fc_norm(1.0)),
    ),
    Case(
        check_id="V18",
        name="one norm too few",
        status=ERROR,
        says=("2 fc_norm tensors for 3 captured layers",),
        pair=Pair(draft=EAGLE_31, change=TWO_NORMS),
    ),
    Case(
        check_id="V19",
        name="fc_norm alone",
        status=WARNING,
        says=("fc_norm=True but norm_output=False", "second draft token"),
        pair=Pair(draft={"fc_norm": True}),
        data={"fc_norm": True, "norm_output": False},
    ),
    Case(
        check_id="V19",
        name="norm_output alone",
        status=WARNING,
        says=("fc_norm=False but norm_output=True",),
        pair=Pair(draft={"norm_output": True}),
    ),
    Case(
        check_id="V19",
        name="contradiction",
        status=ERROR,
        says=("contradicts itself", "norm_output=True", "norm_output=False"),
        pair=Pair(draft=EAGLE_31, eagle={"norm_output": False}),
    ),
    Case(
        check_id="V20",
        name="tensor without flag",
        status=ERROR,
        says=("norm_before_fc is False, but the checkpoint has an input_norm.weight",),
        pair=Pair(change={"input_norm.weight": torch.ones(96)}),
    ),
    Case(
        check_id="V20",
        name="flag without tensor",
        status=ERROR,
        says=("norm_before_fc is True, but the checkpoint has no input_norm.weight",),
        pair=Pair(draft={"norm_before_fc": True}, change={"input_norm.weight": None}),
    ),
    Case(
        check_id="V21",
        name="absolute table",
        status=ERROR,
        says=("no offset table", "absolute target ids", "store d2t - arange"),
        pair=Pair(draft=PRUNED, change={"d2t": KEPT}),
    ),
    Case(
        check_id="V21",
        name="inverse of another export",
        status=ERROR,
        says=("t2d marks 47 target ids, d2t maps to 48",),
        pair=Pair(draft=PRUNED, change={"d2t": OFFSETS, "t2d": T2D ^ one_hot(0)}),
    ),
    Case(
        check_id="V21",
        name="lost table",
        status=ERROR,
        says=("d2t is all zeros", "48", "64"),
        pair=Pair(draft=PRUNED, change={"d2t": torch.zeros(48, dtype=torch.int64)}),
    ),
    Case(
        check_id="V21",
        name="no table",
        status=ERROR,
        says=("draft_vocab_size 48 is smaller than vocab_size 64", "no d2t"),
        pair=Pair(draft=PRUNED, change={"d2t": None}),
    ),
    Case(
        check_id="V21",
        name="inverse alone",
        status=ERROR,
        says=("t2d, which leaves out target ids, but no d2t",),
        pair=Pair(change={"t2d": T2D}),
    ),
    Case(
        check_id="V21",
        name="offset table",
        status=PASSED,
        says=("48 draft ids map to target ids 0..62", "t2d agrees"),
        pair=Pair(draft=PRUNED, change={"d2t": OFFSETS, "t2d": T2D}),
        data={"first": 0, "last": 62},
    ),
    Case(
        check_id="V22",
        name="another embedding",
        status=WARNING,
        says=("differs from the target's in 2 of 64 sampled rows, the first is row 7",),
        pair=Pair(
            shapes=WITH_EMBEDDING,
            change={"embed_tokens.weight": rows_of(TARGET_EMBEDDING, 7, 40)},
        ),
        data={"differing_rows": [7, 40], "sampled_rows": 64},
    ),
    Case(
        check_id="V22",
        name="the same embedding",
        status=INFO,
        says=("equals the target's in 64 sampled rows",),
        pair=Pair(shapes=WITH_EMBEDDING, change=SAME_EMBEDDING),
        data={"differing_rows": []},
    ),
    Case(
        check_id="V22",
        name="no embedding",
        status=INFO,
        says=("No embed_tokens in the draft",),
        pair=Pair(),
    ),
    Case(
        check_id="V22",
        name="narrow draft without embedding",
        status=ERROR,
        says=("hidden_size 32 and no embed_tokens.weight", "64 wide"),
        pair=Pair(target={"hidden_size": 64}, shapes={"target_hidden_size": 64}),
    ),
    Case(
        check_id="V23",
        name="undeclared",
        status=ERROR,
        says=("modules are quantized", "neither hf_quant_config.json nor config.json"),
        pair=nvfp4(quant_algo=None),
    ),
    Case(
        check_id="V23",
        name="declared for float tensors",
        status=ERROR,
        says=("declares NVFP4 (modelopt, group 16), but every tensor is float",),
        pair=Pair(draft={"quantization_config": NVFP4}),
    ),
    Case(
        check_id="V23",
        name="stale pattern",
        status=WARNING,
        says=("'eagle_module.adapter' matches no module",),
        pair=nvfp4(exclude_modules=[*EXCLUDED, "eagle_module.adapter"]),
    ),
    Case(
        check_id="V23",
        name="pattern that hits the host's names",
        status=WARNING,
        says=("'model*'", "7 quantized modules", "model.midlayer.mlp.down_proj ..."),
        pair=nvfp4(exclude_modules=[*EXCLUDED, "model*"]),
    ),
    Case(
        check_id="V23",
        name="input scales of a fused pair",
        status=ERROR,
        says=("input_scale", "q_a_proj is 0.02", "kv_a_proj_with_mqa 0.03", "one common scale"),
        pair=nvfp4(
            change={"layers.0.self_attn.kv_a_proj_with_mqa.input_scale": torch.tensor(0.03)}
        ),
    ),
    Case(
        check_id="V23",
        name="weight scales of a fused pair",
        status=WARNING,
        says=("weight_scale_2", "gate_proj is 0.001", "up_proj 0.002", "requantize"),
        pair=nvfp4(change={"layers.0.mlp.up_proj.weight_scale_2": torch.tensor(0.002)}),
    ),
    Case(
        check_id="V23",
        name="FP8 scales of a fused pair",
        status=WARNING,
        says=("weight_scale of", "gate_proj is 0.5", "up_proj 0.25", "requantize"),
        pair=Pair(
            draft={"quantization_config": FP8},
            change={**fp8("mlp.gate_proj", 0.5), **fp8("mlp.up_proj", 0.25)},
        ),
    ),
    Case(
        check_id="V23",
        name="half of a fused pair",
        status=ERROR,
        says=("q_a_proj is float", "kv_a_proj_with_mqa is nvfp4", "both, or neither"),
        pair=nvfp4(
            modules=tuple(m for m in LINEAR if not m.endswith(".q_a_proj")),
            exclude_modules=[*EXCLUDED, "model.midlayer.self_attn.q_a_proj"],
        ),
    ),
    Case(
        check_id="V23",
        name="healthy NVFP4",
        status=INFO,
        says=("NVFP4 (modelopt, group 16)", "7 nvfp4", "model.midlayer.self_attn.kv_b_proj"),
        pair=nvfp4(),
        data={"modules": {"nvfp4": 7}},
    ),
    Case(
        check_id="V24",
        name="absorbed projection quantized",
        status=ERROR,
        says=("kv_b_proj is nvfp4", "without it"),
        pair=nvfp4(
            modules=(*LINEAR, "layers.0.self_attn.kv_b_proj"),
            exclude_modules=["lm_head", "model.fc"],
        ),
    ),
    Case(
        check_id="V24",
        name="head quantized",
        status=WARNING,
        says=("lm_head is nvfp4",),
        pair=nvfp4(modules=(*LINEAR, "lm_head"), exclude_modules=EXCLUDED[1:]),
    ),
    Case(
        check_id="V25",
        name="target with FP8 cache",
        status=INFO,
        says=("target's KV cache is FP8", "runs FP8 with scale 1.0"),
        pair=Pair(target={"quantization_config": FP8_CACHE}),
        data={"target": "FP8", "draft": None},
    ),
    Case(
        check_id="V25",
        name="draft alone has a FP8 cache",
        status=WARNING,
        says=("declares FP8 for its KV cache, the target nothing", "overwrites"),
        pair=Pair(draft={"quantization_config": FP8_CACHE}),
    ),
    Case(
        check_id="V25",
        name="scale that is lost",
        status=WARNING,
        says=("layers.0.self_attn.k_scale is not 1", "scale 1.0"),
        pair=Pair(
            target={"quantization_config": FP8_CACHE},
            change={"layers.0.self_attn.k_scale": torch.tensor(0.5)},
        ),
    ),
    Case(
        check_id="V25",
        name="NVFP4 cache",
        status=WARNING,
        says=("KV cache is NVFP4", "fp8 or auto"),
        pair=Pair(target={"quantization_config": {**FP8_CACHE, "kv_cache_quant_algo": "NVFP4"}}),
    ),
    Case(
        check_id="V26",
        name="tree",
        status=ERROR,
        says=("tree", "must be chains", "max_draft_len"),
        pair=Pair(context={"use_tree": True}),
    ),
    Case(
        check_id="V27",
        name="rotated target",
        status=ERROR,
        says=("quarot", "rotation of its hidden states"),
        pair=Pair(target={"quantization_config": ROTATED}),
    ),
    Case(
        check_id="V27",
        name="rotated draft",
        status=ERROR,
        says=("quarot", "target is not rotated"),
        pair=Pair(draft={"quantization_config": ROTATED}),
    ),
    Case(
        check_id="V28",
        name="table too short",
        status=ERROR,
        says=("has 128 positions", "129"),
        pair=Pair(context={"max_seq_len": 129}),
    ),
    Case(
        check_id="V28",
        name="table shorter than the target's",
        status=WARNING,
        says=("ends at position 64, the target's at 128", "run without drafts"),
        pair=Pair(draft={"max_position_embeddings": 64}),
    ),
    Case(
        check_id="V28",
        name="beyond the original length",
        status=INFO,
        says=("original length is 32", "towards 100"),
        pair=Pair(context={"max_seq_len": 100}),
    ),
    Case(
        check_id="V29",
        name="null keys",
        status=INFO,
        says=("eagle_config.x, target_hidden_size are null", "convert"),
        pair=Pair(draft={"target_hidden_size": None}, eagle={"x": None}),
        data={"null_keys": ["eagle_config.x", "target_hidden_size"]},
    ),
    Case(
        check_id="V30",
        name="norm of zeros",
        status=ERROR,
        says=("layers.0.hidden_norm.weight is all zeros", "download it again"),
        pair=Pair(change={"layers.0.hidden_norm.weight": torch.zeros(32)}),
    ),
    Case(
        check_id="V30",
        name="norm with NaN",
        status=ERROR,
        says=("norm.weight has 1 values of 32 that are NaN or infinite",),
        pair=Pair(change={"norm.weight": torch.ones(32).index_fill(0, torch.tensor(3), torch.nan)}),
    ),
    Case(
        check_id="V30",
        name="scale of zero",
        status=ERROR,
        says=("layers.0.mlp.down_proj.weight_scale_2 is 0, expected a scale above 0",),
        pair=nvfp4(change={"layers.0.mlp.down_proj.weight_scale_2": torch.tensor(0.0)}),
    ),
    Case(
        check_id="V30",
        name="deep: weights of zeros",
        status=ERROR,
        says=("layers.0.mlp.up_proj.weight is 0 everywhere", "noise"),
        pair=Pair(
            change={"layers.0.mlp.up_proj.weight": torch.zeros(48, 32)}, context={"deep": True}
        ),
    ),
    Case(
        check_id="V30",
        name="deep: infinite weight",
        status=ERROR,
        says=("fc.weight has 1 values of 3072 that are NaN or infinite",),
        pair=Pair(change={"fc.weight": infinite(32, 96)}, context={"deep": True}),
    ),
    Case(
        check_id="V30",
        name="deep: quantized",
        status=ABSENT,
        says=("7 are quantized", "float weights alone"),
        pair=dataclasses.replace(nvfp4(), context={"deep": True}),
    ),
    Case(
        check_id="V30",
        name="deep: healthy",
        status=PASSED,
        says=("weights loaded as float32, each stored tensor used once",),
        pair=Pair(draft=PRUNED, change={"d2t": OFFSETS, "t2d": T2D}, context={"deep": True}),
    ),
    Case(
        check_id="V30",
        name="not deep",
        status=ABSENT,
        says=("weights: they are not loaded (--deep)",),
        pair=Pair(),
    ),
    Case(
        check_id="V31",
        name="negative id",
        status=ERROR,
        says=("[-1, 3, 4] holds a negative id", "after the final norm"),
        pair=Pair(eagle={IDS: [-1, 3, 4]}),
    ),
    Case(
        check_id="V31",
        name="negative option",
        status=ERROR,
        says=("eagle3_layers_to_capture [-1, 3, 4]", "Set it to [1, 3, 4]"),
        pair=Pair(context={"layers_to_capture": [-1, 3, 4]}),
    ),
)
