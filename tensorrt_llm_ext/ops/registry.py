# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Which implementation runs an op: kernels are rows, and a selection can be explained.

A public op builds a small hashable key from what its checks and its kernels' `supports` functions
look at (dtype, device, shapes, flags), and asks `chosen(key)`. Only the first call with a key
checks shapes and selects; later calls cost one dictionary look-up.

    key = ("rms_norm", kernel, x.dtype, x.device, x.shape, weight.shape)
    run = chosen(key)
    if run is None:
        _check_rms_norm(x, weight)
        run = choose(key, x, weight, eps)
    return run(x, weight, eps)

The choice, strongest first: the `kernel=` argument, `kernel_override` (tests), the environment
variable `TRTLLM_EXT_KERNEL_<OP>`, and then the highest priority whose `supports` has no objection.
A named choice never falls back to another kernel.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, TypeVar

import torch

from tensorrt_llm_ext import envs
from tensorrt_llm_ext.errors import ConfigError, KernelNotFoundError, nearest

KernelFn = Callable[..., Any]
SupportsFn = Callable[..., "str | None"]
_Fn = TypeVar("_Fn", bound=KernelFn)

# More different keys than this means that some key holds a value that grows without bound, such as
# a length; forgetting all choices then costs time and never correctness.
_MAX_CHOICES = 16384


class Priority(IntEnum):
    """Bands of preference; numbers between them are free for finer order."""

    REFERENCE = 0
    PORTABLE = 4
    PERFORMANT = 8
    PLUGIN = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelSpec:
    """One implementation of one op.

    Attributes:
        op: Name of the public op.
        name: Name of the implementation, unique within the op.
        priority: Higher is preferred.
        fn: The implementation; takes what the public op takes, less `kernel`.
        supports: Called with the arguments of `fn`; None when `fn` can take them, else the reason
            why not. None in this place means that `fn` takes everything.
    """

    op: str
    name: str
    priority: int
    fn: KernelFn
    supports: SupportsFn | None = None

    def reason_against(self, *args: Any, **kwargs: Any) -> str | None:
        """Returns why this kernel cannot take the arguments, or None."""
        return None if self.supports is None else self.supports(*args, **kwargs)


@dataclass(frozen=True, kw_only=True, slots=True)
class SelectionRow:
    """One line of the explanation of a selection; `reason` is None for a usable kernel."""

    name: str
    priority: int
    reason: str | None


_kernels: dict[str, dict[str, KernelSpec]] = {}
_overrides: dict[str, str] = {}
_choices: dict[Hashable, KernelFn] = {}

# The hot path: the kernel that an earlier call with this key selected, or None.
chosen: Callable[[Hashable], KernelFn | None] = _choices.get


def register_kernel(
    op: str, name: str, priority: int, *, supports: SupportsFn | None = None
) -> Callable[[_Fn], _Fn]:
    """Registers the decorated function as a kernel of `op`.

    Raises:
        ConfigError: If `op` already has a kernel of this name.
    """

    def register(fn: _Fn) -> _Fn:
        specs = _kernels.setdefault(op, {})
        if name in specs:
            raise ConfigError(
                f"Kernel {name!r} of {op} is registered twice, by {specs[name].fn.__module__} and "
                f"by {fn.__module__}. Give one of them another name."
            )
        specs[name] = KernelSpec(op=op, name=name, priority=priority, fn=fn, supports=supports)
        forget_choices()
        return fn

    return register


def registered_ops() -> tuple[str, ...]:
    """Returns the names of all ops that have a kernel, sorted."""
    return tuple(sorted(_kernels))


def registered_kernels(op: str) -> tuple[KernelSpec, ...]:
    """Returns the kernels of `op`, highest priority first.

    Raises:
        KernelNotFoundError: If no kernel was ever registered for `op`.
    """
    if op not in _kernels:
        raise KernelNotFoundError(
            f"No op is called {op!r}. Known ops: {', '.join(registered_ops()) or 'none'}."
        )
    return tuple(sorted(_kernels[op].values(), key=lambda spec: (-spec.priority, spec.name)))


def forget_choices() -> None:
    """Forgets all cached selections, for instance after a change of the environment."""
    _choices.clear()


def choose(key: tuple[Any, ...], *args: Any, **kwargs: Any) -> KernelFn:
    """Selects a kernel and remembers it under `key`.

    Args:
        key: (op, value of `kernel=`, and everything that a check or a `supports` may look at).
        *args: Positional arguments of the kernel.
        **kwargs: Keyword arguments of the kernel.

    Raises:
        KernelNotFoundError: See `select_kernel`.
    """
    spec = select_kernel(key[0], key[1], *args, **kwargs)
    if len(_choices) >= _MAX_CHOICES:
        forget_choices()
    _choices[key] = spec.fn
    return spec.fn


