# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Writes trained checkpoints as Hugging Face folders: the target in Kimi-K2.5's layout, the draft.

cd examples/tiny_kimi
python export.py --target-checkpoint runs/target.pt --out target
python export.py --draft-checkpoint runs/draft.pt --out draft
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
from hf_names import WRAPPER_PREFIX, draft_to_hf, target_to_hf
from model import CAPTURED_BOUNDARIES, DRAFT, TARGET, ModelConfig
from safetensors.torch import save_file
from torch import Tensor
from vision import preprocessor_config, vision_config, vision_tensors, wrapper_config

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


def target_config(config: ModelConfig) -> dict[str, Any]:
    """Returns config.json of the target in the wrapper of Kimi-K2.5."""
    return {
        "architectures": ["KimiK25ForConditionalGeneration"],
        "model_type": "kimi_k25",
        "text_config": text_config(config),
        "vision_config": vision_config(config.hidden_size),
        **wrapper_config(),
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


def _rounded(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rounds to bfloat16, all but the routers' biases: small differences choose the experts."""
    keep = "e_score_correction_bias"
    return {n: t if n.endswith(keep) else t.to(torch.bfloat16) for n, t in tensors.items()}


def _generation_config() -> dict[str, Any]:
    return {**_SPECIAL_IDS, "do_sample": False, "max_new_tokens": 128}


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
    path = folder / "model.safetensors"
    save_file(owned, path, metadata={"format": "pt"})  # transformers refuses files without this
    path.chmod(0o644)  # safetensors writes it for its owner alone
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
    text = {f"{WRAPPER_PREFIX}{n}": t for n, t in target_to_hf(state, config).items()}
    documents = {
        "config.json": target_config(config),
        "generation_config.json": _generation_config(),
        "preprocessor_config.json": preprocessor_config(),
    }
    write_folder(folder, _rounded({**text, **vision_tensors(config.hidden_size)}), documents)
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
    tensors = _rounded(draft_to_hf(state))
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
