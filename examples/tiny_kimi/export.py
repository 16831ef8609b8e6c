# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Writes trained checkpoints as Hugging Face folders: the target in Kimi-K2.5's layout, the draft.

python examples/tiny_kimi/export.py --target-checkpoint runs/target.pt --out examples/tiny_kimi/target
python examples/tiny_kimi/export.py --draft-checkpoint runs/draft.pt --out examples/tiny_kimi/draft
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from model import CAPTURED_BOUNDARIES, DRAFT, TARGET, ModelConfig
from safetensors.torch import save_file
from torch import Tensor

HERE = Path(__file__).resolve().parent
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)
PAD_TOKEN_ID, BOS_TOKEN_ID, EOS_TOKEN_ID = 0, 1, 2
# A placeholder for an image; the model was never shown one.
MEDIA_TOKEN_ID = 895
_SPECIAL_IDS = {
    "pad_token_id": PAD_TOKEN_ID,
    "bos_token_id": BOS_TOKEN_ID,
    "eos_token_id": EOS_TOKEN_ID,
}
_DTYPE = {"torch_dtype": "bfloat16", "dtype": "bfloat16"}  # transformers 4 and 5

# The smallest tower that the layout can describe. Hosts read these keys before they skip images.
_VISION = {"hidden_size": 128, "intermediate_size": 128, "num_attention_heads": 2}
_PATCH, _MERGE = 14, (2, 2)


def _rope(config: ModelConfig) -> dict[str, Any]:
    """Rotary settings in the spelling of transformers 4 and in that of 5."""
    yarn = asdict(config.yarn)
    return {
        "rope_theta": config.rope_theta,
        "rope_scaling": {"type": "yarn", "rope_type": "yarn", **yarn},
        "rope_parameters": {"rope_type": "yarn", "rope_theta": config.rope_theta, **yarn},
    }


def _common(config: ModelConfig) -> dict[str, Any]:
    """What the configs of target and draft have in common."""
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_heads,
        "q_lora_rank": config.q_lora_rank,
        "kv_lora_rank": config.kv_lora_rank,
        "qk_nope_head_dim": config.qk_nope_head_dim,
        "qk_rope_head_dim": config.qk_rope_head_dim,
        "v_head_dim": config.v_head_dim,
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "rms_norm_eps": config.rms_norm_eps,
        "max_position_embeddings": config.max_position_embeddings,
        "tie_word_embeddings": False,
        "initializer_range": 0.02,
        "use_cache": True,
        **_rope(config),
        **_SPECIAL_IDS,
        **_DTYPE,
    }


def text_config(config: ModelConfig) -> dict[str, Any]:
    """Returns the config.json of the target without its wrapper: `DeepseekV3ForCausalLM`."""
    return {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        **_common(config),
        "rope_interleave": True,
        "first_k_dense_replace": config.first_k_dense_replace,
        "moe_layer_freq": 1,
        "moe_intermediate_size": config.moe_intermediate_size,
        "n_routed_experts": config.num_experts,
        "num_experts_per_tok": config.num_experts_per_tok,
        "n_shared_experts": config.num_shared_experts,
        "n_group": 1,
        "topk_group": 1,
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "norm_topk_prob": True,
        "routed_scaling_factor": config.routed_scaling_factor,
        "num_nextn_predict_layers": 0,
        "ep_size": 1,
    }


def _vision_config(config: ModelConfig) -> dict[str, Any]:
    """A tower of one layer, under the keys of Kimi's own code and of transformers 5."""
    return {
        "model_type": "kimi_k25_vision",
        "patch_size": _PATCH,
        "merge_kernel_size": list(_MERGE),
        "merge_type": "sd2_tpool",
        "video_attn_type": "spatial_temporal",
        "pos_emb_type": "divided_fixed",
        **{f"init_pos_emb_{axis}": n for axis, n in (("height", 4), ("width", 4), ("time", 4))},
        **{f"pos_emb_{axis}": n for axis, n in (("height", 4), ("width", 4), ("time", 4))},
        **{f"vt_{key}": value for key, value in _VISION.items()},
        "vt_num_hidden_layers": 1,
        **_VISION,
        "num_hidden_layers": 1,
        "hidden_act": "gelu_pytorch_tanh",
        "mm_projector_type": "patchmerger",
        "mm_hidden_size": _VISION["hidden_size"],
        "projector_hidden_act": "gelu",
        "projector_ln_eps": 1e-5,
        "text_hidden_size": config.hidden_size,
    }


