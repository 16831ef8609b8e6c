# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""The arguments of `LLM`, in the shape of TensorRT-LLM's `TorchLlmArgs`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tensorrt_llm_ext.configs.engine import CudaGraphConfig, KvCacheConfig
from tensorrt_llm_ext.configs.host_fields import (
    HostField,
    checked_bool,
    checked_int,
    host_shaped,
    no_op,
    refuse,
)
from tensorrt_llm_ext.configs.quant import checked_quant_mode
from tensorrt_llm_ext.configs.speculative import EagleDecodingConfig, speculative_config_from_dict
from tensorrt_llm_ext.errors import ConfigError, UnsupportedError

_KIND = "LLMArgs"

_ONE_DEVICE = "the embedded engine runs on one device; use trtllm-serve to scale out"
_KERNELS = "it chooses a kernel, and every kernel here computes the same function"
_SCHEDULING = "it changes when requests run, not what they generate"
_REPORTS = "it only reports; acceptance statistics come with every output"
_WORKERS = "there are no worker processes"
_TEXT_ONLY = "only the text part of a model runs here"
_ONE_LOADER = "weights are read from safetensors by this package's loader"
_DYNAMIC_TYPES = "weights keep the format that the checkpoint has"

# Every field of the host that is not one of ours. A value that changes no result is accepted; one
# that this engine cannot honour is refused, with the reason.
_HOST_FIELDS: dict[str, HostField] = {
    # Scaling out
    "tensor_parallel_size": refuse(_ONE_DEVICE, 1),
    "pipeline_parallel_size": refuse(_ONE_DEVICE, 1),
    "context_parallel_size": refuse(_ONE_DEVICE, 1),
    "moe_cluster_parallel_size": refuse(_ONE_DEVICE, 1, -1),
    "moe_tensor_parallel_size": refuse(_ONE_DEVICE, 1, -1),
    "moe_expert_parallel_size": refuse(_ONE_DEVICE, 1, -1),
    "enable_attention_dp": refuse(_ONE_DEVICE, False),
    "attention_dp_config": refuse(_ONE_DEVICE),
    "enable_lm_head_tp_in_adp": refuse(_ONE_DEVICE, False),
    "pp_partition": refuse(_ONE_DEVICE),
    "cp_config": refuse(_ONE_DEVICE, {}),
    "gpus_per_node": no_op(_ONE_DEVICE),
    "allreduce_strategy": no_op(_ONE_DEVICE),
    "cache_transceiver_config": refuse("caches are not sent to other instances"),
    "kv_connector_config": refuse("caches are not sent to other instances"),
    "mpi_session": refuse(_WORKERS),
    "orchestrator_type": refuse(_WORKERS, "rpc"),
    "ray_worker_extension_cls": refuse(_WORKERS),
    "ray_placement_config": refuse(_WORKERS),
    "ray_worker_nsight_options": no_op(_WORKERS),
    "num_postprocess_workers": no_op(_WORKERS),
    "postprocess_tokenizer_dir": no_op(_WORKERS),
    "num_serve_frontends": no_op(_WORKERS),
    "env_overrides": refuse("set environment variables before Python starts", {}),
    # Kernels and speed
    "attn_backend": no_op(_KERNELS),
    "moe_config": no_op(_KERNELS),
    "nvfp4_gemm_config": no_op(_KERNELS),
    "torch_compile_config": no_op(_KERNELS),
    "enable_autotuner": no_op(_KERNELS),
    "enable_min_latency": no_op(_KERNELS),
    "use_cute_dsl_blockscaling_mm": no_op(_KERNELS),
    "use_cute_dsl_blockscaling_bmm": no_op(_KERNELS),
    "use_cute_dsl_bf16_bmm": no_op(_KERNELS),
    "use_cute_dsl_bf16_gemm": no_op(_KERNELS),
    "prefill_cuda_graph_backend": no_op(_KERNELS),
    "prefill_capture_num_tokens": no_op(_KERNELS),
    "enable_in_graph_sampling": no_op(_KERNELS),
    "enable_mla_skip_correction": refuse("attention here skips no correction", False),
    "mla_skip_correction_threshold": no_op("attention here skips no correction"),
    "sparse_attention_config": refuse("attention here is dense"),
    "kv_cache_compression_config": refuse("cached rows are kept as they are"),
    # Scheduling
    "disable_overlap_scheduler": no_op(_SCHEDULING),
    "scheduler_config": no_op(_SCHEDULING),
    "reorder_policy_config": no_op(_SCHEDULING),
    "batch_wait_timeout_ms": no_op(_SCHEDULING),
    "batch_wait_timeout_iters": no_op(_SCHEDULING),
    "batch_wait_max_tokens_ratio": no_op(_SCHEDULING),
    "enable_early_first_token_response": no_op(_SCHEDULING),
    "enable_low_latency_host_dispatch": no_op(_SCHEDULING),
    "sampler_force_async_worker": no_op(_SCHEDULING),
    "enable_resource_governor": no_op(_SCHEDULING),
    "garbage_collection_gen0_threshold": no_op(_SCHEDULING),
    "stream_interval": refuse("every step of a streamed request is handed out", 1),
    "sampler_type": no_op("there is one sampler, seeded and exact"),
    "max_beam_width": refuse("beam search is not implemented; use SamplingParams(n=…)", 1),
    # Reports
    "print_iter_log": no_op(_REPORTS),
    "enable_iter_perf_stats": no_op(_REPORTS),
    "enable_iter_req_stats": no_op(_REPORTS),
    "iter_stats_max_iterations": no_op(_REPORTS),
    "request_stats_max_iterations": no_op(_REPORTS),
    "max_stats_len": no_op(_REPORTS),
    "return_perf_metrics": no_op(_REPORTS),
    "perf_metrics_output_dir": no_op(_REPORTS),
    "perf_metrics_max_requests": no_op(_REPORTS),
    "prometheus_metrics_config": no_op(_REPORTS),
    "enable_energy_metrics": no_op(_REPORTS),
    "enable_layerwise_nvtx_marker": no_op(_REPORTS),
    "layer_wise_benchmarks_config": no_op(_REPORTS),
    "otlp_traces_endpoint": no_op(_REPORTS),
    "telemetry_config": no_op(_REPORTS),
    # What is loaded, and from where
    "load_format": refuse(_ONE_LOADER, "auto", "AUTO"),
    "checkpoint_format": refuse(_ONE_LOADER, "HF"),
    "checkpoint_loader": refuse(_ONE_LOADER),
    "checkpoint_io_policy": no_op(_ONE_LOADER),
    "mx_config": refuse(_ONE_LOADER),
    "gms_config": refuse(_ONE_LOADER),
    "sleep_config": refuse("weights stay loaded until shutdown()"),
    "model_kwargs": refuse("change config.json in a copy of the folder", {}),
    "revision": refuse("models are folders; download the revision that you want"),
    "tokenizer_revision": refuse("tokenizers are folders; download the revision that you want"),
    "custom_tokenizer": refuse("pass the tokenizer object as tokenizer="),
    "quant_config": refuse(_DYNAMIC_TYPES),
    "force_dynamic_quantization": refuse(_DYNAMIC_TYPES, False),
    "enable_lora": refuse("adapters are not applied", False),
    "lora_config": refuse("adapters are not applied"),
    "peft_cache_config": no_op("adapters are not applied"),
    "backend": refuse("this is the embedded engine", "pytorch"),
    "decoding_config": refuse("use speculative_config"),
    "mm_encoder_only": refuse(_TEXT_ONLY, False),
    "disable_mm_encoder": no_op(_TEXT_ONLY),
    "multimodal_config": no_op(_TEXT_ONLY),
    "encode_only": refuse("this engine generates", False),
    "encoder_max_batch_size": no_op(_TEXT_ONLY),
    "encoder_max_num_tokens": no_op(_TEXT_ONLY),
    "encoder_cuda_graph_config": no_op(_TEXT_ONLY),
    # What happens to the output
    "guided_decoding_backend": no_op("guided decoding is refused per request"),
    "batched_logits_processor": refuse("callbacks on logits are not run; use logit_bias"),
    "gather_generation_logits": refuse("logits are not returned; use logprobs", False),
    "post_processor_hook": refuse("process the outputs that generate() returns"),
    "reasoning_parser": no_op("a server option; LLM returns the text as generated"),
}

