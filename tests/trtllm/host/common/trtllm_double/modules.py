# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Where everything stands in the host of this era: module path, then name."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

import trtllm_double
from trtllm_double import (
    args,
    attention,
    basics,
    drafts,
    executor,
    linear,
    llm,
    models,
    rope,
    spec,
    targets,
)
from trtllm_double.recorded import adopt, adopt_function

MODELS = "_torch.models"
MODULES = "_torch.modules"
SPEC = "_torch.speculative"


def import_custom_module_from_dir(custom_module_path: str | Path) -> Any:
    """Puts the PARENT of the folder on sys.path, as the host does."""
    path = Path(custom_module_path)
    sys.path.insert(0, str(path.parent))
    return importlib.import_module(path.name)


def import_custom_module(custom_module_path: str | Path) -> Any:
    """A folder, or a file."""
    path = Path(custom_module_path)
    if path.is_dir():
        return import_custom_module_from_dir(path)
    made = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(made)
    made.loader.exec_module(module)
    return module


def _mla_place() -> str:
    return f"{MODULES}.mla" if trtllm_double.ERA == "E3" else f"{MODULES}.attention"


def _classes() -> dict[str, list[type]]:
    worker = spec.make_worker()
    if trtllm_double.ERA == "E3":
        spec.SpecWorkerBase.forward = spec.base_forward
    interface = "_torch.attention_backend.interface"
    return {
        f"{MODULES}.linear": [
            linear.Linear,
            linear.TensorParallelMode,
            linear.WeightMode,
            linear.WeightsLoadingConfig,
            linear.NVFP4LinearMethod,
            linear.UnquantizedLinearMethod,
        ],
        f"{MODULES}.embedding": [linear.LMHead, linear.Embedding],
        f"{MODULES}.rms_norm": [linear.RMSNorm],
        f"{MODULES}.gated_mlp": [linear.GatedMLP],
        f"{MODULES}.logits_processor": [linear.LogitsProcessor],
        _mla_place(): [attention.MLA],
        interface: [
            attention.AttentionMetadata,
            rope.PositionalEmbeddingParams,
            rope.RopeParams,
        ],
        "_torch.attention_backend.trtllm": [attention.TrtllmAttentionMetadata],
        "functional": [rope.PositionEmbeddingType, rope.RotaryScalingType],
        "mapping": [basics.Mapping],
        "quantization.mode": [basics.QuantAlgo],
        "models.modeling_utils": [basics.QuantConfig],
        "_torch.utils": [linear.Fp4QuantizedTensor],
        f"{MODELS}.modeling_utils": [models.DecoderModel, models.DecoderModelForCausalLM],
        f"{MODELS}.modeling_auto": [models.AutoModelForCausalLM],
        f"{MODELS}.checkpoints.auto_mapper": [models.AutoCheckpointMapper],
        f"{MODELS}.checkpoints.base_weight_mapper": [models.BaseWeightMapper],
        f"{MODELS}.modeling_deepseekv3": [
            models.DeepseekV3Attention,
            models.DeepseekV3DecoderLayer,
            models.DeepseekV3Model,
            models.DeepseekV3WeightLoader,
            targets.DeepseekV3ForCausalLM,
        ],
        f"{MODELS}.modeling_speculative": [
            drafts.Eagle3Attention,
            drafts.Eagle3MLAttention,
            drafts.Eagle3DecoderLayer,
            drafts.Eagle3DraftModel,
            drafts.Eagle3ForCausalLM,
            drafts.SpecDecOneEngineForCausalLM,
        ],
        f"{SPEC}.interface": [
            spec.SpecMetadata,
            spec.SpecWorkerBase,
            spec.SpeculativeDecodingMode,
        ],
        f"{SPEC}.eagle3": [spec.Eagle3OneModelSpecMetadata, worker],
        "_torch.pyexecutor.model_loader": [targets.ModelLoader],
        "_torch.pyexecutor.resource_manager": [attention.KVCacheManager],
        "llmapi.llm": [llm.LLM],
    }