def target_config(config: ModelConfig) -> dict[str, Any]:
    """Returns config.json of the target in the wrapper of Kimi-K2.5."""
    return {
        "architectures": ["KimiK25ForConditionalGeneration"],
        "model_type": "kimi_k25",
        "text_config": text_config(config),
        "vision_config": _vision_config(config),
        "projection_hidden_size": _VISION["hidden_size"],
        "projection_layer_norm_eps": 1e-5,
        "media_placeholder_token_id": MEDIA_TOKEN_ID,
        "use_unified_vision_chunk": True,
        "video_placeholder": "<|kimi_k25_video_placeholder|>",
        "tie_word_embeddings": False,
        **_SPECIAL_IDS,
        **_DTYPE,
    }


def draft_config(config: ModelConfig, boundaries: tuple[int, ...]) -> dict[str, Any]:
    """Returns config.json of the draft.

    `eagle_aux_hidden_state_layer_ids` has the meaning it has in TensorRT-LLM (boundary - 1);
    `trtllm_ext_aux_boundaries` says the same without a convention to guess.
    """
    flags = {"fc_norm": True, "norm_output": True}
    return {
        "architectures": ["Eagle3DeepseekV2ForCausalLM"],
        "model_type": "kimi_k2",
        **_common(config),
        "draft_vocab_size": config.vocab_size,
        "target_hidden_size": config.hidden_size,
        "num_aux_hidden_states": len(boundaries),
        "trtllm_ext_aux_boundaries": list(boundaries),
        "eagle_config": {
            "eagle_aux_hidden_state_layer_ids": [b - 1 for b in boundaries],
            "use_aux_hidden_state": True,
            "use_input_layernorm_in_first_layer": True,
            "use_last_layernorm": True,
            "use_mtp_layernorm": False,
            **flags,
        },
        **flags,
    }


