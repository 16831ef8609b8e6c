# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""What a pair of target and draft has that a TensorRT-LLM version may stumble over.

Each finder looks for one thing and returns it in words, or None when the pair does not have it.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tensorrt_llm_ext.configs.boundaries import default_boundaries
from tensorrt_llm_ext.configs.draft import DraftConfig
from tensorrt_llm_ext.configs.quant import QuantConfig
from tensorrt_llm_ext.configs.target import TargetConfig
from tensorrt_llm_ext.planning.host_names import host_module_names, matches_exclude

KIMI_WRAPPER: Final = "KimiK25ForConditionalGeneration"
_TARGETS: Final = ("DeepseekV3ForCausalLM", KIMI_WRAPPER)
_HOST_PREFIXES: Final = ("model.", "draft_model.", "eagle_module.")


@dataclass(frozen=True, kw_only=True, slots=True)
class DraftTraits:
    """What a host sees of a draft and `DraftConfig` does not keep.

    Attributes:
        stored_prefix: What the names of the stored tensors begin with: "model.", "eagle_module."
            ..., or empty.
        uses_layers_names: Whether decoder tensors are called `layers.0.*` and not `midlayer.*`.
        quantized_modules: Canonical names of the modules that are stored quantized.
        null_keys: Keys of config.json whose value is null.
        has_max_position_embeddings: Whether config.json has that key.
        model_type: `model_type` of config.json.
        has_experts: Whether its MLP is a mixture of experts.
    """

    stored_prefix: str = ""
    uses_layers_names: bool = False
    quantized_modules: frozenset[str] = frozenset()
    null_keys: tuple[str, ...] = ()
    has_max_position_embeddings: bool = True
    model_type: str = ""
    has_experts: bool = False

    @classmethod
    def of(
        cls,
        stored_names: Iterable[str],
        config: Mapping[str, Any],
        quantized_modules: Iterable[str] = (),
    ) -> DraftTraits:
        """Reads the traits of a draft.

        Args:
            stored_names: Names of its tensors as stored.
            config: Its config.json as it is.
            quantized_modules: Canonical names of quantized modules (`checkpoints.quantized`).
        """
        names = tuple(stored_names)
        prefixes = (prefix for prefix in _HOST_PREFIXES if any(map(_begins(prefix), names)))
        return cls(
            stored_prefix=next(prefixes, ""),
            uses_layers_names=any(re.search(r"(^|\.)layers\.\d+\.", name) for name in names),
            quantized_modules=frozenset(quantized_modules),
            null_keys=tuple(sorted(key for key, value in config.items() if value is None)),
            has_max_position_embeddings=config.get("max_position_embeddings") is not None,
            model_type=str(config.get("model_type") or ""),
            has_experts=any(".mlp.experts." in name for name in names),
        )


def _begins(prefix: str) -> Callable[[str], bool]:
    return lambda name: name.startswith(prefix)


@dataclass(frozen=True, kw_only=True, slots=True)
class Pairing:
    """A target, a draft and what is known of the draft's files."""

    target: TargetConfig
    draft: DraftConfig
    quant: QuantConfig
    traits: DraftTraits

    @property
    def quantized(self) -> frozenset[str]:
        """Canonical names of the quantized modules of the draft."""
        return self.traits.quantized_modules

    @property
    def is_nvfp4(self) -> bool:
        """Whether the draft's metadata say NVFP4, for all or some of its modules."""
        algos = {self.quant.algo or "", *self.quant.layers.values()}
        return any("NVFP4" in algo for algo in algos)


def other_target(pair: Pairing) -> str | None:
    """A target of a class that captures nothing."""
    name = pair.target.architecture
    return None if name in _TARGETS else f"the target is a {name}"


def latent(pair: Pairing) -> str | None:
    """Latent sizes that the attention kernels do not have."""
    for owner, mla in (("target", pair.target.mla), ("draft", pair.draft.mla)):
        sizes = (mla.kv_lora_rank, mla.qk_rope_head_dim)
        if sizes != (512, 64):
            return f"the {owner} has kv_lora_rank {sizes[0]} and qk_rope_head_dim {sizes[1]}"
    return None


def layers(pair: Pairing) -> str | None:
    """More than one decoder layer."""
    count = pair.draft.num_layers
    return f"the draft has {count} layers" if count > 1 else None


def flags(pair: Pairing) -> str | None:
    """Flags of EAGLE-3.1."""
    names = ("fc_norm", "norm_output", "norm_before_fc")
    used = [name for name in names if getattr(pair.draft, name)]
    return f"the draft uses {' and '.join(used)} (EAGLE-3.1)" if used else None


