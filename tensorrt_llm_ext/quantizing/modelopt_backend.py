# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Runs ModelOpt on a draft: its recipes, its calibration, its exporter.

ModelOpt wants a `PreTrainedModel` whose state dict is the checkpoint. It gets one over the dense
blocks, so that every module has its final name from the start and the exporter's own dummy forward
finds the projections that share an input.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from safetensors.torch import load_file

from tensorrt_llm_ext.configs.draft import DraftConfig
from tensorrt_llm_ext.errors import UnsupportedError
from tensorrt_llm_ext.models.eagle3 import Eagle3Draft
from tensorrt_llm_ext.quantizing.calibration import Advance, run_all
from tensorrt_llm_ext.quantizing.dense import BorrowedEnds, DenseMLA, build_tree
from tensorrt_llm_ext.quantizing.fake_quant import rounded
from tensorrt_llm_ext.quantizing.packing import scale_of_amax
from tensorrt_llm_ext.quantizing.rollout import TextPack

if TYPE_CHECKING:
    from collections.abc import MutableMapping

ARCHITECTURE: Final = "Eagle3DeepseekV2ForCausalLM"
_BACKEND: Final = "trtllm_ext_nvfp4"
_NVFP4_BITS: Final = (2, 1)

# Trains a draft in place, between calibration and export.
Train = Callable[[Eagle3Draft, torch.nn.Module], None]


@dataclass(frozen=True, kw_only=True)
class ModelOptInput:
    """What ModelOpt is to quantize.

    Attributes:
        config: The draft.
        tensors: Its float tensors by canonical name.
        ends: What it borrows.
        packs: Texts to calibrate on.
        steps: Drafts per chain.
        dtype: Dtype that it runs in while it is calibrated.
        export_dtype: Dtype of the tensors that stay float.
    """

    config: DraftConfig
    tensors: Mapping[str, torch.Tensor] = field(repr=False)
    ends: BorrowedEnds = field(repr=False)
    packs: Sequence[TextPack] = field(repr=False)
    steps: int
    dtype: torch.dtype
    export_dtype: torch.dtype


@dataclass(frozen=True, kw_only=True)
class ModelOptExport:
    """What ModelOpt's exporter wrote.

    Attributes:
        tensors: By name; names are canonical.
        hf_quant_config: Content of hf_quant_config.json.
        version: ModelOpt's version.
    """

    tensors: Mapping[str, torch.Tensor] = field(repr=False)
    hf_quant_config: Mapping[str, Any]
    version: str


def is_installed() -> bool:
    """Whether ModelOpt and transformers can be imported."""
    return all(importlib.util.find_spec(name) is not None for name in ("modelopt", "transformers"))


def run_modelopt(
    recipe: Path | str,
    draft: ModelOptInput,
    *,
    train: Train | None = None,
    advance: Advance | None = None,
) -> ModelOptExport:
    """Quantizes a draft with ModelOpt.

    Args:
        recipe: File, or name in ModelOpt's own library.
        draft: What to quantize.
        train: For quantization-aware training; the inputs' scales are measured again after it.
        advance: Called after each pack of calibration.

    Raises:
        UnsupportedError: If ModelOpt is not installed, or cannot do what the recipe asks.
    """
    if not is_installed():
        raise UnsupportedError(
            "ModelOpt is not installed here. Install it (pip install 'tensorrt-llm-ext[quantize]', "
            "best in an environment of its own), or choose --backend builtin."
        )
    # Loggers that are made on import keep the stream that they are given for good.
    with contextlib.redirect_stdout(sys.stderr):
        import modelopt
        import modelopt.torch.quantization as mtq
        from modelopt.torch.export import export_hf_checkpoint

    model = _model(draft)
    loop = _calibration(draft.packs, draft.steps, advance)
    document = _quantize_config(recipe)
    with _registered(mtq), _quiet():
        mtq.quantize(model, document, forward_loop=loop)
        if train is not None:
            train(model.draft_core, model)
            # The weights moved, and with them their largest values and what the layers see.
            mtq.calibrate(model, document.get("algorithm", "max"), forward_loop=loop)
        for parameter in model.parameters():
            parameter.data = parameter.data.to(draft.export_dtype)
        with tempfile.TemporaryDirectory() as scratch:
            export_hf_checkpoint(model, dtype=draft.export_dtype, export_dir=scratch)
            return _collect(Path(scratch), getattr(modelopt, "__version__", "unknown"))


def _calibration(
    packs: Sequence[TextPack], steps: int, advance: Advance | None
) -> Callable[[Any], None]:
    def loop(model: Any) -> None:
        run_all(model.draft_core, packs, steps, advance=advance)

    return loop


