# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""What a checkpoint declares about its quantization, whichever tool wrote it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from tensorrt_llm_ext.errors import ConfigError, nearest

# What a user may ask for of quantized weights. "packed": they stay as they are stored (W4A16).
# "dequantized": they become plain weights at load. "w4a4": packed, and activations are quantized
# too, as Blackwell multiplies. "auto": whatever is fastest, which is "dequantized" so far.
QUANT_MODES: Final = ("auto", "packed", "dequantized", "w4a4")


def checked_quant_mode(mode: object, name: str = "quant_mode") -> str:
    """Returns a mode of `QUANT_MODES`.

    Raises:
        ConfigError: If it is none of them.
    """
    if isinstance(mode, str) and mode in QUANT_MODES:
        return mode
    guess = nearest(mode, QUANT_MODES) if isinstance(mode, str) else None
    hint = f" Did you mean {guess!r}?" if guess else ""
    raise ConfigError(f"{name} is {mode!r}, expected one of {', '.join(QUANT_MODES)}.{hint}")


NOT_QUANTIZED: Final = "not quantized"  # what `describe` says of float weights


@dataclass(frozen=True, kw_only=True, slots=True)
class QuantConfig:
    """The quantization metadata of one checkpoint, read and not yet believed.

    The tensors decide what a module really is; `checkpoints.quantized` compares both.

    Attributes:
        method: Who wrote it: "modelopt", "compressed-tensors", "fp8", another `quant_method` as it
            is written, or "none".
        algo: The declared algorithm in ModelOpt's names ("NVFP4", "FP8", "W4A16_NVFP4",
            "MIXED_PRECISION", "INT4" ...); None when nothing is quantized.
        group_size: Values along K that share a scale; None when not declared.
        kv_cache_algo: "FP8", "NVFP4" ...; None when the KV cache is not quantized.
        exclude: Patterns of modules left alone, as written.
        layers: Algorithm of each listed module, for MIXED_PRECISION.
        source: Where it was read, for instance "hf_quant_config.json"; empty for "none".
        rotation: Name of a rotation of the hidden states that the metadata mention (QuaRot,
            SpinQuant); empty when there is none.
    """

    method: str = "none"
    algo: str | None = None
    group_size: int | None = None
    kv_cache_algo: str | None = None
    exclude: tuple[str, ...] = ()
    layers: Mapping[str, str] = field(default_factory=dict)
    source: str = ""
    rotation: str = ""

    @property
    def is_quantized(self) -> bool:
        """Whether weights are declared to be quantized."""
        return self.algo is not None

    def describe(self) -> str:
        """One phrase for people: "NVFP4 (modelopt, group 16, KV FP8)", or "not quantized"."""
        if self.algo is None:
            return NOT_QUANTIZED if self.kv_cache_algo is None else f"KV {self.kv_cache_algo}"
        details = [self.method]
        if self.group_size is not None:
            details.append(f"group {self.group_size}")
        if self.kv_cache_algo is not None:
            details.append(f"KV {self.kv_cache_algo}")
        return f"{self.algo} ({', '.join(details)})"
