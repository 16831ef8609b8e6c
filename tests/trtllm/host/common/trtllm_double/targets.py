# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""The targets, and how a folder becomes a model."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import nn

import trtllm_double
from trtllm_double.args import DTYPES, ModelConfig, TorchLlmArgs
from trtllm_double.basics import Mapping
from trtllm_double.drafts import SpecDecOneEngineForCausalLM
from trtllm_double.meta import build
from trtllm_double.models import (
    AutoCheckpointMapper,
    AutoModelForCausalLM,
    DeepseekV3Model,
    DeepseekV3WeightLoader,
    KimiWrapper,
)


class DeepseekV3ForCausalLM(SpecDecOneEngineForCausalLM):
    """DeepSeek-V3 and Kimi-K2."""

    def __init__(self, model_config: ModelConfig) -> None:
        SpecDecOneEngineForCausalLM.__init__(self, DeepseekV3Model(model_config), model_config)

    def forward(
        self,
        attn_metadata: Any,
        input_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        spec_metadata: Any = None,
        return_context_logits: bool = False,
        **kwargs: Any,
    ) -> Any:
        return SpecDecOneEngineForCausalLM.forward(
            self,
            attn_metadata=attn_metadata,
            input_ids=input_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            spec_metadata=spec_metadata,
            return_context_logits=return_context_logits,
            **kwargs,
        )

    def load_weights(self, weights: dict[str, torch.Tensor]) -> None:
        DeepseekV3WeightLoader(self).load_weights(weights)

    def post_load_weights(self) -> None:
        """Nothing to do here."""


class KimiK25ForConditionalGeneration(nn.Module):
    """The Kimi-K2.5 wrapper: text only, drafting handed through."""

    def __init__(self, model_config: ModelConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        text = KimiWrapper.text_config(model_config)
        self.llm = DeepseekV3ForCausalLM(text)  # by direct reference: no look-up
        self.model_config, self.config = model_config, self.llm.config
        model_config.pretrained_config = text.pretrained_config

    def forward(
        self,
        attn_metadata: Any,
        input_ids: Any = None,
        position_ids: Any = None,
        inputs_embeds: Any = None,
        return_context_logits: bool = False,
        multimodal_params: Any = None,
        **kwargs: Any,
    ) -> Any:
        return self.llm.forward(
            attn_metadata=attn_metadata,
            input_ids=input_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            return_context_logits=return_context_logits,
            **kwargs,
        )

    def load_weights(self, weights: dict[str, torch.Tensor]) -> None:
        prefix = "language_model."
        text = {n.removeprefix(prefix): t for n, t in weights.items() if n.startswith(prefix)}
        self.llm.load_weights(text)

    def load_draft_weights(self, *args: Any, **kwargs: Any) -> None:
        self.llm.load_draft_weights(*args, **kwargs)

    def infer_max_seq_len(self) -> int:
        return self.llm.infer_max_seq_len()

    @property
    def draft_config(self) -> Any:
        return self.llm.draft_config

    @property
    def draft_model(self) -> Any:
        return self.llm.draft_model

    @property
    def model(self) -> Any:
        return self.llm.model

    @property
    def lm_head(self) -> Any:
        return self.llm.lm_head


def read_weights(folder: str | Path) -> dict[str, torch.Tensor]:
    """All tensors of a folder."""
    found: dict[str, torch.Tensor] = {}
    for path in sorted(Path(folder).glob("*.safetensors")):
        found |= load_file(path)
    return found


class HfCheckpointLoader:
    """Safetensors of a folder."""

    checkpoint_format = "HF"

    def load_weights(self, checkpoint_dir: str, mapping: Any = None) -> dict[str, torch.Tensor]:
        return read_weights(checkpoint_dir)


class ModelLoader:
    """Builds and loads a target and its draft."""

    def __init__(self, llm_args: TorchLlmArgs, mapping: Mapping, spec_config: Any) -> None:
        self.llm_args, self.mapping, self.spec_config = llm_args, mapping, spec_config

    def _call_load_weights(
        self,
        load_method: Callable[..., Any],
        weights: Any,
        weight_mapper: Any,
        allow_partial_loading: bool = False,
    ) -> None:
        known = inspect.getfullargspec(load_method).args
        given = {"weight_mapper": weight_mapper, "allow_partial_loading": allow_partial_loading}
        load_method(weights, **{name: value for name, value in given.items() if name in known})

    def load(
        self, checkpoint_dir: str, checkpoint_loader: Any = None
    ) -> tuple[nn.Module, ModelConfig]:
        loader = checkpoint_loader or HfCheckpointLoader()
        args = self.llm_args
        config = ModelConfig.from_pretrained(
            checkpoint_dir,
            trust_remote_code=args.trust_remote_code,
            mapping=self.mapping,
            spec_config=self.spec_config,
            max_num_tokens=args.max_num_tokens,
            skip_create_weights_in_init=True,
            dtype=args.dtype,
        )
        config = copy.deepcopy(config)  # building may change it
        model = build(lambda: AutoModelForCausalLM.from_config(config))
        self._call_load_weights(model.load_weights, loader.load_weights(checkpoint_dir), None)
        spec = self.spec_config
        if spec is not None and spec.spec_dec_mode.need_load_draft_weights():
            weights = loader.load_weights(str(spec.speculative_model))
            arch = model.draft_config.pretrained_config.architectures[0]
            mapper = AutoCheckpointMapper.get(loader.checkpoint_format, arch)
            mapper.init_model_and_config(model.draft_model, model.draft_config)
            self._call_load_weights(model.load_draft_weights, weights, mapper)
        for module in model.modules():
            done = getattr(module, "post_load_weights", None)
            if callable(done):
                done()
        text = config.pretrained_config
        name = text.torch_dtype
        text.double_dtype = name if isinstance(name, torch.dtype) else DTYPES[name]
        return model.eval(), config


def _call_load_weights(load_method: Callable[..., Any], weights: Any, weight_mapper: Any) -> None:
    if "weight_mapper" in inspect.getfullargspec(load_method).args:
        load_method(weights, weight_mapper=weight_mapper)
    else:
        load_method(weights)


if trtllm_double.ERA == "E1":
    ModelLoader._call_load_weights = staticmethod(_call_load_weights)
