# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Selection of kernels: order of choices, no silent fallback, errors that explain."""

from __future__ import annotations

import pytest
import torch

from tensorrt_llm_ext.errors import ConfigError, KernelNotFoundError
from tensorrt_llm_ext.ops import attention, kvcache, moe, norm, nvfp4, registry, sampling
from tensorrt_llm_ext.ops.attention import cases as attention_cases
from tensorrt_llm_ext.ops.kvcache import cases as kvcache_cases
from tensorrt_llm_ext.ops.moe import cases as moe_cases
from tensorrt_llm_ext.ops.norm import cases as norm_cases
from tensorrt_llm_ext.ops.nvfp4 import cases as nvfp4_cases
from tensorrt_llm_ext.ops.registry import (
    Priority,
    choose,
    chosen,
    explain_selection,
    kernel_override,
    register_kernel,
    registered_kernels,
    registered_ops,
    select_kernel,
)
from tensorrt_llm_ext.ops.sampling import cases as sampling_cases

FAMILIES = (attention, kvcache, moe, norm, nvfp4, sampling)
# Public names that are types of arguments.
TYPES = ("PackedExperts", "SamplingRows")
ALL_CASES = tuple(
    case
    for module in (
        attention_cases,
        kvcache_cases,
        moe_cases,
        norm_cases,
        nvfp4_cases,
        sampling_cases,
    )
    for case in module.CASES
)


def refuses_wide(x: torch.Tensor, factor: int) -> str | None:
    return None if x.shape[-1] <= 8 else f"width must be at most 8, got {x.shape[-1]}"


@pytest.fixture
def op(monkeypatch: pytest.MonkeyPatch) -> str:
    """An op `scale` with a picky fast kernel, a portable one and a reference."""
    monkeypatch.setattr(registry, "_kernels", {})
    monkeypatch.delenv("TRTLLM_EXT_KERNEL_SCALE", raising=False)
    registry.forget_choices()

    @register_kernel("scale", "reference", Priority.REFERENCE)
    def scale_reference(x: torch.Tensor, factor: int) -> torch.Tensor:
        return x * factor

    @register_kernel("scale", "portable", Priority.PORTABLE, supports=lambda x, factor: "tired")
    def scale_portable(x: torch.Tensor, factor: int) -> torch.Tensor:
        return x * factor

    @register_kernel("scale", "fast", Priority.PERFORMANT, supports=refuses_wide)
    def scale_fast(x: torch.Tensor, factor: int) -> torch.Tensor:
        return x * factor

    yield "scale"
    registry.forget_choices()


NARROW, WIDE = torch.zeros(2, 8), torch.zeros(2, 9)


def test_the_highest_priority_that_fits_is_taken(op: str) -> None:
    assert select_kernel(op, None, NARROW, 2).name == "fast"
    assert select_kernel(op, None, WIDE, 2).name == "reference"
    assert select_kernel(op, None, x=WIDE, factor=2).name == "reference"


def test_an_explicit_choice_never_falls_back(op: str) -> None:
    assert select_kernel(op, "reference", NARROW, 2).name == "reference"
    with pytest.raises(KernelNotFoundError) as error:
        select_kernel(op, "fast", WIDE, 2)
    message = str(error.value)
    assert "Kernel 'fast' was asked for by kernel=" in message
    assert "width must be at most 8, got 9" in message
    assert "x float32 [2, 9] on cpu, factor 2" in message