def select_kernel(op: str, kernel: str | None, /, *args: Any, **kwargs: Any) -> KernelSpec:
    """Returns the kernel that runs `op` on these arguments.

    Args:
        op: Name of the public op.
        kernel: A kernel's name, or None to let the override, the environment or the priority say.
        *args: Positional arguments of the kernel.
        **kwargs: Keyword arguments of the kernel.

    Raises:
        KernelNotFoundError: If the named kernel does not exist or cannot take the arguments, or if
            no kernel can; the message lists every candidate and its reason.
    """
    specs = registered_kernels(op)
    name, source = _named_choice(op, kernel)
    if name is not None:
        return _named_kernel(op, name, source, specs, args, kwargs)
    for spec in specs:
        if spec.reason_against(*args, **kwargs) is None:
            return spec
    raise KernelNotFoundError(
        f"No kernel for {op} with {_describe(specs[0], args, kwargs)}:\n"
        f"{_table(_explain(specs, args, kwargs))}\n"
        "Change the inputs so that one reason falls away, or register a kernel that takes them."
    )


def explain_selection(op: str, /, *args: Any, **kwargs: Any) -> tuple[SelectionRow, ...]:
    """Returns one row per kernel of `op`, highest priority first; the first usable one is taken.

    Args:
        op: Name of the public op.
        *args: Positional arguments of the kernel.
        **kwargs: Keyword arguments of the kernel.
    """
    return _explain(registered_kernels(op), args, kwargs)


@contextmanager
def kernel_override(op: str, name: str) -> Iterator[None]:
    """Makes every call of `op` without `kernel=` use the kernel `name`, in the whole process.

    Raises:
        KernelNotFoundError: At once if the kernel does not exist; from the op when it cannot take
            a call.
    """
    specs = registered_kernels(op)
    if name not in {spec.name for spec in specs}:
        raise KernelNotFoundError(_unknown_kernel(op, name, "kernel_override", specs))
    previous = _overrides.get(op)
    _overrides[op] = name
    forget_choices()
    try:
        yield
    finally:
        if previous is None:
            del _overrides[op]
        else:
            _overrides[op] = previous
        forget_choices()


def _named_choice(op: str, kernel: str | None) -> tuple[str | None, str]:
    if kernel is not None:
        return kernel, "kernel="
    if op in _overrides:
        return _overrides[op], "kernel_override"
    return envs.kernel_choice(op), envs.kernel_variable(op)


def _named_kernel(
    op: str,
    name: str,
    source: str,
    specs: tuple[KernelSpec, ...],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> KernelSpec:
    spec = next((spec for spec in specs if spec.name == name), None)
    if spec is None:
        raise KernelNotFoundError(_unknown_kernel(op, name, source, specs))
    reason = spec.reason_against(*args, **kwargs)
    if reason is None:
        return spec
    raise KernelNotFoundError(
        f"Kernel {name!r} was asked for by {source}, but it cannot run {op} with "
        f"{_describe(spec, args, kwargs)}: {reason}\n{_table(_explain(specs, args, kwargs))}\n"
        f"An explicit choice never falls back: choose another kernel, or leave {source} unset."
    )


def _unknown_kernel(op: str, name: str, source: str, specs: tuple[KernelSpec, ...]) -> str:
    names = [spec.name for spec in specs]
    guess = nearest(name, names)
    hint = f"; did you mean {guess!r}?" if guess else "."
    return f"{op} has no kernel {name!r} ({source}). Known kernels: {', '.join(names)}{hint}"


def _explain(
    specs: tuple[KernelSpec, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[SelectionRow, ...]:
    return tuple(
        SelectionRow(
            name=spec.name, priority=spec.priority, reason=spec.reason_against(*args, **kwargs)
        )
        for spec in specs
    )


def _table(rows: tuple[SelectionRow, ...]) -> str:
    width = max(len(row.name) for row in rows)
    return "\n".join(f"  {row.name:<{width}}  {row.reason or 'can run it'}" for row in rows)


def _describe(spec: KernelSpec, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Names and describes the inputs by the kernel's own parameter names."""
    try:
        named = inspect.signature(spec.fn).bind(*args, **kwargs).arguments
    except TypeError:  # a kernel with another signature than its op: describe without names
        named = {f"argument {index}": value for index, value in enumerate(args)} | kwargs
    return ", ".join(f"{name} {_describe_value(value)}" for name, value in named.items())


def _describe_value(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        return f"{dtype} {list(value.shape)} on {value.device}"
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    return type(value).__name__
