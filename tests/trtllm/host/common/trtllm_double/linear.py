# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Linear layers, embeddings, heads, norms: tensor-parallel, quantized as the host quantizes."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import trtllm_double
from trtllm_double.basics import (
    BLOCK,
    Mapping,
    QuantAlgo,
    QuantConfig,
    all_gather,
    all_reduce,
)


class TensorParallelMode(str, enum.Enum):
    """Which dimension of a weight is split."""

    COLUMN = "column"
    ROW = "row"


class WeightMode(str, enum.Enum):
    """How many tensors of a checkpoint make one weight."""

    VANILLA = "vanilla"
    FUSED_GATE_UP_LINEAR = "fused_gate_up_linear"
    FUSED_QKV_LINEAR = "fused_qkv_linear"


@dataclass(kw_only=True)
class WeightsLoadingConfig:
    """How a linear layer is loaded."""

    weight_mode: WeightMode = WeightMode.VANILLA
    ignore_tensor_parallel: bool = False


def load_weight_shard(
    weight: torch.Tensor,
    tensor_parallel_size: int = 1,
    tensor_parallel_rank: int = 0,
    tensor_parallel_mode: TensorParallelMode | None = None,
    device: Any = None,
) -> torch.Tensor:
    """This rank's part of a stored tensor."""
    if tensor_parallel_mode is None or tensor_parallel_size == 1 or weight.dim() == 0:
        return weight
    dim = 0 if tensor_parallel_mode is TensorParallelMode.COLUMN else weight.dim() - 1
    return weight.chunk(tensor_parallel_size, dim)[tensor_parallel_rank]


def copy_weight(dst: nn.Parameter, src: torch.Tensor) -> None:
    """Copies; shapes must be equal, and bytes stay bytes."""
    if dst.dtype != src.dtype:
        if dst.dtype == torch.uint8 or src.dtype == torch.uint8:
            src = src.view(dst.dtype)
        else:
            src = src.to(dst.dtype)
    if dst.shape != src.shape:
        raise AssertionError(f"copy_weight: {tuple(dst.shape)} from {tuple(src.shape)}")
    dst.data.copy_(src)


def parameter(shape: tuple[int, ...], dtype: torch.dtype) -> nn.Parameter:
    """An uninitialised parameter."""
    return nn.Parameter(torch.empty(shape, dtype=dtype), requires_grad=False)


class UnquantizedLinearMethod:
    """Plain weights."""

    def create_weights(self, module: Linear) -> None:
        module.weight = parameter((module.out_features, module.in_features), module.dtype)

    def apply(self, module: Linear, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, module.weight)

    def load(self, module: Linear, parts: list[dict[str, torch.Tensor]]) -> None:
        copy_weight(module.weight, torch.cat([module.shard(p["weight"]) for p in parts]))


