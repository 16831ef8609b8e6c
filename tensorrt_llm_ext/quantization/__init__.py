# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Quantized weights: what is stored, how a linear layer runs on it, and which module gets it.

`tensors` holds the formats (NVFP4, per-tensor FP8), `siblings` the scales that fused layers share,
`loading` takes weights of any format from a weight source, `linear` runs them, and `policy` says
which module may have which format and why.

How a host's blocks use this. The tensors of a checkpoint, and nothing else, decide a module's
format: `X.weight_scale_2` makes it NVFP4, `X.weight_scale` alone FP8, neither float. Float layers
load every format by `loading.take_into`, which dequantizes when it must, so a model runs without
knowing formats when it is built. To keep weights packed, or to emulate the arithmetic of a GPU:

* A linear layer is a `QuantLinear(in_features, parts, mode=..., device=..., dtype=...)`, with the
  same `load(source, prefix)` and `forward(x)` as a float one; `parts` is `((name, rows), ...)`,
  with the empty name for a layer that is not fused. It allocates its weight in `load`, when the
  format is known.
* `packed` suits drafts and small batches on a GPU, `dequantized` is the default on a CPU,
  `emulated` gives the numbers of a Blackwell GPU. The engine chooses one mode for all layers.
* `kv_b_proj`, embeddings and norms load by `take_float`, which refuses a quantized tensor and says
  why: `kv_b_proj` is absorbed into other products, so no engine can run it quantized.
* The source must hand out quantized tensors in the dtypes that they are stored in.
"""
