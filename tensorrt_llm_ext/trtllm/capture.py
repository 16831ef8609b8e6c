# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""What must be known of a draft before its target is built.

The host decides which layers are captured by an option alone and never reads the draft for it; a
wrong set costs acceptance silently. Here the draft's files decide, and an option that says
otherwise is an error.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tensorrt_llm_ext.checkpoints.normalize import (
    DraftCheckpoint,
    draft_config,
    open_draft,
    read_document,
    refuse_code,
)
from tensorrt_llm_ext.checkpoints.store import open_store
from tensorrt_llm_ext.configs.draft import DraftConfig
from tensorrt_llm_ext.configs.hf_target import target_config_from_hf
from tensorrt_llm_ext.configs.target import TargetConfig
from tensorrt_llm_ext.errors import ConfigError, UnsupportedError
from tensorrt_llm_ext.planning.serve_config import layers_to_capture
from tensorrt_llm_ext.trtllm.host import host

_logger = logging.getLogger(__name__)
_LATENT: Final = (512, 64)  # what the host's attention kernels are made for
_MLA_TENSOR: Final = "kv_a_proj_with_mqa.weight"


@dataclass(frozen=True, kw_only=True)
class HostDraft:
    """A draft of ours, ready to be built.

    Attributes:
        folder: Where it lies.
        checkpoint: Its files.
        config: Its configuration.
        target: Its target's.
        layers_to_capture: The host's ids of the captured layers.
    """

    folder: Path
    checkpoint: DraftCheckpoint
    config: DraftConfig
    target: TargetConfig
    layers_to_capture: tuple[int, ...]


_prepared: dict[str, HostDraft | None] = {}


def prepare_draft(spec_config: Any, pretrained_config: Any) -> HostDraft | None:
    """Reads the draft that a speculative config names, and sets the layers to capture.

    Args:
        spec_config: The host's speculative config, or None.
        pretrained_config: The target's config as the host read it.

    Returns:
        The draft; None where there is none, or where it is none of ours (a Llama-style draft,
        another way of speculation), which the host then builds as ever.

    Raises:
        CheckpointError: If the folder brings code, or cannot be read.
        ConfigError: If draft, target and options contradict each other.
        UnsupportedError: If this host cannot run the draft; the message says why.
    """
    folder = getattr(spec_config, "speculative_model", None)
    mode = getattr(spec_config, "spec_dec_mode", None)
    if folder is None or mode is None or not mode.is_eagle3_one_model():
        return None
    key = str(folder)
    if key not in _prepared:
        _prepared[key] = _read(Path(folder), pretrained_config)
    draft = _prepared[key]
    if draft is not None:
        _check_host(draft, spec_config)
        _set_layers(draft, spec_config)
    return draft


def _read(folder: Path, pretrained_config: Any) -> HostDraft | None:
    store = open_store(folder)
    # Before the host reads it: it trusts a draft's folder with running code.
    refuse_code(store, read_document(store, "config.json"))
    checkpoint = open_draft(folder)
    if not any(name.endswith(_MLA_TENSOR) for name in checkpoint.tensors.refs):
        _logger.info("%s is no MLA draft: TensorRT-LLM builds it.", folder)
        return None
    target = target_config_from_hf(_document(pretrained_config))
    config = draft_config(checkpoint, target)
    return HostDraft(
        folder=folder,
        checkpoint=checkpoint,
        config=config,
        target=target,
        layers_to_capture=tuple(layers_to_capture(target, config)),
    )


def _document(pretrained_config: Any) -> Mapping[str, Any]:
    """The target's config as plain data; what the host computed from it is left out."""
    found = pretrained_config.to_dict()
    text = found.get("text_config")
    if text is not None and not isinstance(text, dict):
        found["text_config"] = text.to_dict()
    return {k: v for k, v in found.items() if k not in ("torch_dtype", "dtype")}


def _check_host(draft: HostDraft, spec_config: Any) -> None:
    """Refuses what no patch can give this host.

    Raises:
        UnsupportedError: With the reason.
    """
    config, mla = draft.config, draft.config.mla
    reasons = []
    if (mla.kv_lora_rank, mla.qk_rope_head_dim) != _LATENT:
        reasons.append(
            f"its latent rows are {mla.kv_lora_rank} + {mla.qk_rope_head_dim} wide, and the "
            f"attention kernels need {_LATENT[0]} + {_LATENT[1]}"
        )
    if mla.q_lora_rank is None:
        reasons.append("its q_lora_rank is null, and MLA then fuses its first projection wrongly")
    if getattr(spec_config, "use_dynamic_tree", False) or getattr(
        spec_config, "eagle_choices", None
    ):
        reasons.append("trees are asked for, and MLA kernels have no tree mask: draft linearly")
    slots = getattr(spec_config, "num_eagle_layers", None)
    if host().era != "1.4" and slots is not None and slots < config.num_layers:
        reasons.append(
            f"it has {config.num_layers} layers, and this version reserves cache for max_draft_len "
            f"({slots}) of them: raise max_draft_len"
        )
    if reasons:
        raise UnsupportedError(
            f"The draft {draft.folder} cannot run in TensorRT-LLM {host().version}: "
            f"{'; '.join(reasons)}. The embedded engine may run it (trtllm-ext generate)."
        )


def _set_layers(draft: HostDraft, spec_config: Any) -> None:
    """Writes the captured layers into the host's option.

    Raises:
        ConfigError: If the user's option says others (check "V12").
    """
    wanted = set(draft.layers_to_capture)
    given = spec_config.eagle3_layers_to_capture
    if given is not None and set(given) != wanted:
        raise ConfigError(
            f"eagle3_layers_to_capture is {sorted(given)}, but the draft {draft.folder} was "
            f"trained on layers {sorted(wanted)} (boundaries {list(draft.config.boundaries)}; "
            f"{draft.config.boundaries_evidence}). Other layers cost acceptance and show no error: "
            "leave the option out, or set it to these.",
            check="V12",
        )
    spec_config.eagle3_layers_to_capture = wanted
    vars(spec_config).pop("num_capture_layers", None)  # computed once, perhaps already
    # Equal latent rows: one pool for both, so that the draft's part is reused and transferred too.
    if hasattr(spec_config, "_allow_separate_draft_kv_cache"):
        spec_config._allow_separate_draft_kv_cache = False
    _logger.info("%s: captures after layers %s.", draft.folder, sorted(wanted))


__all__ = ["HostDraft", "prepare_draft"]
