# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""`LLM`: prompts in, texts out, in the shape of the TensorRT-LLM LLM API."""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import Any, overload

import torch

from tensorrt_llm_ext import devices
from tensorrt_llm_ext.configs.engine import CudaGraphConfig, KvCacheConfig
from tensorrt_llm_ext.configs.sampling import SamplingParams
from tensorrt_llm_ext.configs.speculative import EagleDecodingConfig
from tensorrt_llm_ext.engine.core import EngineCore
from tensorrt_llm_ext.engine.handle import GenerationHandle, ServiceRequest
from tensorrt_llm_ext.engine.llm_args import LLMArgs
from tensorrt_llm_ext.engine.loading import LoadedModels, TokenizerChoice, load_models
from tensorrt_llm_ext.engine.outputs import CompletionOutput, RequestOutput, SequenceAssembler
from tensorrt_llm_ext.engine.prompts import (
    PromptInputs,
    is_single_prompt,
    one_per_prompt,
    parse_prompt,
)
from tensorrt_llm_ext.engine.seeds import request_seed, sequence_seeds
from tensorrt_llm_ext.engine.service import EngineService
from tensorrt_llm_ext.engine.settings import EngineConfig
from tensorrt_llm_ext.engine.snapshot import EngineSnapshot
from tensorrt_llm_ext.engine.tokenizer import Tokenizer
from tensorrt_llm_ext.errors import RequestError
from tensorrt_llm_ext.speculative.stats import AcceptanceStats

logger = logging.getLogger(__name__)
# Rows of a step when the user sets no limit, and more where one verify step needs more.
_DEFAULT_NUM_TOKENS = 2048
_GRAPHS = CudaGraphConfig()  # as in the host, where None turns them off

__all__ = ["LLM", "CompletionOutput", "LLMArgs", "PromptInputs", "RequestOutput"]


