# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Mends quantized drafts that ModelOpt's `export_speculative_decoding` wrote.

That exporter quantizes the draft inside the model that it was trained in, and what it writes still
speaks of that model: exclude patterns name modules of it (`eagle_module.fc`), or of the base model
(`model*`, which excludes every module that an engine calls `model.layers...`); config.json has the
metadata in a nested form without `quant_method`, which engines take for "not quantized", and no
`draft_vocab_size`; where a recipe quantized the base model's head, its packed bytes are copied
without their scales; and fused projections may have scales of their own. Weights are kept bit for
bit wherever they can be.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from tensorrt_llm_ext.checkpoints.io import has_file, read_json
from tensorrt_llm_ext.checkpoints.names import TensorMap
from tensorrt_llm_ext.checkpoints.normalize import (
    DraftCheckpoint,
    draft_config,
    open_draft,
    open_target,
    target_config,
)
from tensorrt_llm_ext.checkpoints.quantized import match_excludes, module_formats
from tensorrt_llm_ext.errors import CheckpointError, ConfigError
from tensorrt_llm_ext.planning.host_names import host_module_names, matches_exclude
from tensorrt_llm_ext.quantization.siblings import share_fp8_scales, share_nvfp4_scales
from tensorrt_llm_ext.quantization.tensors import Fp8Tensor, Nvfp4Tensor, QuantTensor
from tensorrt_llm_ext.quantizing.export import (
    ExportReport,
    read_tensors,
    unequal_siblings,
    write_draft,
)
from tensorrt_llm_ext.quantizing.packing import packed_from, quant_config_of, stored_tensors

_KV_SCALES: Final = (".k_scale", ".v_scale", ".k_bias", ".v_bias")
_QUANT_NAME: Final = "hf_quant_config.json"


