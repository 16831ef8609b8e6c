# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Which format each of the draft's projections gets in the host, judged by the tensors.

The host gives formats by name patterns, and drafts and targets use other names than its modules
have. Nothing here goes by a name: each projection is built with a format of its own, and the
target's patterns are kept away from the draft (`modeling`).
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping
from typing import Any, Final

import torch

from tensorrt_llm_ext import envs
from tensorrt_llm_ext._triton import AVAILABLE
from tensorrt_llm_ext.trtllm.host import Host

_logger = logging.getLogger(__name__)
_FP4_SINCE: Final = 100  # compute capability 10.0
_ALGORITHMS: Final[Mapping[str, str]] = {"nvfp4": "NVFP4", "fp8": "FP8"}


class Formats:
    """Formats of one draft's modules in one host.

    Args:
        host: The host.
        model_config: The draft's ModelConfig.
        stored: "nvfp4" or "fp8" by canonical module name; modules that are not named are float.
    """

    def __init__(self, host: Host, model_config: Any, stored: Mapping[str, str]) -> None:
        self._host, self._model_config = host, model_config
        self._formats = dict(stored)
        if "nvfp4" not in stored.values():
            return
        packed = _packed_format(host)
        self._formats = {m: packed if f == "nvfp4" else f for m, f in stored.items()}

    def of(self, *modules: str) -> str:
        """Format of one layer made of these modules; "float" unless all agree.

        "nvfp4" is W4A4 in the host's kernels, "packed" packed weights in this package's.
        """
        found = {self._formats.get(module, "float") for module in modules}
        return found.pop() if len(found) == 1 else "float"

    def config(self, kind: str) -> Any:
        """The host's QuantConfig for a format; the KV cache stays the target's."""
        algorithms = self._host.symbol("QuantAlgo")
        cache = self._model_config.quant_config.kv_cache_quant_algo
        values: dict[str, Any] = {"kv_cache_quant_algo": cache}
        if kind in _ALGORITHMS:
            values["quant_algo"] = getattr(algorithms, _ALGORITHMS[kind])
        if kind == "nvfp4":
            values["group_size"] = 16
        return self._host.symbol("QuantConfig")(**values)

    def plain_config(self) -> Any:
        """A copy of the ModelConfig that quantizes nothing and creates no weights yet.

        Composite modules of the host build all their projections in one format; here each gets its
        own afterwards, and only then its weights.
        """
        made = copy.copy(self._model_config)
        made._frozen = False
        made.quant_config = self.config("float")
        made.quant_config_dict = None
        made.skip_create_weights_in_init = True
        made._frozen = True
        return made


def _packed_format(host: Host) -> str:
    """What becomes of NVFP4 weights: as TRTLLM_EXT_DRAFT_QUANT says, or by what the GPU does."""
    choice = envs.get("TRTLLM_EXT_DRAFT_QUANT")
    if choice == "auto":
        choice = "native" if _multiplies_fp4(host) else "packed" if AVAILABLE else "dequantize"
        if choice != "native":
            _logger.warning(
                "This GPU multiplies no FP4: the draft's NVFP4 weights are %s "
                "(TRTLLM_EXT_DRAFT_QUANT chooses).",
                "unpacked as they are read" if choice == "packed" else "dequantized at load",
            )
    return {"native": "nvfp4", "packed": "packed"}.get(choice, "float")


def _multiplies_fp4(host: Host) -> bool:
    version = host.optional("get_sm_version")
    if version is not None:
        return bool(version() >= _FP4_SINCE)
    if not torch.cuda.is_available():
        return False
    return torch.cuda.get_device_capability()[0] * 10 >= _FP4_SINCE


__all__ = ["Formats"]
