# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""The one resolver from a pair of checkpoints to the host's settings.

`trtllm-ext config` prints its YAML; the host's Python API takes the same values. Nothing here was
run on a host: what each version takes is read from its sources (`planning.serve_keys`).
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import tensorrt_llm_ext
from tensorrt_llm_ext.configs.draft import DraftConfig
from tensorrt_llm_ext.configs.target import TargetConfig
from tensorrt_llm_ext.errors import ConfigError
from tensorrt_llm_ext.planning.budget import kv_bytes_per_token
from tensorrt_llm_ext.planning.host_matrix import ERAS
from tensorrt_llm_ext.planning.host_pairing import KIMI_WRAPPER
from tensorrt_llm_ext.planning.hosts import ERA_TITLES, HostVerdict, judge_hosts
from tensorrt_llm_ext.planning.serve_hazards import Situation, hazards, impossibilities
from tensorrt_llm_ext.planning.serve_keys import has_key, nested, render_yaml
from tensorrt_llm_ext.planning.serve_options import ServeOptions, ServePair

# `--config` is read on newer versions; the older spelling works wherever it is an alias.
_CONFIG_OPTION: Final = {"1.2": "--extra_llm_api_options", "1.3": "--config", "1.4": "--config"}
_MODULE: Final = "_custom_modules/trtllm_ext_register"
_MODULE_DIR: Final = (
    '"$(python -c "import os, tensorrt_llm_ext as m; print(os.path.dirname(m.__file__))")'
    f'/{_MODULE}"'
)
_KIMI_VOCABULARY: Final = 163840
_KV_BYTES: Final = {"fp8": 1, "bf16": 2}


@dataclass(frozen=True, kw_only=True)
class ServePlan:
    """How to serve a pair.

    Attributes:
        yaml: Text for `trtllm-serve --config`, with warnings and launch line as comments.
        launch: The command that starts the server.
        warnings: Known hazards of this way of serving, the most serious first.
        values: What the YAML says, as nested plain data.
        impossible: Why these GPUs cannot hold the pair in this layout; they are warnings too.
        verdict: Whether that version can serve the pair at all.
        kv_dtype: Effective dtype of the KV cache, "fp8" or "bf16".
    """

    yaml: str
    launch: str
    warnings: tuple[str, ...]
    values: dict[str, Any] = field(repr=False)
    verdict: HostVerdict
    kv_dtype: str
    impossible: tuple[str, ...] = ()

    @property
    def speculative_arguments(self) -> dict[str, Any]:
        """Keyword arguments for the host's `EagleDecodingConfig` (Python API)."""
        values = dict(self.values["speculative_config"])
        del values["decoding_type"]
        return values

    def to_dict(self) -> dict[str, Any]:
        """Returns everything as plain data."""
        return {
            "values": self.values,
            "launch": self.launch,
            "warnings": list(self.warnings),
            "impossible": list(self.impossible),
            "host": self.verdict.to_dict(),
            "kv_dtype": self.kv_dtype,
            "yaml": self.yaml,
        }


def layers_to_capture(target: TargetConfig, draft: DraftConfig) -> list[int]:
    """Returns the host's ids of the captured layers: boundary b is after 0-based layer b - 1.

    Raises:
        ConfigError: If a boundary is the embeddings, which the host cannot capture, or beyond the
            target's last layer.
    """
    for boundary in draft.boundaries:
        if boundary == 0:
            raise ConfigError(
                "The draft captures boundary 0, the bare embeddings. The host captures states "
                "after layers, and its id -1 is the state after the final norm: no id says this. "
                "Are the draft's ids read in the right convention?",
                check="V13",
            )
        if not 0 < boundary <= target.num_layers:
            raise ConfigError(
                f"The draft captures boundary {boundary}, but the target has {target.num_layers} "
                "layers. The draft belongs to another target, or its ids are wrong.",
                check="V13",
            )
    return [boundary - 1 for boundary in draft.boundaries]