class NVFP4LinearMethod:
    """Packed weights, activations quantized with a static scale."""

    def create_weights(self, module: Linear) -> None:
        rows, columns = module.out_features, module.in_features
        if columns % BLOCK:
            raise ValueError(f"NVFP4 needs in_features % 16 == 0, got {columns}")
        module.weight = parameter((rows, columns // 2), torch.uint8)
        padded = -(-rows // 128) * 128 * (-(-columns // BLOCK // 4) * 4)
        module.weight_scale = parameter((padded,), torch.uint8)
        for name in ("input_scale", "inv_input_scale", "weight_scale_2", "alpha"):
            setattr(module, name, parameter((), torch.float32))

    def apply(self, module: Linear, x: torch.Tensor) -> torch.Tensor:
        lead = x.shape[:-1]
        fp4, scale = torch.ops.trtllm.fp4_quantize(
            x.flatten(0, -2), module.input_scale.data, BLOCK, False
        )
        out = torch.ops.trtllm.nvfp4_gemm(
            fp4,
            module.weight.data,
            scale,
            module.weight_scale.data,
            module.alpha.data,
            module.dtype,
        )
        return out.view(*lead, -1)

    def load(self, module: Linear, parts: list[dict[str, torch.Tensor]]) -> None:
        for name in ("input_scale", "weight_scale_2"):
            values = {float(part[name]) for part in parts}
            assert len(values) == 1, f"{name} differs between fused shards: {sorted(values)}"
        copy_weight(module.weight, torch.cat([module.shard(p["weight"]) for p in parts]))
        scales = torch.cat([module.shard(p["weight_scale"]).view(torch.uint8) for p in parts])
        copy_weight(module.weight_scale, torch.ops.trtllm.block_scale_interleave(scales))
        given, second = parts[0]["input_scale"], parts[0]["weight_scale_2"]
        module.inv_input_scale.data.copy_(given)
        module.input_scale.data.copy_(1.0 / given)
        module.weight_scale_2.data.copy_(second)
        module.alpha.data.copy_(given * second)


class FP8QDQLinearMethod:
    """Per-tensor FP8 with a static scale of the activations."""

    def create_weights(self, module: Linear) -> None:
        shape = (module.out_features, module.in_features)
        module.weight = parameter(shape, torch.float8_e4m3fn)
        module.weight_scale = parameter((), torch.float32)
        module.input_scale = parameter((), torch.float32)

    def apply(self, module: Linear, x: torch.Tensor) -> torch.Tensor:
        packed = (x.float() / module.input_scale).clamp(-448, 448).to(torch.float8_e4m3fn)
        wide = torch.promote_types(module.dtype, torch.float32)
        out = packed.to(wide) @ module.weight.to(wide).T
        return (out * (module.input_scale * module.weight_scale)).to(module.dtype)

    def load(self, module: Linear, parts: list[dict[str, torch.Tensor]]) -> None:
        scales = {float(part["weight_scale"]) for part in parts}
        assert len(scales) == 1, "weight_scale differs between fused shards"
        copy_weight(module.weight, torch.cat([module.shard(p["weight"]) for p in parts]))
        module.weight_scale.data.copy_(parts[0]["weight_scale"])
        module.input_scale.data.copy_(parts[0]["input_scale"])


def get_quant_method(quant_config: QuantConfig | None = None) -> Any:
    """The method of a format."""
    algo = quant_config.quant_algo if quant_config is not None else None
    if algo in (None, QuantAlgo.NO_QUANT):
        return UnquantizedLinearMethod()
    if algo == QuantAlgo.NVFP4:
        return NVFP4LinearMethod()
    if algo == QuantAlgo.FP8:
        return FP8QDQLinearMethod()
    raise ValueError(f"unsupported quant algo {algo}")


class Linear(nn.Module):
    """A tensor-parallel linear layer."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        dtype: torch.dtype | None = None,
        mapping: Mapping | None = None,
        tensor_parallel_mode: TensorParallelMode | None = None,
        gather_output: bool = False,
        quant_config: QuantConfig | None = None,
        weights_loading_config: WeightsLoadingConfig | None = None,
        reduce_output: bool = True,
        skip_create_weights_in_init: bool = False,
        **_: Any,
    ) -> None:
        super().__init__()
        assert not bias, "the double has no biases"
        self.mapping = mapping or Mapping()
        self.tp_size, self.tp_rank = self.mapping.tp_size, self.mapping.tp_rank
        self.tp_mode = tensor_parallel_mode
        self.gather_output, self.reduce_output = gather_output, reduce_output
        self.dtype = dtype or torch.get_default_dtype()
        self.weights_loading_config = weights_loading_config or WeightsLoadingConfig()
        is_column = tensor_parallel_mode is TensorParallelMode.COLUMN
        is_row = tensor_parallel_mode is TensorParallelMode.ROW
        assert not is_column or out_features % self.tp_size == 0
        assert not is_row or in_features % self.tp_size == 0
        self.in_features = in_features // self.tp_size if is_row else in_features
        self.out_features = out_features // self.tp_size if is_column else out_features
        self.quant_config = quant_config
        self.register_parameter("bias", None)
        self._weights_created = False
        if not skip_create_weights_in_init:
            self.create_weights()

    def create_weights(self) -> None:
        if self._weights_created:
            return
        for name in list(self._parameters):
            if name != "bias":
                del self._parameters[name]
        self.quant_method = self.get_quant_method(self.quant_config)
        self.quant_method.create_weights(self)
        self._weights_created = True

    def get_quant_method(self, quant_config: QuantConfig | None = None) -> Any:
        return get_quant_method(quant_config)

    @property
    def has_nvfp4(self) -> bool:
        assert self._weights_created
        return isinstance(self.quant_method, NVFP4LinearMethod)

    @property
    def has_any_quant(self) -> bool:
        assert self._weights_created
        return not isinstance(self.quant_method, UnquantizedLinearMethod)

    def shard(self, weight: torch.Tensor) -> torch.Tensor:
        return load_weight_shard(weight, self.tp_size, self.tp_rank, self.tp_mode)

    def apply_linear(
        self, input: torch.Tensor, bias: Any, lora_params: Any = None, layer_idx: Any = None
    ) -> torch.Tensor:
        return self.quant_method.apply(self, input)

    def forward(
        self,
        input: torch.Tensor,
        *,
        all_reduce_params: Any = None,
        lora_params: Any = None,
        layer_idx: Any = None,
    ) -> torch.Tensor:
        out = self.apply_linear(input, self.bias, lora_params, layer_idx)
        if self.tp_size > 1 and self.tp_mode is TensorParallelMode.ROW and self.reduce_output:
            return all_reduce(out)
        if self.tp_size > 1 and self.tp_mode is TensorParallelMode.COLUMN and self.gather_output:
            return all_gather(out)
        return out

    def load_weights(
        self, weights: list[dict[str, torch.Tensor]], allow_partial_loading: bool = False
    ) -> None:
        assert self._weights_created
        fused = self.weights_loading_config.weight_mode is WeightMode.FUSED_GATE_UP_LINEAR
        assert len(weights) == (2 if fused else 1), f"{len(weights)} shards"
        self.quant_method.load(self, weights)

    def post_load_weights(self) -> None:
        """Nothing to do here."""


class LMHead(Linear):
    """A vocabulary head, split over ranks and gathered."""

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        dtype: torch.dtype | None = None,
        mapping: Mapping | None = None,
        tensor_parallel_mode: TensorParallelMode | None = None,
        gather_output: bool = False,
        reduce_output: bool = True,
        quant_config: QuantConfig | None = None,
        **_: Any,
    ) -> None:
        size = (mapping or Mapping()).tp_size
        split = tensor_parallel_mode is TensorParallelMode.COLUMN
        padded = -(-num_embeddings // size) * size if split else num_embeddings
        if quant_config is not None and padded != num_embeddings:
            raise ValueError("a quantized head takes no padding of the vocabulary")
        self.num_embeddings, self.padding_size = num_embeddings, padded - num_embeddings
        Linear.__init__(
            self,
            embedding_dim,
            padded,
            bias=False,
            dtype=dtype,
            mapping=mapping,
            tensor_parallel_mode=tensor_parallel_mode,
            gather_output=gather_output,
            quant_config=quant_config,
        )
        self.num_embeddings, self.padding_size = num_embeddings, padded - num_embeddings

    @property
    def vocab_size_padded(self) -> int:
        return self.num_embeddings + self.padding_size

    def forward(
        self,
        input: torch.Tensor,
        *,
        all_reduce_params: Any = None,
        mapping_lm_head_tp: Any = None,
        is_spec_decoding_head: bool = False,
    ) -> torch.Tensor:
        out = Linear.forward(self, input)
        return out[..., : self.num_embeddings] if self.padding_size else out

    def load_weights(
        self, weights: list[dict[str, torch.Tensor]], allow_partial_loading: bool = False
    ) -> None:
        weight = weights[0]["weight"]
        if self.padding_size:
            weight = torch.cat((weight, weight.new_zeros(self.padding_size, weight.shape[1])))
        Linear.load_weights(self, [{**weights[0], "weight": weight}])


class Embedding(LMHead):
    """A table, replicated or split over ranks by token."""

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        dtype: torch.dtype | None = None,
        mapping: Mapping | None = None,
        tensor_parallel_mode: TensorParallelMode | None = None,
        gather_output: bool = False,
        **_: Any,
    ) -> None:
        LMHead.__init__(
            self, num_embeddings, embedding_dim, dtype, mapping, tensor_parallel_mode, gather_output
        )

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if self.tp_mode is not TensorParallelMode.COLUMN or self.tp_size == 1:
            return functional.embedding(input, self.weight)
        begin = self.tp_rank * self.out_features
        local = input - begin
        mine = (local >= 0) & (local < self.out_features)
        rows = functional.embedding(local.clamp(0, self.out_features - 1), self.weight)
        return all_reduce(rows * mine.unsqueeze(-1))


class RMSNorm(nn.Module):
    """The host's norm; with a residual it returns the sum as well."""

    def __init__(
        self, *, hidden_size: int, eps: float, dtype: torch.dtype | None = None, **_: Any
    ) -> None:
        super().__init__()
        self.weight = parameter((hidden_size,), dtype or torch.get_default_dtype())
        self.variance_epsilon = eps

    def forward(
        self, hidden_states: torch.Tensor, residual: torch.Tensor | None = None, **_: Any
    ) -> Any:
        wide = torch.promote_types(hidden_states.dtype, torch.float32)
        x = hidden_states.to(wide)
        if residual is not None:
            x = x + residual.to(wide)
            residual = x.to(hidden_states.dtype)
        x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.variance_epsilon)
        out = (x * self.weight.to(wide)).to(hidden_states.dtype)
        return out if residual is None else (out, residual)

    def skip_forward(
        self, hidden_states: torch.Tensor, residual: torch.Tensor | None = None
    ) -> Any:
        return hidden_states if residual is None else (hidden_states, residual)


class GatedMLP(nn.Module):
    """SwiGLU."""

    def __init__(
        self,
        *,
        hidden_size: int,
        intermediate_size: int,
        bias: bool,
        dtype: torch.dtype | None = None,
        config: Any = None,
        overridden_tp_size: int | None = None,
        reduce_output: bool = True,
        **_: Any,
    ) -> None:
        super().__init__()
        mapping = config.mapping if config is not None else Mapping()
        if overridden_tp_size is not None:
            rank = mapping.tp_rank % overridden_tp_size
            mapping = Mapping(overridden_tp_size, rank, overridden_tp_size)
        common: dict[str, Any] = {
            "bias": bias,
            "dtype": dtype,
            "mapping": mapping,
            "quant_config": config.get_quant_config() if config is not None else None,
            "skip_create_weights_in_init": bool(config and config.skip_create_weights_in_init),
        }
        self.gate_up_proj = Linear(
            hidden_size,
            2 * intermediate_size,
            tensor_parallel_mode=TensorParallelMode.COLUMN,
            weights_loading_config=WeightsLoadingConfig(
                weight_mode=WeightMode.FUSED_GATE_UP_LINEAR
            ),
            **common,
        )
        self.down_proj = Linear(
            intermediate_size,
            hidden_size,
            tensor_parallel_mode=TensorParallelMode.ROW,
            reduce_output=reduce_output,
            **common,
        )

    def forward(
        self,
        x: torch.Tensor,
        all_rank_num_tokens: Any = None,
        final_all_reduce_params: Any = None,
        lora_params: Any = None,
        **_: Any,
    ) -> torch.Tensor:
        gate, up = self.gate_up_proj(x).chunk(2, -1)
        return self.down_proj(functional.silu(gate) * up)


class LogitsProcessor(nn.Module):
    """Picks the last rows of a pass, unless all are asked for, and runs the head."""

    def forward(
        self,
        hidden_states: torch.Tensor,
        lm_head: nn.Module,
        attn_metadata: Any,
        return_context_logits: bool = False,
    ) -> torch.Tensor:
        if not return_context_logits:
            last = attn_metadata.seq_lens_cuda.cumsum(0) - 1
            hidden_states = hidden_states[last]
        return lm_head(hidden_states)


@dataclass
class Fp4QuantizedTensor:
    """A quantized activation."""

    fp4_tensor: torch.Tensor
    scaling_factor: torch.Tensor
    is_sf_swizzled: bool = True


def is_e1() -> bool:
    """Whether the process has the oldest era."""
    return trtllm_double.ERA == "E1"
