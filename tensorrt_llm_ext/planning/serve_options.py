# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""What to serve, and how: the input of the resolver in `planning.serve_config`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from tensorrt_llm_ext.configs.draft import DraftConfig
from tensorrt_llm_ext.configs.host_fields import checked_int, checked_key, checked_number
from tensorrt_llm_ext.configs.quant import QuantConfig
from tensorrt_llm_ext.configs.speculative import MAX_DRAFT_LEN
from tensorrt_llm_ext.configs.target import TargetConfig
from tensorrt_llm_ext.errors import ConfigError
from tensorrt_llm_ext.planning.host_pairing import DraftTraits
from tensorrt_llm_ext.planning.hosts import check_era

LAYOUTS: Final = ("tp", "adp")
KV_DTYPES: Final = ("auto", "fp8", "bf16")
HOST_MAX_NUM_TOKENS: Final = 8192  # the host's default
_ENV_NAME: Final = re.compile(r"[A-Z_][A-Z0-9_]*")
_GRAPH_STEPS: Final = (1, 2, 4, *range(8, 129, 8))


@dataclass(frozen=True, kw_only=True)
class ServePair:
    """A target and a draft, and what they are called where they are served.

    Attributes:
        target: The target.
        draft: The draft.
        target_ref: Folder or hub id of the target, as the host will find it.
        draft_ref: Folder or hub id of the draft.
        target_quant: What the target's files declare about quantization.
        draft_quant: The same of the draft's.
        traits: What else is known of the draft's files.
    """

    target: TargetConfig
    draft: DraftConfig
    target_ref: str
    draft_ref: str
    target_quant: QuantConfig = field(default_factory=QuantConfig)
    draft_quant: QuantConfig = field(default_factory=QuantConfig)
    traits: DraftTraits = field(default_factory=DraftTraits)

    def __post_init__(self) -> None:
        """Refuses names that no YAML file and no command line can hold."""
        for name in ("target_ref", "draft_ref"):
            value = getattr(self, name)
            if not value or not value.isprintable() or value.startswith("-"):
                raise ConfigError(
                    f"{name} is {value!r}: expected a folder or a hub id in printable characters "
                    "that does not begin with '-'. Rename the folder, or give its full path."
                )


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """How to serve.

    Attributes:
        era: Version of TensorRT-LLM: "1.2", "1.3" or "1.4".
        gpus: Number of GPUs of one server.
        layout: "tp": attention split over the GPUs (lowest latency); "adp": attention-DP, each GPU
            serves requests of its own and the experts are spread (highest throughput).
        expert_parallel: GPUs that the experts are spread over; all of them for "adp" and 1 for
            "tp" when None.
        max_draft_len: Draft tokens per step.
        draft_len_schedule: Draft length for batches up to each size; None for always the longest.
        kv_dtype: "auto" (what the target's files say), "fp8" or "bf16".
        max_batch_size: Most requests that run at once.
        max_seq_len: Longest prompt and answer together; the target's when None.
        max_num_tokens: Most tokens of one forward pass; the host's default, or more where the
            batch needs it, when None.
        free_gpu_memory_fraction: Share of the memory that the weights leave free.
        enable_block_reuse: Whether equal prefixes share KV blocks.
        enable_chunked_prefill: Whether long prompts are split.
        guided_decoding: Whether structured output is served.
        disaggregated: Whether prefill and decode run on different servers.
        advanced_sampling: Whether requests may sample, on versions that must be told.
        env: Variables for the worker processes.
        config_file: Name of the file in the launch line.
    """

    era: str
    gpus: int
    layout: str = "tp"
    expert_parallel: int | None = None
    max_draft_len: int = 3
    draft_len_schedule: Mapping[int, int] | None = None
    kv_dtype: str = "auto"
    max_batch_size: int = 64
    max_seq_len: int | None = None
    max_num_tokens: int | None = None
    free_gpu_memory_fraction: float = 0.8
    enable_block_reuse: bool = True
    enable_chunked_prefill: bool = False
    guided_decoding: bool = False
    disaggregated: bool = False
    advanced_sampling: bool = True
    env: Mapping[str, str] = field(default_factory=dict)
    config_file: str = "extra.yaml"

    def __post_init__(self) -> None:
        """Checks every field."""
        check_era(self.era)
        self._check_choice("layout", LAYOUTS)
        self._check_choice("kv_dtype", KV_DTYPES)
        for name in ("gpus", "max_batch_size", "max_seq_len", "max_num_tokens", "expert_parallel"):
            value = getattr(self, name)
            if value is not None:
                checked_int("ServeOptions", name, value, minimum=1)
        checked_int(
            "ServeOptions", "max_draft_len", self.max_draft_len, minimum=1, maximum=MAX_DRAFT_LEN
        )
        checked_number(
            "ServeOptions",
            "free_gpu_memory_fraction",
            self.free_gpu_memory_fraction,
            minimum=0.05,
            maximum=0.99,
        )
        if self.expert_parallel is not None and self.gpus % self.expert_parallel:
            raise ConfigError(
                f"expert_parallel {self.expert_parallel} must divide the {self.gpus} GPUs."
            )
        for name, value in self.env.items():
            if not _ENV_NAME.fullmatch(name) or not str(value).isprintable():
                raise ConfigError(
                    f"env {name!r}: {value!r} is no environment variable; names are capitals, "
                    "digits and underscores, values printable."
                )
        if not self.config_file.isprintable():
            raise ConfigError(f"config_file {self.config_file!r} must be printable.")
        object.__setattr__(self, "draft_len_schedule", self._checked_schedule())

    def _check_choice(self, name: str, choices: tuple[str, ...]) -> None:
        value = getattr(self, name)
        if value not in choices:
            raise ConfigError(f"{name} is {value!r}, expected one of {', '.join(choices)}.")

    def _checked_schedule(self) -> dict[int, int] | None:
        if not self.draft_len_schedule:
            return None
        name = "draft_len_schedule"
        schedule = {
            checked_key("ServeOptions", name, size, minimum=1): checked_int(
                "ServeOptions", f"{name} value", length, minimum=0, maximum=self.max_draft_len
            )
            for size, length in self.draft_len_schedule.items()
        }
        smallest = min(schedule)
        if schedule[smallest] != self.max_draft_len:
            raise ConfigError(
                f"{name} maps its smallest size {smallest} to {schedule[smallest]}; the host "
                f"expects max_draft_len ({self.max_draft_len}) there."
            )
        return dict(sorted(schedule.items()))

    @property
    def expert_parallel_size(self) -> int:
        """GPUs that the experts are spread over."""
        if self.expert_parallel is not None:
            return self.expert_parallel
        return self.gpus if self.layout == "adp" else 1

    @property
    def attention_parallel_size(self) -> int:
        """GPUs that the heads of one layer are split over."""
        return self.gpus if self.layout == "tp" else 1

    @property
    def num_tokens(self) -> int:
        """Most tokens of one forward pass: every request verifies `max_draft_len` + 1 of them."""
        if self.max_num_tokens is not None:
            return self.max_num_tokens
        return max(HOST_MAX_NUM_TOKENS, self.max_batch_size * (1 + self.max_draft_len))

    @property
    def graph_batch_sizes(self) -> tuple[int, ...]:
        """Batch sizes to capture: dense up to 128, then doubling, always with the largest."""
        sizes = {size for size in _GRAPH_STEPS if size < self.max_batch_size}
        size = 2 * _GRAPH_STEPS[-1]
        while size < self.max_batch_size:
            sizes.add(size)
            size *= 2
        # A size where the draft length changes needs a graph of its own.
        sizes |= {size for size in self.draft_len_schedule or () if size < self.max_batch_size}
        return tuple(sorted({*sizes, self.max_batch_size}))


__all__ = ["HOST_MAX_NUM_TOKENS", "KV_DTYPES", "LAYOUTS", "ServeOptions", "ServePair"]