_LIMITS = ("max_batch_size", "max_num_tokens", "max_seq_len", "max_input_len")
_FLAGS = ("skip_tokenizer_init", "trust_remote_code", "enable_chunked_prefill")


@host_shaped(host_fields=_HOST_FIELDS)
@dataclass(frozen=True, kw_only=True, slots=True)
class LLMArgs:
    """What `LLM` was asked for, checked.

    Attributes:
        model: Folder of the target's checkpoint.
        tokenizer: Folder, or a `transformers` tokenizer; the model's folder when None.
        tokenizer_mode: "auto" or "slow".
        skip_tokenizer_init: Whether to work with token ids only.
        trust_remote_code: Whether a tokenizer's own Python files may run.
        dtype: "auto" (float32 on the CPU, bfloat16 on CUDA), or the name of a torch dtype.
        device: "cpu", "cuda" or "cuda:N"; CUDA when there is a device and None is given.
        speculative_config: The draft and how many tokens it proposes; a mapping is accepted.
        kv_cache_config: Pool of latent rows; a mapping is accepted.
        cuda_graph_config: Batches whose steps are captured as CUDA graphs, a mapping too; None
            captures none. Without effect on a CPU.
        max_batch_size: Requests running at once.
        max_num_tokens: Rows of one step.
        max_seq_len: Prompt and output tokens of a request; the model's limit when None.
        max_input_len: Prompt tokens of a request; no limit of its own when None.
        enable_chunked_prefill: Whether a long prompt may be split over steps.
        seed: Seeds requests that bring no seed (not a field of TensorRT-LLM).
        quant_mode: What becomes of quantized weights (not a field of TensorRT-LLM): "packed",
            "dequantized" or "w4a4" (activations quantized too, as on Blackwell); "auto" takes the
            fastest, "dequantized".
        draft_quant_mode: The same for the draft; `quant_mode` when None.
    """

    model: str | os.PathLike[str]
    tokenizer: Any = None
    tokenizer_mode: str = "auto"
    skip_tokenizer_init: bool = False
    trust_remote_code: bool = False
    dtype: Any = "auto"
    device: Any = None
    speculative_config: EagleDecodingConfig | None = None
    kv_cache_config: KvCacheConfig | None = None
    cuda_graph_config: CudaGraphConfig | None = field(default_factory=CudaGraphConfig)
    max_batch_size: int | None = None
    max_num_tokens: int | None = None
    max_seq_len: int | None = None
    max_input_len: int | None = None
    enable_chunked_prefill: bool = True
    seed: int = 0
    quant_mode: str = "auto"
    draft_quant_mode: str | None = None

    def __post_init__(self) -> None:
        """Checks every field and turns mappings into configs."""
        if not isinstance(self.model, (str, os.PathLike)):
            raise ConfigError(
                f"{_KIND}.model must be a checkpoint folder, got {self.model!r}. For models that "
                "are loaded already, use LLM.from_loaded."
            )
        if self.tokenizer_mode not in ("auto", "slow"):
            raise ConfigError(
                f"{_KIND}.tokenizer_mode must be 'auto' or 'slow', got {self.tokenizer_mode!r}."
            )
        for name in _FLAGS:
            checked_bool(_KIND, name, getattr(self, name))
        for name in _LIMITS:
            if getattr(self, name) is not None:
                checked_int(_KIND, name, getattr(self, name), minimum=1)
        checked_quant_mode(self.quant_mode, f"{_KIND}.quant_mode")
        if self.draft_quant_mode is not None:
            checked_quant_mode(self.draft_quant_mode, f"{_KIND}.draft_quant_mode")
        checked_int(_KIND, "seed", self.seed, minimum=0, maximum=2**64 - 1)
        self._convert("speculative_config", EagleDecodingConfig, speculative_config_from_dict)
        self._convert("kv_cache_config", KvCacheConfig, KvCacheConfig.from_dict)
        self._convert("cuda_graph_config", CudaGraphConfig, CudaGraphConfig.from_dict)
        speculative = self.speculative_config
        if speculative is not None and speculative.speculative_model is None:
            raise ConfigError(
                f"{_KIND}.speculative_config has no speculative_model: give the draft's folder."
            )

    def _convert(
        self, name: str, kind: type, from_dict: Callable[[Mapping[str, Any]], Any]
    ) -> None:
        value = getattr(self, name)
        if isinstance(value, Mapping):
            object.__setattr__(self, name, from_dict(value))
        elif value is not None and not isinstance(value, kind):
            raise UnsupportedError(
                f"{_KIND}.{name} is a {type(value).__name__}, expected a {kind.__name__} of "
                "tensorrt_llm_ext or a mapping of its fields."
            )
