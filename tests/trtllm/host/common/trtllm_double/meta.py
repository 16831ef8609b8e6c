# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""How the host builds without memory, and gives a model its memory afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_aten = torch.ops.aten
_MAKING = (_aten.empty.memory_format, _aten.empty_like.default)
_FILLING = (_aten.normal_.default, _aten.uniform_.default)


class MetaInitException(RuntimeError):
    """An op that means something was run on a tensor without memory."""


class MetaInitMode(TorchDispatchMode):
    """Uninitialised tensors are made without memory; little else may be done with them."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        leaves = tree_leaves((args, given))
        has_meta = any(isinstance(leaf, torch.Tensor) and leaf.is_meta for leaf in leaves)
        if func in _MAKING:
            return func(*args, **(given | {"device": torch.device("meta")}))
        if has_meta and func in _FILLING:
            return args[0]
        if has_meta:
            raise MetaInitException(f"{func} on a tensor without memory")
        return func(*args, **given)


def build(make: Callable[[], nn.Module]) -> nn.Module:
    """Builds a model without memory, gives it memory, and moves it as to a GPU.

    The host falls back to an ordinary build where this fails, which is slow and takes the memory of
    the whole target; here that is an error. What nobody loads is NaN.
    """
    with MetaInitMode():
        model = make()
    memory: dict[torch.Tensor, torch.Tensor] = {}

    def give(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_meta:
            return tensor
        if tensor not in memory:
            made = torch.empty_like(tensor, device="cpu")
            if made.is_floating_point() and made.element_size() > 1:
                made.fill_(float("nan"))
            memory[tensor] = made
        return memory[tensor]

    model._apply(give)
    # Parameters keep their identity in a move, and buffers do not.
    return model._apply(torch.clone)