def _experts(prefix: str, moe: Mapping[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """Renames the parameters of one MoE, splitting the stacked experts."""
    tensors = {
        f"{prefix}gate.weight": moe["gate"],
        # float32 in Kimi's files too: the choice of experts hangs on small differences.
        f"{prefix}gate.e_score_correction_bias": moe["bias"].float(),
    }
    for expert in range(config.num_experts):
        gate, up = moe["wgu"][expert].chunk(2, 0)
        parts = {"gate_proj": gate, "up_proj": up, "down_proj": moe["wd"][expert]}
        for part, weight in parts.items():
            tensors[f"{prefix}experts.{expert}.{part}.weight"] = weight
    for part in ("gate_proj", "up_proj", "down_proj"):
        tensors[f"{prefix}shared_experts.{part}.weight"] = moe[f"shared.{part}.weight"]
    return tensors


def text_tensors(state: Mapping[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """Renames the parameters of `model.Target` to those of `DeepseekV3ForCausalLM`."""
    tensors = {"model.embed_tokens.weight": state["embed.weight"]}
    for index in range(config.num_layers):
        old, new = f"layers.{index}.", f"model.layers.{index}."
        own = {name.removeprefix(old): t for name, t in state.items() if name.startswith(old)}
        is_moe = index >= config.first_k_dense_replace
        moe = {n.removeprefix("mlp."): t for n, t in own.items() if n.startswith("mlp.") and is_moe}
        tensors |= {new + n: t for n, t in own.items() if n.removeprefix("mlp.") not in moe}
        if moe:
            tensors |= _experts(f"{new}mlp.", moe, config)
    tensors["model.norm.weight"] = state["norm.weight"]
    tensors["lm_head.weight"] = state["head.weight"]
    return tensors


def _vision_tensors(config: ModelConfig) -> dict[str, Tensor]:
    """A few tensors of the tower and the projector, so that readers meet their names."""
    width = _VISION["hidden_size"]
    merged = width * _MERGE[0] * _MERGE[1]
    return {
        "vision_tower.patch_embed.proj.weight": torch.zeros(width, 3, _PATCH, _PATCH),
        "vision_tower.patch_embed.proj.bias": torch.zeros(width),
        "mm_projector.pre_norm.weight": torch.ones(width),
        "mm_projector.pre_norm.bias": torch.zeros(width),
        "mm_projector.proj.2.weight": torch.zeros(config.hidden_size, merged),
        "mm_projector.proj.2.bias": torch.zeros(config.hidden_size),
    }


def draft_tensors(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Renames the parameters of `model.Draft`; the embedding is the target's and not stored."""
    outside = ("fc.", "fc_norm.", "norm.", "lm_head.")
    return {n if n.startswith(outside) else f"layers.0.{n}": t for n, t in state.items()}


def _rounded(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    keep = "e_score_correction_bias"
    return {n: t if n.endswith(keep) else t.to(torch.bfloat16) for n, t in tensors.items()}


def _generation_config() -> dict[str, Any]:
    return {**_SPECIAL_IDS, "do_sample": False, "max_new_tokens": 128}


def _preprocessor_config() -> dict[str, Any]:
    """What image readers of Kimi-K2.5 ask for; images are not supported by this model."""
    return {
        "image_processor_type": "KimiK25VisionProcessor",
        "media_proc_cfg": {
            "in_patch_limit": 16,
            "patch_size": _PATCH,
            "merge_kernel_size": _MERGE[0],
            "image_mean": [0.5, 0.5, 0.5],
            "image_std": [0.5, 0.5, 0.5],
            "fixed_output_tokens": None,
        },
    }


def write_folder(
    folder: Path, tensors: Mapping[str, Tensor], documents: Mapping[str, Mapping[str, Any]]
) -> None:
    """Writes weights, in one file and in the order given, and JSON documents.

    Args:
        folder: Created, or its files replaced.
        tensors: By the names they are to have.
        documents: By file name.
    """
    folder.mkdir(parents=True, exist_ok=True)
    owned = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    # transformers refuses files without this entry.
    save_file(owned, folder / "model.safetensors", metadata={"format": "pt"})
    for name, document in documents.items():
        text = json.dumps(document, indent=2) + "\n"
        (folder / name).write_text(text, encoding="utf-8", newline="\n")


def copy_tokenizer(folder: Path) -> None:
    """Copies the tokenizer's files beside the weights."""
    for name in TOKENIZER_FILES:
        shutil.copyfile(HERE / name, folder / name)


def export_target(state: Mapping[str, Tensor], folder: Path, config: ModelConfig = TARGET) -> None:
    """Writes the target.

    Args:
        state: `state_dict()` of `model.Target`.
        folder: Created, or its weights replaced.
        config: Sizes.
    """
    text = {f"language_model.{n}": t for n, t in text_tensors(state, config).items()}
    documents = {
        "config.json": target_config(config),
        "generation_config.json": _generation_config(),
        "preprocessor_config.json": _preprocessor_config(),
    }
    write_folder(folder, _rounded({**text, **_vision_tensors(config)}), documents)
    copy_tokenizer(folder)


def export_draft(
    state: Mapping[str, Tensor],
    folder: Path,
    config: ModelConfig = DRAFT,
    boundaries: tuple[int, ...] = CAPTURED_BOUNDARIES,
) -> None:
    """Writes the draft.

    Args:
        state: `state_dict()` of `model.Draft`.
        folder: Created, or its weights replaced.
        config: Sizes.
        boundaries: The captured boundaries, in the order of fc's columns.
    """
    tensors = _rounded(draft_tensors(state))
    write_folder(folder, tensors, {"config.json": draft_config(config, boundaries)})
    copy_tokenizer(folder)


def load_state(checkpoint: Path) -> dict[str, Tensor]:
    """Reads the parameters of a training checkpoint; nothing in it is executed."""
    return torch.load(checkpoint, map_location="cpu", weights_only=True)["net"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--target-checkpoint", type=Path, help="written by train_target.py")
    which.add_argument("--draft-checkpoint", type=Path, help="written by train_draft.py")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    options = parser.parse_args()
    if options.target_checkpoint is not None:
        export_target(load_state(options.target_checkpoint), options.out)
    else:
        export_draft(load_state(options.draft_checkpoint), options.out)
    size = sum(file.stat().st_size for file in options.out.iterdir())
    print(f"{options.out}: {size / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
