# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Every key that a generated `trtllm-serve` config may hold, with the versions that have it.

`llm_args` means tensorrt_llm/llmapi/llm_args.py of NVIDIA/TensorRT-LLM: read before 1.2, at an
early 1.3.0rc and at the newest main. The host refuses unknown keys, so a key that a version is not
known to have is not written for it.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from tensorrt_llm_ext.errors import ConfigError
from tensorrt_llm_ext.planning.host_matrix import ERAS

_WIDTH: Final = 96
_PLAIN_WORDS: Final = frozenset({"Eagle", "auto", "fp8"})


@dataclass(frozen=True, kw_only=True, slots=True)
class HostKey:
    """One key of the host's configuration.

    Attributes:
        path: Dotted path.
        eras: Versions that have it and in which it has an effect.
        evidence: Where it was read.
        why: Comment above the key in the generated file; empty where the name says it.
    """

    path: str
    eras: tuple[str, ...] = ERAS
    evidence: str
    why: str = ""


_SPEC: Final = "llm_args.DecodingBaseConfig"
_EAGLE: Final = "llm_args.EagleDecodingConfig"
_BASE: Final = "llm_args.BaseLlmArgs"
_TORCH: Final = "llm_args.TorchLlmArgs"
_KV: Final = "llm_args.KvCacheConfig"
_GRAPH: Final = "llm_args.CudaGraphConfig"

# In the order in which they are written.
HOST_KEYS: Final[Mapping[str, HostKey]] = MappingProxyType(
    {
        key.path: key
        for key in (
            HostKey(
                path="speculative_config.decoding_type",
                evidence=f"{_EAGLE}.decoding_type",
                why="Eagle, not Eagle3: this spelling works in every version.",
            ),
            HostKey(path="speculative_config.max_draft_len", evidence=f"{_SPEC}.max_draft_len"),
            HostKey(
                path="speculative_config.speculative_model_dir",
                evidence=f"{_SPEC}.speculative_model, alias speculative_model_dir",
            ),
            HostKey(
                path="speculative_config.eagle3_layers_to_capture",
                evidence=f"{_EAGLE}.eagle3_layers_to_capture",
            ),
            HostKey(
                path="speculative_config.allow_advanced_sampling",
                eras=("1.2", "1.3"),
                evidence=f"{_SPEC}.allow_advanced_sampling, NVIDIA/TensorRT-LLM#14745",
                why="Without it temperature and top_p are silently ignored; late 1.3.0rc decide by "
                "themselves and ignore the key.",
            ),
            HostKey(
                path="speculative_config.draft_len_schedule",
                eras=("1.3", "1.4"),
                evidence=f"{_SPEC}.draft_len_schedule",
                why="Draft length for batches up to each size; none above the largest.",
            ),
            HostKey(path="tensor_parallel_size", evidence=f"{_BASE}.tensor_parallel_size"),
            HostKey(path="moe_expert_parallel_size", evidence=f"{_BASE}.moe_expert_parallel_size"),
            HostKey(path="enable_attention_dp", evidence=f"{_BASE}.enable_attention_dp"),
            HostKey(path="kv_cache_config.dtype", evidence=f"{_KV}.dtype"),
            HostKey(
                path="kv_cache_config.free_gpu_memory_fraction",
                evidence=f"{_KV}.free_gpu_memory_fraction",
                why="Of what the weights leave free.",
            ),
            HostKey(
                path="kv_cache_config.enable_block_reuse", evidence=f"{_KV}.enable_block_reuse"
            ),
            HostKey(
                path="cuda_graph_config.enable_padding",
                evidence=f"{_GRAPH}.enable_padding",
                why="Batches between two sizes run as the larger one.",
            ),
            HostKey(
                path="cuda_graph_config.batch_sizes",
                evidence=f"{_GRAPH}.batch_sizes",
                why="Up to max_batch_size: a larger batch would run without graphs.",
            ),
            HostKey(path="max_batch_size", evidence=f"{_BASE}.max_batch_size"),
            HostKey(path="max_num_tokens", evidence=f"{_BASE}.max_num_tokens"),
            HostKey(path="max_seq_len", evidence=f"{_BASE}.max_seq_len"),
            HostKey(path="enable_chunked_prefill", evidence=f"{_BASE}.enable_chunked_prefill"),
            HostKey(path="guided_decoding_backend", evidence=f"{_BASE}.guided_decoding_backend"),
            HostKey(
                path="enable_iter_perf_stats",
                evidence=f"{_TORCH}.enable_iter_perf_stats",
                why="/metrics counts drafted and accepted tokens only with it.",
            ),
            HostKey(
                path="env_overrides",
                evidence=f"{_BASE}.env_overrides",
                why="Set in every worker process.",
            ),
        )
    }
)


def has_key(path: str, era: str) -> bool:
    """Whether a version is known to have a key; a key that is not in the table is an error."""
    if path not in HOST_KEYS:
        raise ConfigError(f"{path} is not in the table of host keys; add it with its evidence.")
    return era in HOST_KEYS[path].eras


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Turns dotted paths into nested dicts, in the order of `HOST_KEYS`."""
    result: dict[str, Any] = {}
    for path in HOST_KEYS:
        if path in values:
            section, _, name = path.rpartition(".")
            place = result.setdefault(section, {}) if section else result
            place[name] = values[path]
    return result


def render_yaml(values: Mapping[str, Any], notes: Mapping[str, str], header: Sequence[str]) -> str:
    """Writes dotted values as YAML with a comment above each key that has one.

    Args:
        values: Value by dotted path, each in `HOST_KEYS`.
        notes: Further comments by dotted path, after the key's own.
        header: Paragraphs of the comment on top.

    Returns:
        The file's text; `yaml.safe_load` gives `nested(values)`.
    """
    lines = [line for paragraph in header for line in _comment(paragraph)]
    section = "?"
    for path, key in HOST_KEYS.items():
        if path not in values:
            continue
        parent, _, name = path.rpartition(".")
        comment = " ".join(filter(None, (key.why, notes.get(path, ""))))
        if parent != section or (comment and not parent):
            lines.append("")
        if parent and parent != section:
            lines.append(f"{parent}:")
        section = parent
        indent = "  " if parent else ""
        lines += (indent + line for line in _comment(comment))
        lines.append(f"{indent}{name}: {_scalar(values[path])}")
    return "\n".join(lines) + "\n"


def _comment(text: str) -> Iterator[str]:
    # A command must stay on one line to be copied.
    if text.startswith("$ "):
        yield f"#   {text[2:]}"
    elif text:
        for line in textwrap.wrap(
            text,
            _WIDTH,
            break_long_words=False,
            break_on_hyphens=False,
            subsequent_indent="  " if text.startswith("- ") else "",
        ):
            yield f"# {line}"


def _scalar(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, Mapping):
        items = (f"{_scalar(key)}: {_scalar(item)}" for key, item in value.items())
        return "{" + ", ".join(items) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_scalar, value)) + "]"
    text = str(value)
    return text if text in _PLAIN_WORDS else json.dumps(text, ensure_ascii=False)


__all__ = ["HOST_KEYS", "HostKey", "has_key", "nested", "render_yaml"]
