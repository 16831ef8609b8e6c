# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Hands out the tensors of a checkpoint, each exactly once."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError, safe_open

from tensorrt_llm_ext.checkpoints.io import CheckpointFiles
from tensorrt_llm_ext.checkpoints.module_formats import logical_shapes
from tensorrt_llm_ext.checkpoints.names import TensorMap, TensorRef, shape_keys
from tensorrt_llm_ext.errors import CheckpointError, nearest
from tensorrt_llm_ext.quantization.tensors import FLOATS

_logger = logging.getLogger(__name__)

# The bias is added to router scores near their ties, and a rounded scale is another scale: they
# keep the precision that they were stored in.
_KEEP_DTYPE: Final = ("e_score_correction_bias", "_scale", ".weight_scale_2")
_MAX_LISTED: Final = 8


class SafetensorsSource:
    """Implements `WeightSource` over safetensors files, opened when first needed.

    Args:
        files: The checkpoint.
        tensors: Where each canonical tensor lies; the identity when None.
        dtype: Floating tensors are converted to it; stored dtypes are kept when None. FP8 numbers,
            the scales of quantized weights and the router's correction bias are never converted.
        label: What errors call the checkpoint, for instance "target".
    """

    def __init__(
        self,
        files: CheckpointFiles,
        tensors: TensorMap | None = None,
        *,
        dtype: torch.dtype | None = None,
        label: str = "checkpoint",
    ) -> None:
        if tensors is None:
            tensors = TensorMap(refs={name: TensorRef(name) for name in files.entries}, skipped={})
        self._files = files
        self._tensors = tensors
        self._dtype = dtype
        self._label = label
        self._taken: set[str] = set()
        self._open: dict[Path, Any] = {}
        self._shapes = tensors.shapes(files.shapes)
        self._values = logical_shapes(self.stored)

    @property
    def stored(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Stored dtype name and shape of each tensor, by canonical name."""
        entries, refs = self._files.entries, self._tensors.refs
        return {
            name: (entries[refs[name].name].dtype, shape) for name, shape in self._shapes.items()
        }

    def has(self, name: str) -> bool:
        """Whether a tensor of this canonical name exists, taken or not."""
        return name in self._shapes

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor, read from the header."""
        self._require(name)
        return self._shapes[name]

    def take(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """Returns a tensor on the CPU and marks it consumed.

        Args:
            name: Canonical name.
            shape: The shape that the model's config asks for.

        Raises:
            CheckpointError: If the tensor is missing, misshapen or already taken; the message names
                the config keys behind the shape.
        """
        self._require(name)
        got = self._shapes[name]
        is_one_number = shape == () and got == (1,)  # scales are written both ways
        if not is_one_number:
            self._compare(name, got, tuple(shape))
        if name in self._taken:
            raise CheckpointError(
                f"{self._label}: tensor {name!r} is asked for twice; two modules would share it by "
                "accident."
            )
        self._taken.add(name)
        tensor = self.peek(name)
        return tensor.reshape(()) if is_one_number else tensor

    def expect(self, name: str, shape: tuple[int, ...]) -> None:
        """Checks that a tensor is there and has the shape that the config asks for.

        Args:
            name: Canonical name.
            shape: Of its values: a packed weight is compared as if it were not.

        Raises:
            CheckpointError: If the tensor is missing or misshapen; the message names the config
                keys behind the shape.
        """
        self._require(name)
        self._compare(name, self._values.get(name, self._shapes[name]), tuple(shape))

    def _compare(self, name: str, got: tuple[int, ...], shape: tuple[int, ...]) -> None:
        if got != shape:
            raise CheckpointError(
                f"{self._label}: tensor {name!r} has shape {list(got)}, expected {list(shape)} "
                f"from the config ({shape_keys(name)}). Config and tensors belong to different "
                "models.",
                check="V6",
            )

    def peek(self, name: str) -> torch.Tensor:
        """Returns a tensor on the CPU without consuming it."""
        self._require(name)
        ref = self._tensors.refs[name]
        entry = self._files.entries[ref.name]
        if self._files.store.folder is None:
            raise CheckpointError(
                f"{self._label}: {self._files.store.label} is on the hub; weights are loaded from "
                "a folder only. Run `hf download <name> --local-dir <folder>` and give the folder."
            )
        try:
            file = self._open.get(entry.file)
            if file is None:
                file = safe_open(entry.file, framework="pt", device="cpu")
                self._open[entry.file] = file
            if ref.rows is None:
                tensor: torch.Tensor = file.get_tensor(ref.name)
            else:
                tensor = file.get_slice(ref.name)[ref.rows[0] : ref.rows[1]]
        except (SafetensorError, OSError) as error:
            raise CheckpointError(
                f"{self._label}: {entry.file} cannot be read ({error}). Download it again."
            ) from None
        is_float = tensor.dtype in FLOATS
        if self._dtype is None or not is_float or name.endswith(_KEEP_DTYPE):
            return tensor
        return tensor.to(self._dtype)

    def skip(self, name: str) -> None:
        """Marks a tensor consumed without reading it."""
        self._require(name)
        self._taken.add(name)

    def unconsumed(self) -> tuple[str, ...]:
        """Canonical names of the tensors that nobody took, sorted."""
        return tuple(sorted(set(self._shapes) - self._taken))

    def finish(self) -> None:
        """Closes the files, reports what was left out on purpose, and refuses leftovers.

        Raises:
            CheckpointError: If a tensor was not consumed: the model would not be the one that was
                trained.
        """
        self._open.clear()
        if self._tensors.skipped:
            total = sum(self._tensors.skipped.values())
            _logger.warning(
                "%s: skipped %d tensors that the text model does not need (%s).",
                self._label,
                total,
                ", ".join(f"{prefix}: {n}" for prefix, n in self._tensors.skipped.items()),
            )
        left = self.unconsumed()
        if left:
            listing = "; ".join(self._described(name) for name in left[:_MAX_LISTED])
            more = f"; and {len(left) - _MAX_LISTED} more" if len(left) > _MAX_LISTED else ""
            raise CheckpointError(
                f"{self._label}: {len(left)} tensors belong to no part of the model: {listing}"
                f"{more}. The config describes another model, or the names are of a layout that "
                "this package does not know.",
                check="V5",
            )

    def _described(self, name: str) -> str:
        ref, close = self._tensors.refs[name], nearest(name, self._taken)
        stored = f" (stored as {ref.name})" if ref.name != name else ""
        hint = f", near {close}" if close else ""
        return f"{name}{stored} {list(self._shapes[name])}{hint}"

    def _require(self, name: str) -> None:
        if name not in self._shapes:
            close = nearest(name, self.unconsumed())
            hint = f" The nearest unused tensor is {close!r}." if close else ""
            raise CheckpointError(
                f"{self._label}: tensor {name!r} is missing from {self._files.folder}.{hint} The "
                "checkpoint is incomplete, or its config describes another model.",
                check="V5",
            )
