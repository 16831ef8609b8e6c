# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Check of values: V30. Small tensors are always read; all others with `deep`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import Final

import torch

from tensorrt_llm_ext.checkpoints.checks.base import CheckContext, Finding
from tensorrt_llm_ext.checkpoints.checks.examination import DRAFT, Examination
from tensorrt_llm_ext.checkpoints.checks.rules import check, error, not_checked, passed
from tensorrt_llm_ext.checkpoints.normalize import DraftCheckpoint
from tensorrt_llm_ext.checkpoints.rows import MAX_SMALL_BYTES, read_tensor
from tensorrt_llm_ext.checkpoints.source import SafetensorsSource
from tensorrt_llm_ext.checkpoints.store import map_files
from tensorrt_llm_ext.configs.draft import DraftConfig
from tensorrt_llm_ext.models.blocks import TorchBlocks
from tensorrt_llm_ext.models.eagle3 import Eagle3Draft

_FLOATS: Final = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}
# What multiplies weights or activations: without a sign, and never zero.
_SCALES: Final = (
    ".weight_scale",
    ".weight_scale_2",
    ".weight_scale_inv",
    ".input_scale",
    ".weight_global_scale",
    ".input_global_scale",
    ".k_scale",
    ".v_scale",
)
_MAX_LISTED: Final = 6


@check("V30", "loaded values", needs=(DRAFT,))
def loaded_values(ctx: CheckContext, found: Examination) -> Iterable[Finding]:
    """Norms and scales are sound; with `deep`, every weight is, and none stays uninitialised."""
    if found.draft is None:
        return
    names = _small(ctx.draft)
    faults = map_files(ctx.draft.files.store, lambda n: _damage_of_small(ctx.draft, n), names)
    damaged = [fault for fault in faults if fault]
    if damaged:
        yield error(
            "V30",
            f"{_shown(damaged)}. The export failed or the file is damaged: download it again, and "
            "compare its hash with the publisher's.",
            damaged=damaged,
        )
    elif names:
        yield passed("V30", f"{len(names)} norms and scales are finite and not zero.")
    reason = _why_not_deep(ctx)
    if reason:
        yield not_checked("V30", f"weights: {reason}")
        return
    if not damaged:
        yield from _deep(ctx.draft, found.draft)


def _shown(faults: list[str]) -> str:
    more = f"; and {len(faults) - _MAX_LISTED} more" if len(faults) > _MAX_LISTED else ""
    return "; ".join(faults[:_MAX_LISTED]) + more


def _small(draft: DraftCheckpoint) -> list[str]:
    """Canonical names of the norms and of the scales that are no larger."""
    entries = draft.files.entries
    return [
        name
        for name, ref in draft.tensors.refs.items()
        if entries[ref.name].nbytes <= MAX_SMALL_BYTES
        and entries[ref.name].dtype in _FLOATS
        and (name.endswith("norm.weight") or "fc_norm." in name or name.endswith(_SCALES))
    ]


def _damage_of_small(draft: DraftCheckpoint, name: str) -> str:
    """What is wrong with a small tensor; empty when nothing is."""
    values = read_tensor(draft.files, draft.tensors.refs[name].name).double()
    fault = _damage(values)
    if not fault and name.endswith(_SCALES) and bool((values <= 0).any()):
        fault = f"is {values.min().item():g}, expected a scale above 0"
    if not fault and bool((values == 0).all()):
        fault = "is all zeros"
    return f"{name} {fault}" if fault else ""


def _damage(values: torch.Tensor) -> str:
    if not values.numel():
        return "is empty"
    low, high = (float(v) for v in torch.aminmax(values))
    if math.isfinite(low) and math.isfinite(high):
        return ""
    bad = int((~torch.isfinite(values)).sum())
    return f"has {bad} values of {values.numel()} that are NaN or infinite"


def _why_not_deep(ctx: CheckContext) -> str:
    """Why weights are not loaded; empty when they are."""
    if not ctx.deep:
        return "they are not loaded (--deep)"
    if ctx.draft.files.store.folder is None:
        return f"{ctx.draft.files.store.label} is remote; download it to have its weights loaded"
    entries, refs = ctx.draft.files.entries, ctx.draft.tensors.refs
    packed = [
        n for n, r in refs.items() if n.endswith(".weight") and entries[r.name].dtype not in _FLOATS
    ]
    packed += [n for n in refs if n.endswith(".weight_packed")]
    if packed:
        return (
            f"{len(packed)} are quantized, {packed[0]} as {entries[refs[packed[0]].name].dtype}; "
            "float weights alone are loaded"
        )
    return ""


class _InspectedSource:
    """Implements `WeightSource`: looks at each tensor of a checkpoint while it is handed out."""

    def __init__(self, source: SafetensorsSource) -> None:
        self._source = source
        self.faults: list[str] = []

    def has(self, name: str) -> bool:
        """See `WeightSource.has`."""
        return self._source.has(name)

    def take(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """See `WeightSource.take`."""
        tensor = self._source.take(name, shape)
        fault = _damage(tensor)
        if not fault and tensor.dim() >= 2 and bool((tensor == tensor.flatten()[0]).all()):
            fault = f"is {float(tensor.flatten()[0]):g} everywhere"
        if fault:
            self.faults.append(f"{name} {fault}")
        return tensor


def _deep(draft: DraftCheckpoint, config: DraftConfig) -> Iterable[Finding]:
    """Loads the draft over NaN and looks at what came of it."""
    source = SafetensorsSource(draft.files, draft.tensors, label="draft")
    fc = draft.tensors.refs.get("fc.weight", next(iter(draft.tensors.refs.values())))
    dtype = _FLOATS.get(draft.files.entries[fc.name].dtype, torch.float32)
    blocks = TorchBlocks(torch.device("cpu"), dtype)
    # The rotary table has no tensors, and takes seconds at full length.
    rope = dataclasses.replace(config.mla.rope, max_position_embeddings=1)
    mla = dataclasses.replace(config.mla, rope=rope)
    model = Eagle3Draft(dataclasses.replace(config, mla=mla), blocks, 0)
    with torch.no_grad():
        for weight in model.parameters():
            weight.fill_(math.nan)
    inspected = _InspectedSource(source)
    model.load_weights(inspected)
    if source.has("t2d"):
        source.skip("t2d")
    source.finish()
    faults = inspected.faults or [
        f"{name} {fault}, as it was created"
        for name, weight in model.named_parameters()
        if (fault := _damage(weight))
    ]
    if model.d2t is not None and not torch.equal(model.d2t, source.peek("d2t").to(torch.int64)):
        faults.append("d2t was not applied")
    if faults:
        yield error(
            "V30",
            f"{_shown(faults)}. The draft would propose noise: download it again, and compare its "
            "hash with the publisher's.",
            damaged=faults,
        )
        return
    count = sum(weight.numel() for weight in model.parameters())
    yield passed(
        "V30",
        f"{count} weights loaded as {str(dtype).removeprefix('torch.')}, each stored tensor used "
        "once; none is NaN, infinite or left as it was created.",
        weights=count,
    )