def test_environment_chooses_and_never_falls_back(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRTLLM_EXT_KERNEL_SCALE", "reference")
    assert select_kernel(op, None, NARROW, 2).name == "reference"
    assert select_kernel(op, "fast", NARROW, 2).name == "fast"  # the argument is stronger
    monkeypatch.setenv("TRTLLM_EXT_KERNEL_SCALE", "fast")
    with pytest.raises(KernelNotFoundError, match="asked for by TRTLLM_EXT_KERNEL_SCALE"):
        select_kernel(op, None, WIDE, 2)


def test_override_is_between_argument_and_environment(
    op: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRTLLM_EXT_KERNEL_SCALE", "fast")
    with kernel_override(op, "reference"):
        assert select_kernel(op, None, NARROW, 2).name == "reference"
        assert select_kernel(op, "fast", NARROW, 2).name == "fast"
        with kernel_override(op, "fast"):
            assert select_kernel(op, None, NARROW, 2).name == "fast"
        assert select_kernel(op, None, NARROW, 2).name == "reference"
        with pytest.raises(KernelNotFoundError, match="kernel_override"):
            kernel_override(op, "nothing").__enter__()
    assert select_kernel(op, None, NARROW, 2).name == "fast"


def test_override_reaches_remembered_choices(op: str) -> None:
    key = (op, None, NARROW.shape)
    assert chosen(key) is None
    fast = choose(key, NARROW, 2)
    assert chosen(key) is fast
    with kernel_override(op, "reference"):
        assert chosen(key) is None
        assert choose(key, NARROW, 2) is not fast
    assert chosen(key) is None
    assert choose(key, NARROW, 2) is fast


def test_unknown_names_are_listed(op: str) -> None:
    with pytest.raises(KernelNotFoundError) as error:
        select_kernel(op, "fats", NARROW, 2)
    assert str(error.value) == (
        "scale has no kernel 'fats' (kernel=). Known kernels: fast, portable, reference; did you "
        "mean 'fast'?"
    )
    with pytest.raises(KernelNotFoundError, match=r"No op is called 'scales'\. Known ops: scale"):
        select_kernel("scales", None, NARROW, 2)


def test_when_nothing_fits_every_reason_is_listed(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    del registry._kernels[op]["reference"]
    with pytest.raises(KernelNotFoundError) as error:
        select_kernel(op, None, WIDE, factor=2)
    assert str(error.value).splitlines() == [
        "No kernel for scale with x float32 [2, 9] on cpu, factor 2:",
        "  fast      width must be at most 8, got 9",
        "  portable  tired",
        "Change the inputs so that one reason falls away, or register a kernel that takes them.",
    ]


def test_explain_selection(op: str) -> None:
    rows = explain_selection(op, WIDE, 2)
    assert [(row.name, row.priority, row.reason) for row in rows] == [
        ("fast", 8, "width must be at most 8, got 9"),
        ("portable", 4, "tired"),
        ("reference", 0, None),
    ]


def test_an_exception_in_supports_is_not_a_refusal(op: str) -> None:
    @register_kernel(op, "broken", Priority.PLUGIN, supports=lambda x, factor: x.no_such_thing)
    def broken(x: torch.Tensor, factor: int) -> torch.Tensor:
        return x

    with pytest.raises(AttributeError, match="no_such_thing"):
        select_kernel(op, None, NARROW, 2)


def test_a_later_kernel_is_seen_by_remembered_choices(op: str) -> None:
    key = (op, None, NARROW.shape)
    choose(key, NARROW, 2)

    @register_kernel(op, "plugin", Priority.PLUGIN)
    def plugin(x: torch.Tensor, factor: int) -> torch.Tensor:
        return x

    assert chosen(key) is None
    assert choose(key, NARROW, 2) is plugin


def test_a_name_is_registered_once(op: str) -> None:
    with pytest.raises(ConfigError, match="'fast' of scale is registered twice"):
        register_kernel(op, "fast", Priority.PLUGIN)(lambda x, factor: x)


def test_remembered_choices_are_bounded(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_MAX_CHOICES", 10)
    for size in range(25):
        choose((op, None, size), NARROW, 2)
        assert len(registry._choices) <= 10


def test_every_op_has_a_reference_that_takes_everything() -> None:
    for name in registered_ops():
        # Interpreted kernels stand below it: they run by name only.
        reference = [kernel for kernel in registered_kernels(name) if kernel.priority >= 0][-1]
        assert (reference.name, reference.priority) == ("reference", Priority.REFERENCE), name
        assert reference.supports is None, name


def test_every_op_has_a_portable_kernel_and_cases() -> None:
    public = {name for family in FAMILIES for name in family.__all__ if name not in TYPES}
    assert set(registered_ops()) == public
    assert {case.op for case in ALL_CASES} == public
    for name in public:
        assert any(kernel.priority >= Priority.PORTABLE for kernel in registered_kernels(name))
    ids = [(case.op, case.name) for case in ALL_CASES]
    assert len(set(ids)) == len(ids)


def test_every_public_op_takes_a_kernel_by_name() -> None:
    for case in ALL_CASES:
        with pytest.raises(KernelNotFoundError, match="has no kernel 'absent'"):
            case.run(torch.float32, torch.device("cpu"), kernel="absent")


def test_public_ops_obey_the_override() -> None:
    case = norm_cases.RMS_CASES[0]
    inputs = case.inputs(torch.float32, torch.device("cpu"))
    fast = norm.rms_norm(**inputs)
    with kernel_override("rms_norm", "reference"):
        exact = norm.rms_norm(**inputs)
    assert torch.equal(exact, norm.rms_norm(**inputs, kernel="reference"))
    assert torch.equal(fast, norm.rms_norm(**inputs))
