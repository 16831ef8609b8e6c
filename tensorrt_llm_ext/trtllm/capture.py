# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Before the host builds a target: is its draft ours, and which states must be captured for it?

The host reads the captured layers from its own option only, and it reads a draft's folder with
remote code trusted; so the folder is judged here first, and the option is set from the draft.

Twice: when the host begins to load, on the settings that its executor keeps (`prepare_loader`),
and when the target is built, on what may be a deep copy of them (`prepare_draft`). The captured
states and the draft's cache follow the first; the second refuses what differs.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tensorrt_llm_ext.checkpoints.normalize import (
    DraftCheckpoint,
    draft_config,
    open_draft,
    read_document,
    refuse_code,
)
from tensorrt_llm_ext.checkpoints.store import open_store
from tensorrt_llm_ext.configs.boundaries import check_layers_to_capture
from tensorrt_llm_ext.configs.draft import DraftConfig
from tensorrt_llm_ext.configs.hf_target import target_config_from_hf
from tensorrt_llm_ext.configs.target import TargetConfig
from tensorrt_llm_ext.errors import ConfigError, ExtError, UnsupportedError
from tensorrt_llm_ext.planning.hosts import ERA_TITLES, judge_hosts
from tensorrt_llm_ext.planning.serve_config import layers_to_capture
from tensorrt_llm_ext.trtllm.host import host

_logger = logging.getLogger(__name__)
PLAN_ERAS: Final = {"E1": "1.2", "E2": "1.3", "E3": "1.4"}
TARGET_ARCHITECTURES: Final = ("DeepseekV3ForCausalLM", "KimiK25ForConditionalGeneration")
_OURS: Final = "llama3"  # upstream's name for drafts that are no Mistral
# Faults of a draft whose captured layers nothing names; the user's option decides them.
_OPEN: Final = ("V9", "V10")


@dataclass(frozen=True, kw_only=True)
class HostDraft:
    """An MLA draft that was judged and prepared for the host.

    Attributes:
        checkpoint: Its files in canonical terms.
        config: Its config, checked against the target.
        target: Its target's config.
        folder: Where it lies, as the host's settings name it.
        layers_to_capture: The host's ids of the captured layers, ascending.
        needs_logits: Whether somebody reads the draft's logits and not only their largest: guided
            decoding masks them.
    """

    checkpoint: DraftCheckpoint
    config: DraftConfig
    target: TargetConfig
    folder: str
    layers_to_capture: tuple[int, ...]
    needs_logits: bool = False


_prepared: dict[str, HostDraft] = {}


def prepared(folder: Any) -> HostDraft | None:
    """What `prepare_draft` found in a folder; None for a draft that is not ours, or not seen."""
    return None if folder is None else _prepared.get(_key(folder))


def prepare_loader(loader: Any, checkpoint_dir: Any) -> None:
    """Prepares the draft on the settings that a loader of the host shares with its executor.

    The loader builds the target from a deep copy of them, so what is set there is lost: the states
    of the host's own default layers would be captured, and a second cache made for the draft.

    Args:
        loader: The host's ModelLoader.
        checkpoint_dir: Folder of the target.
    """
    llm_args = getattr(loader, "llm_args", None)
    found = (getattr(loader, "spec_config", None), getattr(llm_args, "speculative_config", None))
    shared = {id(spec_config): spec_config for spec_config in found if spec_config is not None}
    if not shared or not os.path.isfile(os.path.join(checkpoint_dir, "config.json")):
        return
    target = read_document(open_store(os.fspath(checkpoint_dir)), "config.json")
    if not set(target.get("architectures") or ()) & set(TARGET_ARCHITECTURES):
        return  # another class builds it, and nothing of ours with it
    needs_logits = getattr(llm_args, "guided_decoding_backend", None) is not None
    for spec_config in shared.values():
        prepare_draft(spec_config, target, needs_logits=needs_logits)


def prepare_draft(
    spec_config: Any, target_pretrained_config: Any, *, needs_logits: bool | None = None
) -> HostDraft | None:
    """Judges the draft of a target and sets the host's options for it.

    Args:
        spec_config: The host's settings of speculation, or None; an MLA draft changes it in place.
        target_pretrained_config: The target's config as the host read it, or its document.
        needs_logits: See `HostDraft`; as it was found before when None.

    Returns:
        The draft; None when there is none, or the host's own path is the right one for it.

    Raises:
        CheckpointError: If the draft's folder brings code or cannot be read.
        ConfigError: If target and draft do not fit, or the user's `eagle3_layers_to_capture` names
            other layers than the draft (V12).
        UnsupportedError: If the draft, or what is asked of it, needs what this host cannot do.
    """
    if not _is_one_model(spec_config):
        return None
    folder = os.fspath(spec_config.speculative_model)
    checkpoint = _opened(folder)
    if checkpoint is None or not is_mla(checkpoint):
        _logger.info("the draft %s is no MLA draft: it takes the host's own path", folder)
        _prepared.pop(_key(folder), None)
        return None
    target = _target(target_pretrained_config)
    given = getattr(spec_config, "eagle3_layers_to_capture", None)
    config = _config(checkpoint, target, given)
    captured = tuple(layers_to_capture(target, config))
    _refuse_impossible(spec_config, target, config, checkpoint)
    _set_options(spec_config, captured, config.num_layers)
    known = prepared(folder)
    if needs_logits is None:
        needs_logits = known is not None and known.needs_logits
    draft = HostDraft(
        checkpoint=checkpoint,
        config=config,
        target=target,
        folder=folder,
        layers_to_capture=captured,
        needs_logits=needs_logits,
    )
    _prepared[_key(folder)] = draft
    _logger.info(
        "the draft %s captures after target layers %s (%s)",
        folder,
        list(captured),
        config.boundaries_evidence,
    )
    return draft


