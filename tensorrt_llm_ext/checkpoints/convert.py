# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Any draft in, the files that one receiver wants out, and proof that it is the same draft.

Tensors are copied by byte ranges, never loaded. What was written is read back like a stranger's
checkpoint and compared with the source before the folder gets its name.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tensorrt_llm_ext.checkpoints.canonical import (
    TensorDigest,
    canonical_hash,
    canonical_settings,
    combined_hash,
    is_redundant,
    tensor_digests,
)
from tensorrt_llm_ext.checkpoints.carried import carry_files
from tensorrt_llm_ext.checkpoints.checks import run_checks
from tensorrt_llm_ext.checkpoints.checks.base import CheckContext, Finding, Status
from tensorrt_llm_ext.checkpoints.convert_plan import TensorChange, TensorPlan, TensorPlanner
from tensorrt_llm_ext.checkpoints.draft_vocabulary import DraftVocabulary, VocabularyChoice
from tensorrt_llm_ext.checkpoints.io import has_file, read_json
from tensorrt_llm_ext.checkpoints.normalize import (
    DraftCheckpoint,
    TargetCheckpoint,
    draft_config,
    open_draft,
)
from tensorrt_llm_ext.checkpoints.output_folder import CONFIG_NAME, OutputFolder
from tensorrt_llm_ext.checkpoints.receiver_config import EAGLE_KEY, changed_keys, receiver_config
from tensorrt_llm_ext.checkpoints.receiver_quant import (
    QuantMetadata,
    linear_modules,
    quant_metadata,
)
from tensorrt_llm_ext.checkpoints.receivers import Receiver, limits_of, receiver_named
from tensorrt_llm_ext.checkpoints.stream import write_safetensors
from tensorrt_llm_ext.configs.draft import DraftConfig
from tensorrt_llm_ext.configs.hf_draft import IDENTITY_D2T_KEY
from tensorrt_llm_ext.configs.hf_keys import declared_dtype
from tensorrt_llm_ext.configs.target import TargetConfig
from tensorrt_llm_ext.errors import CheckpointError, ConfigError

__all__ = ["ConvertOptions", "ConvertReport", "canonical_hash", "convert_draft"]

WEIGHTS_NAME: Final = "model.safetensors"
QUANT_NAME: Final = "hf_quant_config.json"
_DTYPES: Final[Mapping[str, str]] = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
}

Progress = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True)
class ConvertOptions:
    """Less common wishes.

    Attributes:
        num_target_layers: Number of target layers, where no target is given and layer ids need it.
        target_checkpoint: The target's files: to compare its embedding, and to take its head where
            the draft has none but needs one.
        drop_embedding: Leave the draft's own embedding out; compared when there is a target.
        overwrite: Replace a checkpoint that the output folder holds.
    """

    num_target_layers: int | None = None
    target_checkpoint: TargetCheckpoint | None = None
    drop_embedding: bool = False
    overwrite: bool = False


@dataclass(frozen=True, kw_only=True)
class ConvertReport:
    """What was changed, and that it was checked.

    Attributes:
        receiver: Who the files are for.
        out: The folder written.
        layout: The layout that the source has.
        boundaries: The captured boundaries.
        boundaries_evidence: How they were resolved.
        ids_before: The layer ids of the source, or None.
        ids_after: The layer ids written.
        tensors: What became of each tensor that was not copied under its own name.
        num_tensors: Number of tensors written.
        nbytes: Size of their data.
        config: Keys `added`, `changed` and `removed` in config.json.
        exclude: Modules declared as not quantized, in the receiver's names.
        vocabulary: The reduced vocabulary that was chosen, or None.
        files: The files written.
        warnings: What the receiver does differently, or not at all.
        notes: What to do besides.
        findings: The checks of what was written.
        canonical_hash: Hash of the draft written (`checkpoints.canonical`).
        is_same_draft: Whether the source has the same hash: nothing but the layout changed.
    """

    receiver: str
    out: Path
    layout: str
    boundaries: tuple[int, ...]
    boundaries_evidence: str
    ids_before: tuple[int, ...] | None
    ids_after: tuple[int, ...]
    tensors: tuple[TensorChange, ...]
    num_tensors: int
    nbytes: int
    config: Mapping[str, Any]
    exclude: tuple[str, ...]
    vocabulary: VocabularyChoice | None
    files: tuple[str, ...]
    warnings: tuple[str, ...]
    notes: tuple[str, ...]
    findings: tuple[Finding, ...] = field(repr=False)
    canonical_hash: str
    is_same_draft: bool

    @property
    def errors(self) -> tuple[Finding, ...]:
        """Checks that fail, in the source too: a conversion does not mend weights."""
        return tuple(f for f in self.findings if f.status is Status.ERROR)

    def to_dict(self) -> dict[str, Any]:
        """Returns everything as plain data."""
        simple = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        vocabulary = self.vocabulary
        return simple | {
            "out": str(self.out),
            "tensors": [dataclasses.asdict(change) for change in self.tensors],
            "vocabulary": None if vocabulary is None else vocabulary.to_dict(),
            "findings": [
                {"check": f.check_id, "status": f.status.value, "message": f.message}
                for f in self.findings
            ],
        }


