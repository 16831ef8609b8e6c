# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""All that can be said of a target and a draft without running them.

Headers, JSON, tensors of at most 1 MiB and sampled rows are read, so a checkpoint of 600 GB takes
seconds, and one on the hub is judged without being downloaded.
"""

from __future__ import annotations

import logging
import math
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tensorrt_llm_ext.checkpoints.checks import run_checks, worst
from tensorrt_llm_ext.checkpoints.checks.base import CheckContext, Finding, HostFacts, Status
from tensorrt_llm_ext.checkpoints.headers import DTYPE_BITS
from tensorrt_llm_ext.checkpoints.normalize import (
    DraftCheckpoint,
    TargetCheckpoint,
    draft_config,
    open_draft,
    open_target,
    target_config,
)
from tensorrt_llm_ext.checkpoints.quantized import module_formats
from tensorrt_llm_ext.checkpoints.store import open_store
from tensorrt_llm_ext.configs.draft import DraftConfig
from tensorrt_llm_ext.configs.target import TargetConfig
from tensorrt_llm_ext.errors import ExtError
from tensorrt_llm_ext.planning.budget import StepBudget, kv_bytes_per_token, step_budget
from tensorrt_llm_ext.planning.hosts import HostVerdict, judge_hosts

_logger = logging.getLogger(__name__)

EXIT_ERROR: Final = 1
# Bytes per value of the latent cache row, by the declared algorithm.
_KV_BYTES: Final = {"FP8": 1, "NVFP4": 1}
_DEFAULT_KV_BYTES: Final = 2
# A finding about the files themselves, before any check can run.
OPENING: Final = "open"


@dataclass(frozen=True, kw_only=True, slots=True)
class DoctorOptions:
    """What the user wants beside the two checkpoints.

    Attributes:
        boundaries: Override of the captured boundaries.
        layers_to_capture: `eagle3_layers_to_capture` of a host config, to be compared.
        max_seq_len: Length to be served.
        max_draft_len: Draft tokens per round.
        use_tree: Whether tree drafting is asked for.
        deep: Whether weights may be loaded.
        host: The installed TensorRT-LLM; None when nobody probed.
        target_revision: Revision of a target on the hub.
        draft_revision: Revision of a draft on the hub.
    """

    boundaries: Sequence[int] | None = None
    layers_to_capture: Sequence[int] | None = None
    max_seq_len: int | None = None
    max_draft_len: int = 3
    use_tree: bool = False
    deep: bool = False
    host: HostFacts | None = None
    target_revision: str | None = None
    draft_revision: str | None = None


@dataclass(frozen=True, kw_only=True)
class DoctorReport:
    """What was found.

    Attributes:
        target: Folder or name of the target.
        draft: Folder or name of the draft.
        findings: Every check, in order.
        layout: The draft's layout and the marks it was known by.
        quantization: Of target and draft, in words.
        captured: Boundaries, the layers they follow and the evidence; None when unresolved.
        budget: Bytes that a draft step reads; None when the draft's shape is unknown.
        kv_bytes: KV cache bytes per token without and with the draft; None when unknown.
        hosts: Which versions of the host can serve the pair, from its sources.
    """

    target: str
    draft: str
    findings: tuple[Finding, ...]
    layout: dict[str, Any] = field(default_factory=dict)
    quantization: dict[str, str] = field(default_factory=dict)
    captured: dict[str, Any] | None = None
    budget: StepBudget | None = None
    kv_bytes: dict[str, int] | None = None
    hosts: tuple[HostVerdict, ...] = ()

    @property
    def status(self) -> Status:
        """ERROR or WARNING when a check found one, else PASSED."""
        found = worst(self.findings)
        return found if found in (Status.ERROR, Status.WARNING) else Status.PASSED

    @property
    def exit_code(self) -> int:
        """1 when a check found an error, else 0."""
        return EXIT_ERROR if self.status is Status.ERROR else 0

    def to_dict(self) -> dict[str, Any]:
        """Returns everything as plain data."""
        return {
            "target": self.target,
            "draft": self.draft,
            "status": self.status.value,
            "findings": [
                {
                    "id": finding.check_id,
                    "status": finding.status.value,
                    "message": finding.message,
                    "data": finding.data,
                }
                for finding in self.findings
            ],
            "layout": self.layout,
            "quantization": self.quantization,
            "captured": self.captured,
            "draft_step_bytes": None if self.budget is None else self.budget.to_dict(),
            "kv_bytes_per_token": self.kv_bytes,
            "hosts": [verdict.to_dict() for verdict in self.hosts],
        }


def examine(
    target: str | os.PathLike[str],
    draft: str | os.PathLike[str],
    options: DoctorOptions | None = None,
) -> DoctorReport:
    """Judges a pair of checkpoints.

    Args:
        target: Folder, or name on the hub.
        draft: Folder, or name on the hub.
        options: Further wishes.

    Returns:
        The report; an unreadable or unsafe checkpoint is a finding in it.

    Raises:
        CheckpointError: If a folder or a name does not exist, or the hub cannot be reached.
    """
    options = options or DoctorOptions()
    target_store = open_store(target, revision=options.target_revision)
    draft_store = open_store(draft, revision=options.draft_revision)
    try:
        opened_draft = open_draft(draft_store)
        opened_target = open_target(target_store)
    except ExtError as error:
        finding = Finding(check_id=error.check or OPENING, status=Status.ERROR, message=str(error))
        return DoctorReport(target=target_store.label, draft=draft_store.label, findings=(finding,))
    findings = run_checks(
        CheckContext(
            draft=opened_draft,
            target=opened_target,
            boundaries=options.boundaries,
            layers_to_capture=options.layers_to_capture,
            max_seq_len=options.max_seq_len,
            max_draft_len=options.max_draft_len,
            use_tree=options.use_tree,
            host=options.host,
            deep=options.deep,
        )
    )
    return DoctorReport(
        target=target_store.label,
        draft=draft_store.label,
        findings=findings,
        layout={
            "format": opened_draft.detection.format.name,
            "title": opened_draft.detection.format.title,
            "evidence": list(opened_draft.detection.evidence),
        },
        quantization={
            "target": opened_target.quant.describe(),
            "draft": opened_draft.quant.describe(),
        },
        **_derived(opened_draft, opened_target, options),
    )


def _derived(
    draft: DraftCheckpoint, target: TargetCheckpoint, options: DoctorOptions
) -> dict[str, Any]:
    """Facts that need the configs: captured layers, bytes, hosts. Findings say why some lack."""
    target_read = _read_target(target)
    draft_read = _read_draft(draft, target_read, options)
    if draft_read is None:
        return {}
    facts: dict[str, Any] = {
        "captured": {
            "boundaries": list(draft_read.boundaries),
            "after_layers": [b - 1 for b in draft_read.boundaries],
            "evidence": draft_read.boundaries_evidence,
        },
        "budget": step_budget(draft_read, _module_bits(draft)),
    }
    if target_read is not None:
        size = _KV_BYTES.get(target.quant.kv_cache_algo or "", _DEFAULT_KV_BYTES)
        facts["kv_bytes"] = {
            "bytes_per_value": size,
            "without_draft": kv_bytes_per_token(target_read, None, kv_dtype_bytes=size),
            "with_draft": kv_bytes_per_token(target_read, draft_read, kv_dtype_bytes=size),
        }
        facts["hosts"] = judge_hosts(target_read, draft_read, draft.quant, draft.traits())
    return facts


def _read_target(target: TargetCheckpoint) -> TargetConfig | None:
    try:
        return target_config(target)
    except ExtError as error:
        _logger.debug("target: %s", error)
        return None


def _read_draft(
    draft: DraftCheckpoint, target: TargetConfig | None, options: DoctorOptions
) -> DraftConfig | None:
    """The draft's config; beside the target where they fit, else alone."""
    for candidate in (target, None):
        try:
            return draft_config(draft, candidate, boundaries=options.boundaries)
        except ExtError as error:
            _logger.debug("draft: %s", error)
    return None


def _module_bits(draft: DraftCheckpoint) -> dict[str, float]:
    """Stored bits per value of each module, its scales included."""
    stored = draft.stored
    stored_bits: Counter[str] = Counter()
    for name, (dtype, shape) in stored.items():
        stored_bits[name.rpartition(".")[0]] += DTYPE_BITS.get(dtype, 0) * math.prod(shape)
    return {
        module: stored_bits[module] / math.prod(form.shape)
        for module, form in module_formats(stored).items()
        if math.prod(form.shape) and stored_bits[module]
    }
