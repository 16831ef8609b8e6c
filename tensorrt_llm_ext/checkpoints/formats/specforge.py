# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""SpecForge's drafts: Llama layers under `midlayer.`; its MLA draft was never released."""

from __future__ import annotations

from typing import Final

from tensorrt_llm_ext.checkpoints.formats import common
from tensorrt_llm_ext.checkpoints.formats.base import DraftFiles, DraftFormat

_ARCHITECTURES: Final = ("LlamaForCausalLMEagle3", "DeepseekV3ForCausalLMEagle3")


def _marks(files: DraftFiles) -> tuple[str, ...]:
    names = [name for name in common.architectures(files) if name in _ARCHITECTURES]
    return (f"architecture {names[0]}",) if names else ()


SPECFORGE: Final = DraftFormat(
    name="specforge",
    title="SpecForge (and TorchSpec's Llama drafts)",
    marks=_marks,
    renames=(common.STRIP_PREFIXES, common.MIDLAYER_NUMBERED, common.MIDLAYER),
    read_config=common.flat_config,
    id_convention=lambda files: None,
)