def convert_draft(
    source: DraftCheckpoint,
    out: str | os.PathLike[str],
    *,
    to: str,
    target: TargetConfig | None = None,
    boundaries: Sequence[int] | None = None,
    draft_vocab: DraftVocabulary | None = None,
    progress: Progress | None = None,
    options: ConvertOptions | None = None,
) -> ConvertReport:
    """Writes a draft for a receiver (DESIGN section 6) and verifies what was written.

    Args:
        source: The draft, in any layout, in a folder or on the hub.
        out: The new folder. Nothing stays there unless everything was verified.
        to: Name of a receiver (`checkpoints.receivers.RECEIVERS`).
        target: The target, which decides what default layer ids mean.
        boundaries: The captured boundaries, where the files do not say them.
        draft_vocab: A wish for a reduced vocabulary.
        progress: Called with the bytes done and the bytes to do.
        options: Less common wishes.

    Returns:
        What was changed.

    Raises:
        ConfigError: If the draft contradicts itself, its layers cannot be resolved, or the receiver
            has no spelling for it.
        CheckpointError: If files cannot be read or written, or what was written is not what it
            should be.
        UnsupportedError: If it is no MLA Eagle3 draft.
    """
    options = options or ConvertOptions()
    receiver = receiver_named(to)
    place = OutputFolder(out, source.files.store.folder, overwrite=options.overwrite)
    config = draft_config(
        source, target, boundaries=boundaries, num_target_layers=options.num_target_layers
    )
    planner = TensorPlanner(
        source, config, receiver, options.target_checkpoint, options.drop_embedding
    )
    plan = planner.plan(draft_vocab)
    meter = _Meter(2 * sum(tensor.nbytes for tensor in plan.tensors.values()), progress)
    documents, quant = _documents(source, receiver, plan)
    with place as folder:
        expected = _write(folder, plan, documents, source, meter)
        written = open_draft(folder)
        actual = _verify(source, written, plan, expected, target, meter)
        findings = _rerun_checks(source, written, boundaries, options.target_checkpoint)
    meter.finish()
    config_json = documents[CONFIG_NAME]
    own_hash = combined_hash(plan.config, written.quant, actual)
    same = plan.vocabulary is None and _settings_equal(config, source, plan.config, written)
    after = [b - 1 for b in plan.config.boundaries]
    notes = {"after_layers": after, "boundaries": list(plan.config.boundaries)}
    return ConvertReport(
        receiver=receiver.name,
        out=Path(out),
        layout=source.detection.format.name,
        boundaries=plan.config.boundaries,
        boundaries_evidence=config.boundaries_evidence,
        ids_before=_ids(source.config),
        ids_after=receiver.layer_ids(plan.config.boundaries),
        tensors=plan.changes,
        num_tensors=len(plan.tensors),
        nbytes=sum(tensor.nbytes for tensor in plan.tensors.values()),
        config=changed_keys(source.raw, config_json),
        exclude=quant.exclude,
        vocabulary=plan.vocabulary,
        files=place.files,
        warnings=_warnings(receiver, source, plan),
        notes=(*(note.format(**notes) for note in receiver.notes), *source.detection.facts),
        findings=findings,
        canonical_hash=own_hash,
        is_same_draft=same,
    )


def _warnings(receiver: Receiver, source: DraftCheckpoint, plan: TensorPlan) -> tuple[str, ...]:
    """What the receiver does differently, or not at all, with this draft."""
    found = [*limits_of(receiver, plan.config, source.quant), *plan.warnings]
    if receiver.quantized_head and linear_modules(_stored(plan)).get("lm_head"):
        found.append(f"{receiver.title}: {receiver.quantized_head}.")
    return tuple(found)


def _stored(plan: TensorPlan) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Dtype and shape of what is written, by canonical name."""
    return {name: (tensor.dtype, tensor.shape) for name, tensor in plan.tensors.items()}


class _Meter:
    """Adds up bytes for a progress bar."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self._done, self._total, self._progress = 0, total, progress

    def __call__(self, count: int) -> None:
        """Adds bytes."""
        self._done += count
        if self._progress is not None:
            self._progress(self._done, self._total)

    def finish(self) -> None:
        """Reports the rest as done: tensors that are not read back, for instance."""
        self(self._total - self._done)