@dataclass(frozen=True, kw_only=True)
class FixReport:
    """What was mended.

    Attributes:
        changes: One sentence per fault; empty when there was none.
        export: What was written.
    """

    changes: tuple[str, ...]
    export: ExportReport = field(repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Returns everything as plain data."""
        return {
            "out": str(self.export.out),
            "changes": list(self.changes),
            "exclude": list(self.export.exclude),
            "findings": [
                {"check": f.check_id, "status": f.status.value, "message": f.message}
                for f in self.export.findings
            ],
        }


def fix_export(
    draft: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    target: str | os.PathLike[str] | None = None,
    boundaries: Sequence[int] | None = None,
    overwrite: bool = False,
) -> FixReport:
    """Rewrites a quantized draft as a clean unified checkpoint.

    Args:
        draft: Folder of the export.
        out: The new folder.
        target: The draft's target: for the checks, and to tell default layer ids.
        boundaries: The captured boundaries, where the files do not say them.
        overwrite: Whether a checkpoint in `out` may be replaced.

    Returns:
        What was mended.

    Raises:
        ConfigError: If nothing in the draft is quantized, or its layers cannot be resolved.
        CheckpointError: If files cannot be read or written, or something cannot be mended.
    """
    source = open_draft(draft)
    target_files = None if target is None else open_target(target)
    changes: list[str] = []
    source = _without_leftovers(source, changes)
    config = draft_config(
        source,
        None if target_files is None else target_config(target_files),
        boundaries=boundaries,
    )
    tensors = read_tensors(source)
    packed = packed_from(tensors, tuple(module_formats(source.stored)))
    if not packed:
        raise ConfigError(
            f"No module of {source.files.folder} is quantized in NVFP4 or FP8, so there is no "
            "export to mend. To rewrite a float draft use `trtllm-ext convert`."
        )
    _check_scales(packed)
    packed |= _with_shared_scales(packed, changes)
    changes += _metadata_changes(source, tensors)
    floats = {name: t for name, t in tensors.items() if _owner(name) not in packed}
    quant = quant_config_of(packed, source.quant.kv_cache_algo, _QUANT_NAME)
    export = write_draft(
        source,
        config,
        stored_tensors(floats, packed),
        quant,
        out,
        producer=_producer(source),
        target=target_files,
        overwrite=overwrite,
    )
    return FixReport(changes=tuple(changes), export=export)


def _owner(name: str) -> str:
    return name.rpartition(".")[0]


def _without_leftovers(source: DraftCheckpoint, changes: list[str]) -> DraftCheckpoint:
    """Leaves out scales of a KV cache that MLA does not have, and a head without its scales."""
    dropped = [name for name in source.tensors.refs if name.endswith(_KV_SCALES)]
    if dropped:
        changes.append(
            f"{', '.join(dropped)} left out: MLA caches latents, not the expanded keys and values "
            "that these scales were measured on"
        )
    head = module_formats(source.stored).get("lm_head")
    if head is not None and head.kind == "unknown" and head.dtype in ("U8", "F8_E4M3", "I8"):
        if "d2t" in source.tensors.refs:
            raise CheckpointError(
                f"lm_head.weight is packed ({head.dtype}) without its scales, and with d2t it is "
                "the draft's own: its values are lost. Export the draft again with lm_head "
                "excluded."
            )
        dropped += [n for n in source.tensors.refs if _owner(n) == "lm_head"]
        changes.append(
            "lm_head.weight left out: it is the base model's head, packed, without the scales that "
            "give its bytes a meaning; the draft shares its target's"
        )
    refs = {name: ref for name, ref in source.tensors.refs.items() if name not in dropped}
    tensors = TensorMap(refs=refs, skipped=source.tensors.skipped)
    return dataclasses.replace(source, tensors=tensors)


def _check_scales(packed: Mapping[str, QuantTensor]) -> None:
    for name, part in packed.items():
        scale = part.global_scale if isinstance(part, Nvfp4Tensor) else part.scale
        for label, value in (("weight", scale), ("input", part.input_scale)):
            if value is not None and not (bool(torch.isfinite(value)) and float(value) > 0):
                raise CheckpointError(
                    f"The {label} scale of {name} is {float(value)}, so its values are lost: "
                    "calibration never reached it. Calibrate and export the draft again.",
                    check="V30",
                )


def _with_shared_scales(
    packed: Mapping[str, QuantTensor], changes: list[str]
) -> dict[str, QuantTensor]:
    mended: dict[str, QuantTensor] = {}
    for group in unequal_siblings(packed):
        parts = [packed[name] for name in group]
        nvfp4 = [part for part in parts if isinstance(part, Nvfp4Tensor)]
        fp8 = [part for part in parts if isinstance(part, Fp8Tensor)]
        if nvfp4 and fp8:
            raise CheckpointError(
                f"{' and '.join(group)} are in different formats, but engines run them as one "
                "product. Export the draft again with both alike.",
                check="V23",
            )
        shared = share_nvfp4_scales(nvfp4) if nvfp4 else share_fp8_scales(fp8)
        mended |= dict(zip(group, shared, strict=True))
        changes.append(
            f"{' and '.join(group)} now share their scales (the larger ones; the other part was "
            "rounded again), because engines run them as one product"
        )
    return mended


def _metadata_changes(source: DraftCheckpoint, tensors: Mapping[str, torch.Tensor]) -> list[str]:
    """What the rewritten metadata say otherwise."""
    changes = []
    section = source.raw.get("quantization_config")
    if not isinstance(section, Mapping):
        changes.append("quantization_config added to config.json")
    elif "quant_method" not in section:
        changes.append(
            "quantization_config rewritten: without quant_method engines take the draft for float"
        )
    modules = tuple(module_formats(source.stored))
    report = match_excludes(source.quant.exclude, modules)
    quantized = {n.removesuffix(".weight_scale") for n in tensors if n.endswith(".weight_scale")}
    changes += [_stale(pattern, sorted(quantized)) for pattern in report.stale]
    changes += [
        f"exclude pattern {pattern!r} renamed: it names the model of the training"
        for pattern in report.renamed
        if pattern not in report.matched[pattern]  # a module's own name is clean
    ]
    for pattern, hits in report.matched.items():
        if quantized.intersection(hits):
            changes.append(
                f"exclude pattern {pattern!r} dropped: it covers modules that are quantized, as "
                f"{sorted(quantized.intersection(hits))[0]}"
            )
    if "draft_vocab_size" not in source.config:
        changes.append("draft_vocab_size added to config.json")
    return changes


def _stale(pattern: str, quantized: Sequence[str]) -> str:
    """Why a pattern that names no module is dropped; `model*` is worse than useless."""
    names = (name for module in quantized for name in host_module_names(module))
    hit = next((name for name in names if matches_exclude(pattern, name)), None)
    reason = "it matches no module of the draft"
    if hit is not None:
        reason = (
            f"it is the base model's, and covers what an engine calls {hit}, which is quantized"
        )
    return f"exclude pattern {pattern!r} dropped: {reason}"


def _producer(source: DraftCheckpoint) -> dict[str, Any]:
    store = source.files.store
    document = read_json(store, _QUANT_NAME) if has_file(store, _QUANT_NAME) else {}
    producer = document.get("producer")
    return dict(producer) if isinstance(producer, Mapping) else {"name": "modelopt"}


__all__ = ["FixReport", "fix_export"]