class LLM:
    r"""A target, with or without an Eagle3 draft, ready to generate.

    The arguments are those of `LLMArgs`; fields of TensorRT-LLM that change no result here are
    accepted, the others are refused by name. A thread runs the engine from the first request on:
    call `shutdown`, or use the `LLM` as a context manager, to end it.

    Example:
        >>> draft = EagleDecodingConfig(max_draft_len=3, speculative_model="draft")
        >>> with LLM("target", speculative_config=draft) as llm:
        ...     print(llm.generate("Question: …\nAnswer:").outputs[0].text)
    """

    def __init__(  # noqa: PLR0913 - the host's signature
        self,
        model: str | os.PathLike[str],
        tokenizer: Any = None,
        tokenizer_mode: str = "auto",
        skip_tokenizer_init: bool = False,
        trust_remote_code: bool = False,
        tensor_parallel_size: int = 1,
        dtype: Any = "auto",
        revision: str | None = None,
        tokenizer_revision: str | None = None,
        *,
        speculative_config: EagleDecodingConfig | Mapping[str, Any] | None = None,
        kv_cache_config: KvCacheConfig | Mapping[str, Any] | None = None,
        cuda_graph_config: CudaGraphConfig | Mapping[str, Any] | None = _GRAPHS,
        **arguments: Any,
    ) -> None:
        """Loads the models and sizes the cache.

        Args:
            model: Folder of the target's checkpoint.
            tokenizer: Folder, or a `transformers` tokenizer; the model's folder when None.
            tokenizer_mode: "auto" or "slow".
            skip_tokenizer_init: Whether to work with token ids only.
            trust_remote_code: Whether a tokenizer's own Python files may run.
            tensor_parallel_size: 1; trtllm-serve scales out.
            dtype: "auto" (float32 on the CPU, bfloat16 on CUDA), or the name of a torch dtype.
            revision: None; models are folders.
            tokenizer_revision: None; tokenizers are folders.
            speculative_config: The draft and how many tokens it proposes.
            kv_cache_config: Pool of latent rows.
            cuda_graph_config: Batches whose steps are captured as CUDA graphs; None captures none.
                Without effect on a CPU.
            **arguments: The other fields of `LLMArgs` (`device`, `max_batch_size`,
                `max_num_tokens`, `max_seq_len`, `max_input_len`, `enable_chunked_prefill`,
                `seed`, `quant_mode`, `draft_quant_mode`) and those of TensorRT-LLM that change no
                result here.

        Raises:
            ConfigError: If an argument is unknown or out of range.
            UnsupportedError: If an argument of TensorRT-LLM cannot be honoured.
            CheckpointError: If a folder is missing, incomplete or inconsistent.
        """
        named: dict[str, Any] = {
            "model": model,
            "tokenizer": tokenizer,
            "tokenizer_mode": tokenizer_mode,
            "skip_tokenizer_init": skip_tokenizer_init,
            "trust_remote_code": trust_remote_code,
            "tensor_parallel_size": tensor_parallel_size,
            "dtype": dtype,
            "revision": revision,
            "tokenizer_revision": tokenizer_revision,
            "speculative_config": speculative_config,
            "kv_cache_config": kv_cache_config,
            "cuda_graph_config": cuda_graph_config,
        }
        args = LLMArgs(**named, **arguments)
        speculative = args.speculative_config
        models = load_models(
            Path(args.model),
            draft=None if speculative is None else _folder(speculative.speculative_model),
            boundaries=None if speculative is None else speculative.boundaries_override,
            tokenizer=TokenizerChoice(
                source=args.tokenizer,
                is_skipped=args.skip_tokenizer_init,
                trust_remote_code=args.trust_remote_code,
                use_fast=args.tokenizer_mode == "auto",
            ),
            device=args.device,
            dtype=args.dtype,
            quant_mode=args.quant_mode,
            draft_quant_mode=args.draft_quant_mode,
        )
        self._start(models, engine_config(args, models), args.max_input_len)

    @classmethod
    def from_loaded(cls, models: LoadedModels, config: EngineConfig | None = None) -> LLM:
        """Makes an `LLM` of models in memory, which other engines may share.

        Args:
            models: Target, draft, tokenizer and end tokens.
            config: Limits of the engine; without `max_draft_len` the draft stays idle.
        """
        llm = cls.__new__(cls)
        llm._start(models, config or EngineConfig(), None)
        return llm

    def _start(self, models: LoadedModels, config: EngineConfig, max_input_len: int | None) -> None:
        self._models = models
        self._config = config
        self._max_input_len = max_input_len
        draft = models.draft if config.max_draft_len > 0 else None
        self._service = EngineService(EngineCore(models.target, draft, config))
        self._request_ids = itertools.count()
        # Also at interpreter exit, before daemon threads are stopped in the middle of a step.
        self._finalizer = weakref.finalize(self, self._service.shutdown)

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer, None with `skip_tokenizer_init`."""
        return self._models.tokenizer

    @property
    def acceptance(self) -> AcceptanceStats:
        """Acceptance since the start, pooled over all requests."""
        return self._service.acceptance

    @property
    def snapshot(self) -> EngineSnapshot:
        """Requests, cache blocks and acceptance as of the last step."""
        return self._service.snapshot

    @property
    def has_graphs(self) -> bool:
        """Whether steps run as CUDA graphs."""
        return self._service.core.has_graphs

    def reset_phases(self) -> None:
        """Times the phases of steps from now on; to be called while no request is in flight."""
        self._service.core.reset_phases()

    def phases(self) -> tuple[int, dict[str, float]]:
        """Steps without prompt rows since `reset_phases`, and the seconds of their phases."""
        return self._service.core.phases()

    @property
    def is_alive(self) -> bool:
        """Whether the engine takes requests."""
        return not self._service.is_closed

    @property
    def max_seq_len(self) -> int:
        """Prompt and new tokens that one request may have."""
        return self._service.max_seq_len

    @overload
    def generate(
        self,
        inputs: str | Mapping[str, Any],
        sampling_params: SamplingParams | None = None,
        use_tqdm: bool = True,
    ) -> RequestOutput: ...

    @overload
    def generate(
        self,
        inputs: Sequence[Any],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
    ) -> Any: ...

    def generate(
        self,
        inputs: Any,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
    ) -> RequestOutput | list[RequestOutput]:
        """Generates for one prompt or many and waits for all of them.

        Args:
            inputs: A prompt (text, token ids, or a mapping with `prompt` or `prompt_token_ids`),
                or a list of prompts.
            sampling_params: For all prompts, or one per prompt; greedy when None.
            use_tqdm: Whether several prompts show a progress bar on a terminal.

        Returns:
            One output for one prompt, else a list in the order of the prompts.

        Raises:
            RequestError: If a prompt cannot be served; no other prompt is then left running.
        """
        prompts = [inputs] if is_single_prompt(inputs) else list(inputs)
        params = one_per_prompt(sampling_params, len(prompts))
        handles = [
            self._handle(prompt, sampling, streaming=False)
            for prompt, sampling in zip(prompts, params, strict=True)
        ]
        self._service.submit(handles)
        try:
            _wait_for_all(handles, shows_bar=use_tqdm)
            outputs = [handle.result() for handle in handles]
        finally:
            for handle in handles:
                handle.abort()  # does nothing to those that ended
        return outputs[0] if is_single_prompt(inputs) else outputs

    def generate_async(
        self,
        inputs: PromptInputs,
        sampling_params: SamplingParams | None = None,
        *,
        streaming: bool = False,
    ) -> GenerationHandle:
        """Starts one prompt and returns at once.

        Args:
            inputs: Text, token ids, or a mapping with `prompt` or `prompt_token_ids`.
            sampling_params: Greedy when None.
            streaming: Whether iterating over the handle yields after each step, or once at the end.

        Returns:
            A handle: await it, iterate over it (`for` or `async for`), ask for its `result()`, or
            `abort()` it.

        Raises:
            RequestError: If the prompt is malformed. What only the engine can tell, for instance
                that the prompt is too long, the handle raises.
        """
        if not is_single_prompt(inputs):
            raise RequestError(
                "generate_async takes one prompt: a text, token ids or a mapping. Call it once "
                "per prompt; they run together."
            )
        handle = self._handle(inputs, sampling_params or SamplingParams(), streaming=streaming)
        self._service.submit([handle])
        return handle

    def shutdown(self, *, finish: bool = False) -> None:
        """Ends the engine's thread and waits for that.

        Args:
            finish: Whether requests in flight run to their end first; they fail otherwise.
        """
        self._service.shutdown(finish=finish)

    def __enter__(self) -> LLM:
        """Returns itself; leaving the block shuts it down."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Shuts down; requests in flight fail."""
        self.shutdown()

    def _handle(
        self, inputs: PromptInputs, sampling: SamplingParams, *, streaming: bool
    ) -> GenerationHandle:
        prompt, token_ids = self._tokenize(inputs, sampling)
        tokenizer = self._models.tokenizer
        if sampling.stop_strings and tokenizer is None:
            raise RequestError(
                "Stop strings need a tokenizer, and skip_tokenizer_init is set. Use stop_token_ids."
            )
        number = next(self._request_ids)
        seed = request_seed(self._config.seed, number, sampling.seed)
        request = ServiceRequest(
            request_id=number,
            prompt=prompt,
            prompt_token_ids=tuple(token_ids),
            sampling=sampling,
            eos_token_ids=self._eos_token_ids(sampling),
            seeds=sequence_seeds(seed, sampling.n),
            streaming=streaming,
        )
        sequences = [SequenceAssembler(index, sampling, tokenizer) for index in range(sampling.n)]
        return GenerationHandle(request, sequences, self._abort)

    def _abort(self, handle: GenerationHandle) -> None:
        # A method and not the service's own: whoever holds a handle keeps the engine running.
        self._service.abort(handle)

    def _eos_token_ids(self, sampling: SamplingParams) -> tuple[int, ...]:
        if sampling.end_id is None:
            return self._models.eos_token_ids
        return () if sampling.end_id == -1 else (sampling.end_id,)

    def _tokenize(
        self, inputs: PromptInputs, sampling: SamplingParams
    ) -> tuple[str | None, list[int]]:
        prompt, token_ids = parse_prompt(inputs)
        if token_ids is None:
            if self._models.tokenizer is None:
                raise RequestError(
                    "The prompt is a text, and skip_tokenizer_init is set. Send token ids."
                )
            token_ids = self._models.tokenizer.encode(
                prompt or "", add_special_tokens=sampling.add_special_tokens
            )
        if sampling.truncate_prompt_tokens is not None:
            token_ids = token_ids[-sampling.truncate_prompt_tokens :]
        if not token_ids:
            raise RequestError("The prompt has no tokens. Send at least one.")
        if self._max_input_len is not None and len(token_ids) > self._max_input_len:
            raise RequestError(
                f"The prompt has {len(token_ids)} tokens, max_input_len allows "
                f"{self._max_input_len}. Shorten it, or raise max_input_len."
            )
        return prompt, token_ids