def _documents(
    source: DraftCheckpoint, receiver: Receiver, plan: TensorPlan
) -> tuple[dict[str, dict[str, Any]], QuantMetadata]:
    """JSON files of the new checkpoint."""
    norm = plan.tensors.get("norm.weight")
    dtype = declared_dtype(source.raw) or _DTYPES.get(norm.dtype if norm is not None else "")
    if dtype is None:
        raise ConfigError(
            "config.json declares no dtype, and norm.weight has none that says it. Add "
            "torch_dtype, for instance bfloat16."
        )
    config = receiver_config(receiver, plan.config, source.config, dtype=dtype)
    quant = quant_metadata(
        receiver,
        source.quant,
        _stored(plan),
        _quant_sections(source),
        plan.config.num_layers,
    )
    if plan.vocabulary is not None and not plan.vocabulary.d2t.any() and plan.config.has_d2t:
        config[IDENTITY_D2T_KEY] = True  # the first ids were chosen, no table was lost
    documents = {CONFIG_NAME: config}
    if quant.quantization_config is not None:
        config["quantization_config"] = quant.quantization_config
    if quant.hf_quant_config is not None:
        documents[QUANT_NAME] = quant.hf_quant_config
    return documents, quant


def _quant_sections(source: DraftCheckpoint) -> dict[str, Any]:
    """What the source's files say about quantization, as they say it."""
    store = source.files.store
    sections: dict[str, Any] = {"quantization_config": source.raw.get("quantization_config")}
    if has_file(store, QUANT_NAME):
        sections["producer"] = read_json(store, QUANT_NAME).get("producer")
    return sections


def _write(
    folder: Path,
    plan: TensorPlan,
    documents: Mapping[str, Mapping[str, Any]],
    source: DraftCheckpoint,
    meter: _Meter,
) -> dict[str, TensorDigest]:
    """Writes all files; returns the digest of what was read, by canonical name."""
    digests = write_safetensors(folder / WEIGHTS_NAME, tuple(plan.tensors.values()), advance=meter)
    try:
        for name, document in documents.items():
            text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)
            (folder / name).write_text(text + "\n", encoding="utf-8")
        carry_files(source.files.store, folder)
    except OSError as error:
        raise CheckpointError(f"{folder} cannot be written: {error}.") from None
    return {
        name: TensorDigest(tensor.dtype, tensor.shape, digests[tensor.name])
        for name, tensor in plan.tensors.items()
    }


def _verify(
    source: DraftCheckpoint,
    written: DraftCheckpoint,
    plan: TensorPlan,
    expected: Mapping[str, TensorDigest],
    target: TargetConfig | None,
    meter: _Meter,
) -> dict[str, TensorDigest]:
    """Compares the new files, read like a stranger's, with what they should be."""
    wanted = canonical_settings(plan.config, source.quant)
    for known in (None, target):
        config = draft_config(written, known)
        got = canonical_settings(config, written.quant)
        wrong = sorted(key for key in wanted if got.get(key) != wanted[key])
        if wrong:
            listing = ", ".join(f"{key} {got.get(key)!r} for {wanted[key]!r}" for key in wrong)
            raise CheckpointError(f"The converted config.json reads back differently: {listing}.")
    actual = tensor_digests(written, config, advance=meter)
    kept = {name: value for name, value in expected.items() if not is_redundant(name, plan.config)}
    if actual != kept:
        names = sorted(n for n in {*actual, *kept} if actual.get(n) != kept.get(n))
        raise CheckpointError(
            f"{len(names)} tensors read back differently, for instance {names[0]}: "
            f"{actual.get(names[0])} for {kept.get(names[0])}. The disk, or this program, is at "
            "fault; nothing was kept."
        )
    return actual


def _rerun_checks(
    source: DraftCheckpoint,
    written: DraftCheckpoint,
    boundaries: Sequence[int] | None,
    target: TargetCheckpoint | None,
) -> tuple[Finding, ...]:
    """Runs every check on the new files; refuses an error that the source does not have."""
    findings = run_checks(CheckContext(draft=written, target=target))
    before = run_checks(CheckContext(draft=source, target=target, boundaries=boundaries))
    known = {f.check_id for f in before if f.status is Status.ERROR}
    new = [f for f in findings if f.status is Status.ERROR and f.check_id not in known]
    if new:
        listing = "; ".join(f"{f.check_id}: {f.message}" for f in new)
        raise CheckpointError(
            f"The converted draft fails checks that its source passes: {listing}",
            check=new[0].check_id,
        )
    return findings


def _settings_equal(
    before: DraftConfig, source: DraftCheckpoint, after: DraftConfig, written: DraftCheckpoint
) -> bool:
    return canonical_settings(before, source.quant) == canonical_settings(after, written.quant)


def _ids(config: Mapping[str, Any]) -> tuple[int, ...] | None:
    """The layer ids of a config in flat keys, under whichever name it has them."""
    nested = config.get(EAGLE_KEY)
    sections = [config, nested] if isinstance(nested, Mapping) else [config]
    names = ("eagle_aux_hidden_state_layer_ids", "layer_ids", "aux_hidden_states_layer_ids")
    found = (section.get(name) for section in sections for name in names)
    value = next((v for v in found if isinstance(v, (list, tuple))), None)
    return None if value is None else tuple(value)