def _model(draft: ModelOptInput) -> Any:
    """The draft as a `PreTrainedModel` of the class name that its checkpoints say."""
    from transformers import DeepseekV3Config, PreTrainedModel

    config = draft.config

    class Eagle3DeepseekV2ForCausalLM(PreTrainedModel):  # type: ignore[misc]
        config_class = DeepseekV3Config
        base_model_prefix = ""

        def __init__(self, hf_config: Any) -> None:
            super().__init__(hf_config)
            self.post_init()
            core = build_tree(self, config, draft.tensors, draft.ends, dtype=draft.dtype)
            self.__dict__["draft_core"] = core

        def _init_weights(self, module: torch.nn.Module) -> None:
            """The weights come from the checkpoint."""

        def get_dummy_inputs(self) -> dict[str, Any]:
            """What the exporter runs, to see which layers read the same input."""
            return {"pack": _first_rows(draft.packs[0])}

        def forward(self, pack: TextPack) -> None:
            dtype = self.norm.weight.dtype
            run_all(self.draft_core, [replace(pack, captured=pack.captured.to(dtype))], 1)

    mla = config.mla
    hf_config = DeepseekV3Config(
        architectures=[ARCHITECTURE],
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=config.num_layers,
        num_attention_heads=mla.num_heads,
        num_key_value_heads=mla.num_heads,
        q_lora_rank=mla.q_lora_rank,
        kv_lora_rank=mla.kv_lora_rank,
        qk_nope_head_dim=mla.qk_nope_head_dim,
        qk_rope_head_dim=mla.qk_rope_head_dim,
        v_head_dim=mla.v_head_dim,
        first_k_dense_replace=config.num_layers,
        tie_word_embeddings=False,
    )
    return Eagle3DeepseekV2ForCausalLM(hf_config).eval()


def _first_rows(pack: TextPack, count: int = 2) -> TextPack:
    rows = slice(0, count)
    return TextPack(
        captured=pack.captured[rows],
        successors=pack.successors[rows],
        positions=pack.positions[rows],
        text=pack.text[rows],
        anchors=torch.zeros(1, dtype=torch.int64),
        labels=pack.labels[:1],
    )


def _quantize_config(recipe: Path | str) -> MutableMapping[str, Any]:
    """A recipe's section for `mtq.quantize`, with a way to round to NVFP4 where CUDA is not."""
    from modelopt.recipe import load_recipe

    try:
        with _quiet():
            loaded: Any = load_recipe(str(recipe))
        document: MutableMapping[str, Any] = loaded.quantize.model_dump(exclude_unset=True)
    except (ValueError, FileNotFoundError, AttributeError) as error:
        reason = " ".join(str(error).split())[:400]
        raise UnsupportedError(f"ModelOpt cannot load the recipe {recipe}: {reason}") from None
    for entry in document["quant_cfg"]:
        cfg = entry.get("cfg")
        if isinstance(cfg, dict) and tuple(cfg.get("num_bits") or ()) == _NVFP4_BITS:
            cfg["backend"] = _BACKEND
    return document


@contextlib.contextmanager
def _registered(mtq: Any) -> Iterator[None]:
    """Teaches ModelOpt our attention, for its KV quantizers, and how to round without CUDA."""
    from modelopt.torch.quantization.nn import (
        TensorQuantizer,
        register_quant_backend,
        unregister_quant_backend,
    )

    class QuantDenseMLA(DenseMLA):
        """Declares a quantized KV cache; MLA engines cache latents with scale 1."""

        def _setup(self) -> None:
            self.k_bmm_quantizer = TensorQuantizer()
            self.v_bmm_quantizer = TensorQuantizer()

    mtq.register(original_cls=DenseMLA, quantized_cls=QuantDenseMLA)
    register_quant_backend(_BACKEND, _round_nvfp4)
    try:
        yield
    finally:
        unregister_quant_backend(_BACKEND)
        mtq.unregister(DenseMLA)


def _round_nvfp4(inputs: torch.Tensor, quantizer: Any) -> torch.Tensor:
    """Rounds to NVFP4 with the scale that the exporter will write."""
    amax = quantizer.amax
    if amax is None:
        amax = inputs.detach().abs().amax()
    return rounded(inputs, scale_of_amax(amax.reshape(()), "nvfp4"), "nvfp4")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """ModelOpt prints what it does to the standard output, which may be the user's JSON."""
    with contextlib.redirect_stdout(io.StringIO()):
        yield


def _collect(folder: Path, version: str) -> ModelOptExport:
    tensors: dict[str, torch.Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        tensors |= load_file(file)
    text = (folder / "hf_quant_config.json").read_text(encoding="utf-8")
    return ModelOptExport(tensors=tensors, hf_quant_config=json.loads(text), version=version)