def _functions() -> dict[str, list[Any]]:
    registry = [models.register_auto_model, models.register_mapper, models.get_model_architecture]
    if trtllm_double.ERA == "E3":
        registry += [
            models.register_draft_model,
            models.get_registered_draft_model_builder,
            models.get_registered_model_class,
        ]
    return {
        f"{MODULES}.linear": [
            linear.load_weight_shard,
            linear.copy_weight,
            linear.get_quant_method,
        ],
        f"{MODELS}.modeling_utils": registry,
        f"{MODELS}.modeling_speculative": [drafts.get_draft_model],
        f"{SPEC}.utils": [
            spec.get_num_spec_layers,
            spec.get_num_extra_kv_tokens,
            spec.get_spec_metadata,
        ],
        "executor.worker": [llm.worker_main],
        "tools.importlib_utils": [import_custom_module, import_custom_module_from_dir],
        "_utils": [basics.get_sm_version],
    }


def get_spec_worker(
    spec_config: Any, model_config: Any, mapping: Any, use_separate_draft_kv_cache: bool = False
) -> Any:
    """The worker of a mode."""
    worker = namespace(f"{SPEC}.eagle3")["Eagle3OneModelWorker"]
    if trtllm_double.ERA == "E1":
        return worker(spec_config, mapping)
    return worker(spec_config, mapping, model_config, use_separate_draft_kv_cache)


@functools.cache
def table() -> dict[str, dict[str, Any]]:
    """All names of this era by module, relative to the package."""
    basics.register_ops()
    found: dict[str, dict[str, Any]] = {}
    for place, classes in _classes().items():
        for cls in classes:
            found.setdefault(place, {})[cls.__name__] = adopt(cls, place)
    for place, functions in _functions().items():
        for function in functions:
            found.setdefault(place, {})[function.__name__] = adopt_function(function, place)
    place = f"{MODELS}.modeling_utils"
    found[place]["MODEL_CLASS_MAPPING"] = models.MODEL_CLASS_MAPPING
    worker = adopt_function(get_spec_worker, f"{SPEC}.utils")
    found[f"{SPEC}.utils"]["get_spec_worker"] = worker
    found[f"{MODELS}.modeling_speculative"]["get_spec_worker"] = worker
    found["_torch.model_config"] = {"ModelConfig": args.ModelConfig}
    names = ("EagleDecodingConfig", "Eagle3DecodingConfig", "KvCacheConfig", "TorchLlmArgs")
    found["llmapi.llm_args"] = {
        **{name: getattr(args, name) for name in names},
        "DecodingBaseConfig": args.DecodingBaseConfig,
        "update_llm_args_with_extra_dict": args.update_llm_args_with_extra_dict,
    }
    found["llmapi"] = dict(found["llmapi.llm_args"]) | {"SamplingParams": llm.SamplingParams}
    llm.SamplingParams.__module__ = "tensorrt_llm.llmapi"
    _register(found)
    return found


def _register(found: dict[str, dict[str, Any]]) -> None:
    models.register_auto_model("DeepseekV3ForCausalLM")(targets.DeepseekV3ForCausalLM)
    drafts.register_default_builder()
    found[MODELS] = {}
    if trtllm_double.ERA == "E1":
        return
    place = f"{MODELS}.modeling_kimi_k25"
    cls = adopt(targets.KimiK25ForConditionalGeneration, place)
    found[place] = {cls.__name__: cls}
    models.register_auto_model(cls.__name__)(cls)


def namespace(place: str) -> dict[str, Any]:
    """The live names of a module: what was assigned to it counts, as in the host."""
    return vars(importlib.import_module(f"{trtllm_double.PACKAGE}.{place}"))


def top_level(name: str) -> Any:
    """`tensorrt_llm.LLM` and its like."""
    known = {"LLM": llm.LLM, "SamplingParams": llm.SamplingParams, "Mapping": basics.Mapping}
    if name not in known:
        raise AttributeError(name)
    table()
    return known[name]


EXECUTOR = executor.PyExecutor