def reduced_vocabulary(pair: Pairing) -> str | None:
    """A draft vocabulary smaller than the target's."""
    draft = pair.draft
    if draft.draft_vocab_size == draft.vocab_size:
        return None
    return f"the draft has a reduced vocabulary of {draft.draft_vocab_size} tokens (d2t) with MLA"


def ids(pair: Pairing) -> str | None:
    """Captured layers other than the default triple."""
    boundaries = pair.draft.boundaries
    if boundaries == default_boundaries(pair.target.num_layers):
        return None
    after = [b - 1 for b in boundaries]
    return f"the draft captures after layers {after}, not the host's default"


def single(pair: Pairing) -> str | None:
    """An fc behind a single captured layer."""
    draft = pair.draft
    if not draft.has_fc or draft.num_captured > 1:
        return None
    return "the draft captures one layer and has an fc"


def square_fc(pair: Pairing) -> str | None:
    """An fc as wide as it is tall."""
    draft = pair.draft
    captured = draft.num_captured * draft.target_hidden_size
    if not draft.has_fc or draft.num_captured == 1 or captured != draft.hidden_size:
        return None
    return f"the captured width {captured} equals the draft's hidden_size"


def narrow(pair: Pairing) -> str | None:
    """A draft narrower or wider than its target."""
    draft = pair.draft
    if draft.hidden_size == draft.target_hidden_size:
        return None
    sizes = f"the draft's hidden_size {draft.hidden_size} differs from the target's "
    return f"{sizes}{draft.target_hidden_size}"


def narrow_without_own(pair: Pairing) -> str | None:
    """The same, with a part that must then be shared."""
    draft = pair.draft
    if narrow(pair) is None or (draft.has_own_embedding and draft.has_own_lm_head):
        return None
    what = "lm_head" if draft.has_own_embedding else "embed_tokens"
    return f"{narrow(pair)} and it brings no {what}"


def fc_quantized(pair: Pairing) -> str | None:
    """A quantized fc."""
    return "fc is quantized" if "fc" in pair.quantized else None


def head_quantized(pair: Pairing) -> str | None:
    """A quantized head."""
    return "lm_head is quantized" if "lm_head" in pair.quantized else None


def kv_b_quantized(pair: Pairing) -> str | None:
    """A quantized kv_b_proj."""
    names = sorted(name for name in pair.quantized if name.endswith("kv_b_proj"))
    return f"{names[0]} is quantized" if names else None


def _is_excluded(module: str, pair: Pairing) -> bool:
    names = host_module_names(module)
    return any(matches_exclude(p, name) for p in pair.quant.exclude for name in names)


def kv_b_not_excluded(pair: Pairing) -> str | None:
    """An NVFP4 draft whose excludes do not reach kv_b_proj under the host's name."""
    name = "layers.0.self_attn.kv_b_proj"
    if not pair.is_nvfp4 or kv_b_quantized(pair) or _is_excluded(name, pair):
        return None
    if pair.quant.layers and name not in pair.quant.layers:
        return None
    host = host_module_names(name)[0]
    return f"no exclude pattern of the draft matches the host's name {host}"


def kv_b_bare(pair: Pairing) -> str | None:
    """An NVFP4 draft with a pattern that matches kv_b_proj without its path."""
    if not pair.is_nvfp4:
        return None
    hits = [p for p in pair.quant.exclude if fnmatch.fnmatchcase("kv_b_proj", p)]
    return f"the exclude pattern {hits[0]!r} matches the bare name kv_b_proj" if hits else None


def fc_not_excluded(pair: Pairing) -> str | None:
    """An NVFP4 draft whose BF16 fc no pattern excludes under the host's name."""
    if not pair.is_nvfp4 or not pair.draft.has_fc or fc_quantized(pair):
        return None
    return None if _is_excluded("fc", pair) else "fc is BF16 and no exclude matches model.fc"


def other_quant(pair: Pairing) -> str | None:
    """A quantization other than NVFP4."""
    if not pair.quant.is_quantized or pair.is_nvfp4:
        return None
    return f"the draft is quantized with {pair.quant.describe()}"


def own_embedding(pair: Pairing) -> bool:
    """Whether the draft brings an embedding where the host takes the target's."""
    draft = pair.draft
    return draft.has_own_embedding and draft.hidden_size == draft.target_hidden_size
