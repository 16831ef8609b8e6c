# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Writes a quantized draft as one unified checkpoint, and judges it before it gets its name.

ModelOpt's exporter writes a config of its own class; here config.json says everything that the
source said (layer ids, flags, `draft_vocab_size`), in the spelling of `convert`, and the
quantization metadata are written from the tensors, with names that match them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch

from tensorrt_llm_ext.checkpoints.carried import carry_files
from tensorrt_llm_ext.checkpoints.checks import run_checks
from tensorrt_llm_ext.checkpoints.checks.base import CheckContext, Finding, Status
from tensorrt_llm_ext.checkpoints.normalize import (
    DraftCheckpoint,
    TargetCheckpoint,
    draft_config,
    open_draft,
    target_config,
)
from tensorrt_llm_ext.checkpoints.output_folder import OutputFolder
from tensorrt_llm_ext.checkpoints.receiver_config import receiver_config
from tensorrt_llm_ext.checkpoints.receiver_quant import quant_metadata
from tensorrt_llm_ext.checkpoints.receivers import receiver_named
from tensorrt_llm_ext.checkpoints.source import SafetensorsSource
from tensorrt_llm_ext.checkpoints.writer import save_checkpoint
from tensorrt_llm_ext.configs.draft import DraftConfig
from tensorrt_llm_ext.configs.hf_keys import declared_dtype
from tensorrt_llm_ext.configs.quant import QuantConfig
from tensorrt_llm_ext.errors import CheckpointError
from tensorrt_llm_ext.quantization.siblings import sibling_groups
from tensorrt_llm_ext.quantization.tensors import Nvfp4Tensor, QuantTensor

_QUANT_NAME: Final = "hf_quant_config.json"
_LAYOUT: Final = "modelopt"  # bare canonical names, as ModelOpt's unified checkpoints have
_MAX_SHARD_BYTES: Final = 5 << 30
STORED_DTYPES: Final[Mapping[torch.dtype, str]] = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.uint8: "U8",
    torch.bool: "BOOL",
    torch.int64: "I64",
    torch.int32: "I32",
}


@dataclass(frozen=True, kw_only=True)
class ExportReport:
    """What was written.

    Attributes:
        out: The folder.
        files: Names of its files.
        nbytes: Size of its tensors.
        algo: What the metadata say, for people.
        exclude: Modules declared as not quantized.
        findings: The checks of what was written.
    """

    out: Path
    files: tuple[str, ...]
    nbytes: int
    algo: str
    exclude: tuple[str, ...]
    findings: tuple[Finding, ...] = field(repr=False)

    @property
    def errors(self) -> tuple[Finding, ...]:
        """Checks that fail."""
        return tuple(f for f in self.findings if f.status is Status.ERROR)


def read_tensors(draft: DraftCheckpoint) -> dict[str, torch.Tensor]:
    """Reads every tensor of a draft, by canonical name, in the dtypes that it is stored in.

    Raises:
        CheckpointError: If a file cannot be read, or the draft is on the hub.
    """
    source = SafetensorsSource(draft.files, draft.tensors, label="draft")
    return {name: source.peek(name) for name in draft.tensors.refs}


def float_dtype(draft: DraftCheckpoint, tensors: Mapping[str, torch.Tensor]) -> str:
    """Name of the dtype of a draft's float weights, for instance "bfloat16"."""
    stored = str(tensors["norm.weight"].dtype).removeprefix("torch.")
    return declared_dtype(draft.raw) or stored


def write_draft(
    source: DraftCheckpoint,
    config: DraftConfig,
    tensors: Mapping[str, torch.Tensor],
    quant: QuantConfig,
    out: str | os.PathLike[str],
    *,
    producer: Mapping[str, Any],
    target: TargetCheckpoint | None = None,
    overwrite: bool = False,
) -> ExportReport:
    """Writes a draft with quantized tensors and puts it through every check.

    Args:
        source: The draft that it was made from: its other settings and its tokenizer travel along.
        config: The draft.
        tensors: What to store, by canonical name.
        quant: What the metadata are to say.
        out: The new folder. Nothing stays there unless everything was verified.
        producer: `{"name": ..., "version": ...}` of what quantized it.
        target: For the checks.
        overwrite: Whether a checkpoint in `out` may be replaced.

    Raises:
        CheckpointError: If the disk refuses, or the result fails a check that its source passes.
        ConfigError: If metadata cannot tell what is quantized from what is not.
    """
    receiver = receiver_named(_LAYOUT)
    stored = {name: (STORED_DTYPES[t.dtype], tuple(t.shape)) for name, t in tensors.items()}
    sections = {"producer": dict(producer)}
    document = receiver_config(receiver, config, source.config, dtype=float_dtype(source, tensors))
    metadata = quant_metadata(receiver, quant, stored, sections, config.num_layers)
    extra = {}
    if metadata.quantization_config is not None:
        document["quantization_config"] = metadata.quantization_config
    if metadata.hf_quant_config is not None:
        extra[_QUANT_NAME] = metadata.hf_quant_config
    place = OutputFolder(out, source.files.store.folder, overwrite=overwrite)
    with place as folder:
        save_checkpoint(
            folder, document, tensors, extra_json=extra, max_shard_bytes=_MAX_SHARD_BYTES
        )
        try:
            carry_files(source.files.store, folder)
        except OSError as error:
            raise CheckpointError(f"{folder} cannot be written: {error}.") from None
        findings = _judge(source, open_draft(folder), config, target)
    return ExportReport(
        out=Path(out),
        files=place.files,
        nbytes=sum(tensor.nbytes for tensor in tensors.values()),
        algo=quant.describe(),
        exclude=metadata.exclude,
        findings=findings,
    )


def _judge(
    source: DraftCheckpoint,
    written: DraftCheckpoint,
    config: DraftConfig,
    target: TargetCheckpoint | None,
) -> tuple[Finding, ...]:
    """Runs every check on the new files; refuses an error that the source does not have."""
    again = draft_config(written, None if target is None else target_config(target))
    if again.boundaries != config.boundaries:
        raise CheckpointError(
            f"The quantized draft reads back with boundaries {list(again.boundaries)}, expected "
            f"{list(config.boundaries)}. Report this; nothing was kept."
        )
    findings = run_checks(CheckContext(draft=written, target=target))
    known = {
        f.check_id
        for f in run_checks(CheckContext(draft=source, target=target, boundaries=config.boundaries))
        if f.status is Status.ERROR
    }
    new = [f for f in findings if f.status is Status.ERROR and f.check_id not in known]
    if new:
        listing = "; ".join(f"{f.check_id}: {f.message}" for f in new)
        raise CheckpointError(
            f"The quantized draft fails checks that its source passes: {listing}",
            check=new[0].check_id,
        )
    return findings


def unequal_siblings(packed: Mapping[str, QuantTensor]) -> tuple[tuple[str, ...], ...]:
    """Returns the groups of modules that engines fuse and whose scales differ."""
    return tuple(
        group
        for group in sibling_groups(tuple(packed))
        if not _is_shared([packed[n] for n in group])
    )


def _is_shared(parts: Sequence[QuantTensor]) -> bool:
    first, *others = ((_weight_scale(part), part.input_scale) for part in parts)
    return all(_same(first[0], weight) and _same(first[1], inputs) for weight, inputs in others)


def _weight_scale(part: QuantTensor) -> torch.Tensor:
    return part.global_scale if isinstance(part, Nvfp4Tensor) else part.scale


def _same(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    if a is None or b is None:
        return a is b
    return bool(torch.equal(a, b))