def is_mla(checkpoint: DraftCheckpoint) -> bool:
    """Whether a draft has latent attention, by its tensors."""
    return any(".kv_a_proj_with_mqa." in f".{name}" for name in checkpoint.tensors.refs)


def _opened(folder: str) -> DraftCheckpoint | None:
    """Opens a draft after its code was refused; None for one that is not ours to read."""
    store = open_store(folder)
    raw = read_document(store, "config.json")
    refuse_code(store, raw)
    try:
        return open_draft(store)
    except ExtError:
        if raw.get("kv_lora_rank"):
            raise
        _logger.info("the draft %s cannot be read here", folder, exc_info=True)
        return None  # the host reads more file formats, and this draft is not MLA


def _key(folder: Any) -> str:
    return os.path.abspath(str(folder))


def _is_one_model(spec_config: Any) -> bool:
    mode = getattr(spec_config, "spec_dec_mode", None)
    is_one_model = getattr(mode, "is_eagle3_one_model", None)
    if is_one_model is None or not is_one_model():
        return False
    is_ours = getattr(spec_config, "eagle3_model_arch", _OURS) == _OURS
    return is_ours and getattr(spec_config, "speculative_model", None) is not None


def _plain(value: Any) -> Any:
    """Configs within configs as plain data."""
    if hasattr(value, "to_dict"):
        value = value.to_dict()
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return value


def _target(pretrained_config: Any) -> TargetConfig:
    values = _plain(pretrained_config)
    if not isinstance(values, dict):
        values = _plain(dict(vars(pretrained_config)))
    return target_config_from_hf({k: v for k, v in values.items() if not k.startswith("_")})


def _config(checkpoint: DraftCheckpoint, target: TargetConfig, given: Any) -> DraftConfig:
    """Resolves the draft; the user's option decides only what its files leave open."""
    try:
        config = draft_config(checkpoint, target)
    except ConfigError as error:
        if not given or error.check not in _OPEN:
            raise
        return draft_config(checkpoint, target, boundaries=sorted(i + 1 for i in given))
    if given:
        check_layers_to_capture(config.boundaries, given)
    return config


def _refuse_impossible(
    spec_config: Any, target: TargetConfig, config: DraftConfig, checkpoint: DraftCheckpoint
) -> None:
    """Names what this era cannot do, before the host fails in its own words."""
    installed = host()
    label = f"TensorRT-LLM {installed.version} ({ERA_TITLES[PLAN_ERAS[installed.era]]})"
    for option in ("use_dynamic_tree", "eagle_choices"):
        if getattr(spec_config, option, None):
            raise UnsupportedError(
                f"{option} asks for a draft tree, but MLA attention has no kernel that takes a "
                "tree mask. Remove it; max_draft_len sets the length of the chain.",
                check="V26",
            )
    verdicts = {
        v.era: v for v in judge_hosts(target, config, checkpoint.quant, checkpoint.traits())
    }
    reasons = verdicts[PLAN_ERAS[installed.era]].extension_reasons
    if reasons:
        raise UnsupportedError(
            f"{label} cannot run the draft {checkpoint.files.folder}: {'; '.join(reasons)}. "
            "`trtllm-ext doctor TARGET DRAFT` lists the versions that can."
        )
    length = spec_config.max_draft_len
    if installed.era != "E3" and config.num_layers > length:
        raise UnsupportedError(
            f"The draft has {config.num_layers} layers, and {label} reserves cache for "
            f"max_draft_len = {length}. Raise max_draft_len to {config.num_layers}, or serve it "
            "with 1.4."
        )


def _set_options(spec_config: Any, captured: tuple[int, ...], num_layers: int) -> None:
    """Sets the captured layers, forgets what was computed from older ones, shares the cache."""
    spec_config.eagle3_layers_to_capture = set(captured)
    vars(spec_config).pop("num_capture_layers", None)
    if hasattr(spec_config, "_allow_separate_draft_kv_cache"):
        # Rows of target and draft have equal sizes, and one cache is what gets transferred,
        # reused and counted once.
        spec_config._allow_separate_draft_kv_cache = False
    if hasattr(spec_config, "_num_draft_hidden_layers"):
        # The host sets it on the copy, and reserves cache by the original.
        spec_config._num_draft_hidden_layers = num_layers