def plan_serving(pair: ServePair, options: ServeOptions) -> ServePlan:
    """Resolves the host's settings for a pair.

    Args:
        pair: Target and draft.
        options: Version, layout and sizes.

    Returns:
        The settings with their YAML, the launch line and the warnings.

    Raises:
        ConfigError: If no settings can say what is asked for: a captured state that the host has no
            id for, or a KV dtype that it refuses.
    """
    captured = layers_to_capture(pair.target, pair.draft)
    kv_word, kv_dtype = _kv_dtype(pair, options)
    verdicts = judge_hosts(pair.target, pair.draft, pair.draft_quant, pair.traits)
    verdict = verdicts[ERAS.index(options.era)]
    wanted = _wanted(pair, options, captured, kv_word)
    written = {path: value for path, value in wanted.items() if has_key(path, options.era)}
    situation = Situation(pair=pair, options=options, verdict=verdict, kv_dtype=kv_dtype)
    warnings = hazards(situation)
    launch = _launch(pair, options)
    header = (*_title(pair, options), *_header_launch(pair, launch), *_header_warnings(warnings))
    notes = _notes(pair, options, captured, kv_dtype)
    return ServePlan(
        yaml=render_yaml(written, notes, header),
        launch=launch,
        warnings=warnings,
        values=nested(written),
        verdict=verdict,
        kv_dtype=kv_dtype,
        impossible=impossibilities(situation),
    )


def _kv_dtype(pair: ServePair, options: ServeOptions) -> tuple[str, str]:
    """Returns the host's word for the KV dtype, and the dtype that results."""
    declared = pair.target_quant.kv_cache_algo
    if declared not in (None, "FP8"):
        raise ConfigError(
            f"The target declares {declared} KV, which no version has for dense MLA (BF16 or FP8). "
            "Remove kv_cache_quant_algo from a copy of its hf_quant_config.json."
        )
    if options.kv_dtype == "fp8":
        return "fp8", "fp8"
    if options.kv_dtype == "bf16" and declared is not None:
        raise ConfigError(
            "KV dtype bf16: the target declares FP8 KV, and the host takes the words auto, fp8 "
            "and nvfp4 only and refuses to override a checkpoint. Remove kv_cache_quant_algo from "
            "a copy of its hf_quant_config.json, or ask for auto."
        )
    return "auto", "bf16" if declared is None else "fp8"


def _wanted(
    pair: ServePair, options: ServeOptions, captured: list[int], kv_word: str
) -> dict[str, Any]:
    """Returns every value by dotted path, whether or not the version has the key."""
    values: dict[str, Any] = {
        "speculative_config.decoding_type": "Eagle",
        "speculative_config.max_draft_len": options.max_draft_len,
        "speculative_config.speculative_model_dir": pair.draft_ref,
        "speculative_config.eagle3_layers_to_capture": captured,
        "tensor_parallel_size": options.gpus,
        "enable_attention_dp": options.layout == "adp",
        "kv_cache_config.dtype": kv_word,
        "kv_cache_config.free_gpu_memory_fraction": options.free_gpu_memory_fraction,
        "kv_cache_config.enable_block_reuse": options.enable_block_reuse,
        "cuda_graph_config.enable_padding": True,
        "cuda_graph_config.batch_sizes": list(options.graph_batch_sizes),
        "max_batch_size": options.max_batch_size,
        "max_num_tokens": options.num_tokens,
        "enable_iter_perf_stats": True,
    }
    if options.advanced_sampling:
        values["speculative_config.allow_advanced_sampling"] = True
    if options.draft_len_schedule is not None:
        values["speculative_config.draft_len_schedule"] = dict(options.draft_len_schedule)
    if pair.target.moe is not None:
        values["moe_expert_parallel_size"] = options.expert_parallel_size
    if options.max_seq_len is not None:
        values["max_seq_len"] = options.max_seq_len
    if options.enable_chunked_prefill:
        values["enable_chunked_prefill"] = True
    if options.guided_decoding:
        values["guided_decoding_backend"] = "xgrammar"
    if options.env:
        values["env_overrides"] = {name: str(value) for name, value in options.env.items()}
    return values


