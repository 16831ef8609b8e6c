# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""A folder that is written whole or not at all."""

from __future__ import annotations

import os
import shutil
import uuid
from pathlib import Path
from typing import Final

from tensorrt_llm_ext.errors import CheckpointError

CONFIG_NAME: Final = "config.json"


class OutputFolder:
    """A folder that appears complete or not at all.

    Work happens in a sibling, which is renamed at the end and removed after an error.

    Args:
        path: The folder; it need not exist, its parent must.
        source: A folder that must survive; None when there is none.
        overwrite: Whether a checkpoint that `path` holds may be replaced.

    Raises:
        CheckpointError: If `path` holds anything else, or `source`.
    """

    def __init__(
        self, path: str | os.PathLike[str], source: Path | None, *, overwrite: bool
    ) -> None:
        out = Path(path)
        # The parent is resolved, so that the two are on one disk and the rename is one step.
        home = out.absolute().parent
        if not home.is_dir():
            raise CheckpointError(f"{home} is not a folder. Create it, or choose another output.")
        self._home = home.resolve()
        self._final = self._home / out.absolute().name
        if source is not None and source.is_relative_to(self._final):
            raise CheckpointError(
                f"{out} is, or holds, the draft that is to be converted. Write to another folder."
            )
        self._check_existing(overwrite)
        tag = uuid.uuid4().hex[:12]
        self._work = self._home / f".{self._final.name}.{tag}.partial"
        self._old = self._home / f".{self._final.name}.{tag}.replaced"
        self.files: tuple[str, ...] = ()

    def _check_existing(self, overwrite: bool) -> None:
        final = self._final
        if not (final.exists() or final.is_symlink()):
            return
        if final.is_symlink() or not final.is_dir():
            raise CheckpointError(f"{final} exists and is no folder. Write to another one.")
        present = sorted(path.name for path in final.iterdir())
        if not present:
            return
        if not overwrite:
            raise CheckpointError(
                f"{final} exists and holds {present[0]}. Write to another folder, or pass "
                "--overwrite to replace it."
            )
        if CONFIG_NAME not in present or any((final / name).is_dir() for name in present):
            raise CheckpointError(
                f"{final} does not look like a checkpoint ({', '.join(present[:4])}), so it is not "
                "replaced. Write to another folder."
            )

    def __enter__(self) -> Path:
        try:
            self._work.mkdir()
        except OSError as error:
            raise CheckpointError(f"{self._work} cannot be created: {error}.") from None
        return self._work

    def __exit__(self, kind: object, value: object, trace: object) -> None:
        try:
            if kind is None:
                self.files = tuple(sorted(path.name for path in self._work.iterdir()))
                self._rename()
        finally:
            shutil.rmtree(self._work, ignore_errors=True)
            shutil.rmtree(self._old, ignore_errors=True)

    def _rename(self) -> None:
        try:
            if self._final.exists():
                self._final.rename(self._old)
            self._work.rename(self._final)
        except OSError as error:
            if self._old.exists() and not self._final.exists():
                self._old.rename(self._final)
            raise CheckpointError(f"{self._final} cannot be written: {error}.") from None
