# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Tensor operations behind one registry: reference, portable torch, kernels."""