def _notes(
    pair: ServePair, options: ServeOptions, captured: list[int], kv_dtype: str
) -> dict[str, str]:
    """Returns comments that depend on the pair."""
    target, draft = pair.target, pair.draft
    reserved = options.max_draft_len if options.era in ("1.2", "1.3") else None
    size = _KV_BYTES[kv_dtype]
    with_draft = kv_bytes_per_token(
        target, draft, kv_dtype_bytes=size, reserved_draft_layers=reserved
    )
    without = kv_bytes_per_token(target, None, kv_dtype_bytes=size)
    buffer = options.num_tokens * draft.num_captured * draft.target_hidden_size * 2 / 2**20
    reserved_note = (
        f" ({options.era} reserves max_draft_len layers for the draft)" if reserved else ""
    )
    evidence = f" Evidence: {draft.boundaries_evidence}." if draft.boundaries_evidence else ""
    return {
        "speculative_config.eagle3_layers_to_capture": (
            f"After 0-based layers, that is boundaries {list(draft.boundaries)}; the host never "
            f"reads them from the draft.{evidence}"
        ),
        "moe_expert_parallel_size": (
            "Whole experts are spread over so many GPUs; what is left splits each expert."
        ),
        "kv_cache_config.dtype": (
            f"{'From the target' if options.kv_dtype == 'auto' else 'As asked'}: {kv_dtype}. "
            f"{with_draft} bytes per token with the draft, {without} without{reserved_note}."
        ),
        "kv_cache_config.enable_block_reuse": (
            "A reused prefix costs the draft a little acceptance at block borders."
            if options.enable_block_reuse
            else ""
        ),
        "max_num_tokens": (
            f"Of one pass. The captured states take {buffer:.0f} MiB per GPU "
            f"({draft.num_captured} layers x {draft.target_hidden_size} x BF16)."
        ),
    }


def _title(pair: ServePair, options: ServeOptions) -> list[str]:
    gpus = f"{options.gpus} GPU{'s' if options.gpus > 1 else ''}"
    layout = "attention-DP" if options.layout == "adp" else "tensor parallel"
    return [
        f"TensorRT-LLM {ERA_TITLES[options.era]}, {gpus}, {layout}. Written by trtllm-ext config "
        "from the host's sources; not run.",
        f"Target: {pair.target_ref}",
        f"Draft: {pair.draft_ref}",
    ]


def _launch(pair: ServePair, options: ServeOptions) -> str:
    words = ["trtllm-serve", shlex.quote(pair.target_ref), "--backend", "pytorch"]
    words += [_CONFIG_OPTION[options.era], shlex.quote(options.config_file)]
    words += ["--custom_module_dirs", _MODULE_DIR]
    return " ".join(words)


def has_module_dir() -> bool:
    """Whether this package already has the folder that `--custom_module_dirs` is pointed at."""
    return (Path(tensorrt_llm_ext.__file__).parent / _MODULE).is_dir()


def _header_launch(pair: ServePair, launch: str) -> list[str]:
    lines = ["Launch:", f"$ {launch}"]
    if not has_module_dir():
        lines.append(
            "--custom_module_dirs names a folder that this copy of the package lacks: install "
            "the package again, or leave it out for the stock host."
        )
    family = _family(pair.target)
    if family == "kimi":
        reasoning = "kimi_k25" if pair.target.architecture == KIMI_WRAPPER else "kimi_k2"
        lines += [
            f"Parsers (names depend on the version, unverified): --reasoning_parser {reasoning} "
            "--tool_parser kimi_k2",
            "Tokenizer: Kimi's is Python code in the target's folder. Add --trust_remote_code if "
            "you trust it, or --custom_tokenizer MODULE.CLASS; its automatic conversion to a fast "
            "one is wrong (NVIDIA/TensorRT-LLM#14416).",
        ]
    elif family == "deepseek":
        lines.append("Parsers (unverified): --reasoning_parser deepseek-r1 for a reasoning model")
    return lines


def _family(target: TargetConfig) -> str:
    if target.architecture == KIMI_WRAPPER or target.vocab_size == _KIMI_VOCABULARY:
        return "kimi"
    return "deepseek"


def _header_warnings(warnings: tuple[str, ...]) -> list[str]:
    return ["Warnings:", *(f"- {text}" for text in warnings)] if warnings else []


__all__ = [
    "ServeOptions",
    "ServePair",
    "ServePlan",
    "has_module_dir",
    "layers_to_capture",
    "plan_serving",
]