def engine_config(args: LLMArgs, models: LoadedModels) -> EngineConfig:
    """Translates the host's names and units of limits into the engine's."""
    cache = args.kv_cache_config or KvCacheConfig()
    values: dict[str, Any] = {
        "block_size": cache.tokens_per_block,
        "enable_block_reuse": cache.enable_block_reuse,
        "enable_chunked_prefill": args.enable_chunked_prefill,
        "max_seq_len": args.max_seq_len,
        "seed": args.seed,
        "cuda_graphs": args.cuda_graph_config,
    }
    if args.max_batch_size is not None:
        values["max_batch_size"] = args.max_batch_size
    if cache.max_tokens is not None:
        values["num_blocks"] = max(1, cache.max_tokens // cache.tokens_per_block)
    free = devices.free_memory(models.device)
    if free is not None and cache.free_gpu_memory_fraction is not None:
        values["pool_bytes"] = int(free * cache.free_gpu_memory_fraction)
    _say_unused(args, cache, models.device)
    if args.speculative_config is not None:
        values["max_draft_len"] = args.speculative_config.draft_len
        values["draft_len_for"] = args.speculative_config.draft_len_for
    batch_size = values.get("max_batch_size", EngineConfig().max_batch_size)
    rows = batch_size * (1 + values.get("max_draft_len", 0))
    values["max_num_tokens"] = args.max_num_tokens or max(_DEFAULT_NUM_TOKENS, rows)
    return EngineConfig(**values)


def _say_unused(args: LLMArgs, cache: KvCacheConfig, device: torch.device) -> None:
    """Logs what was set and acts on a GPU only."""
    fraction = "free_gpu_memory_fraction"
    share, usual = getattr(cache, fraction), getattr(KvCacheConfig(), fraction)
    pairs = (
        ("cuda_graph_config", args.cuda_graph_config, _GRAPHS),
        (f"kv_cache_config.{fraction}", share, usual),
    )
    for name, value, default in pairs:
        if value not in (default, None) and not devices.probe(device).is_cuda:
            logger.info("%s=%r has no effect here: the device is %s.", name, value, device)


def _folder(path: str | os.PathLike[str] | None) -> Path | None:
    return None if path is None else Path(path)


def _wait_for_all(handles: Sequence[GenerationHandle], *, shows_bar: bool) -> None:
    """Waits until all requests ended; raises the error of the first that failed, at once."""
    ended: SimpleQueue[GenerationHandle] = SimpleQueue()
    for handle in handles:
        handle.add_done_callback(functools.partial(ended.put, handle))
    with _progress(len(handles), is_shown=shows_bar) as advance:
        for _ in handles:
            ended.get().result()
            advance()


@contextlib.contextmanager
def _progress(num_requests: int, *, is_shown: bool) -> Iterator[Callable[[], None]]:
    """Shows how many requests are done, on a terminal and for more than one."""
    if not is_shown or num_requests < 2:
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda: None
        return
    columns = (TextColumn("generating"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("generating", total=num_requests)
        yield functools.partial(progress.advance, task)
