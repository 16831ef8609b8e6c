# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""The only place that asks what a device is and can do."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from tensorrt_llm_ext.errors import ConfigError

if TYPE_CHECKING:
    import torch

SUPPORTED_TYPES = ("cpu", "cuda")
# Models up to this width run on one CPU thread by default.
SMALL_HIDDEN_SIZE = 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceInfo:
    """What kernels and planning need to know about one device.

    Attributes:
        type: `cpu` or `cuda`.
        name: Marketing name, for people.
        sm: Compute capability as one number, for instance 90 or 100; None on the CPU.
        total_memory: Bytes of device memory, of main memory on the CPU; 0 when unknown.
    """

    type: str
    name: str
    sm: int | None
    total_memory: int

    @property
    def is_cuda(self) -> bool:
        """Whether this is a CUDA device."""
        return self.type == "cuda"

    def __str__(self) -> str:
        """Names the device and, on CUDA, its capability."""
        return self.name if self.sm is None else f"{self.name} (sm_{self.sm})"


def probe(device: str | torch.device | None = None) -> DeviceInfo:
    """Describes a device.

    Args:
        device: `cpu`, `cuda`, `cuda:N` or a torch device; the default device when None.

    Raises:
        ConfigError: If the name is malformed, the type unsupported, or the device absent.
    """
    resolved = default_device() if device is None else _parse(device)
    return _probe_cpu() if resolved.type == "cpu" else _probe_cuda(resolved.index)


def default_device() -> torch.device:
    """Returns the current CUDA device when there is one, else the CPU."""
    import torch

    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def default_dtype(device: str | torch.device) -> torch.dtype:
    """Returns the dtype that weights and activations get when the user names none.

    It is float32 on the CPU, where texts with and without a draft are compared and rounding would
    decide near-ties, and bfloat16 on CUDA.
    """
    import torch

    return torch.float32 if _parse(device).type == "cpu" else torch.bfloat16


def limit_cpu_threads(hidden_size: int) -> int:
    """Gives a small model one thread, unless the user chose a number with OMP_NUM_THREADS.

    A decode step of a small model is a thousand products of tens of microseconds; waking a second
    thread for each costs more than it saves (tiny_kimi on two cores: 105 tokens/s with two
    threads, 173 with one). The setting holds for the process, as torch's threads do.

    Args:
        hidden_size: Width of the model.

    Returns:
        The number of threads that torch uses from here on.
    """
    import torch

    if hidden_size <= SMALL_HIDDEN_SIZE and not os.environ.get("OMP_NUM_THREADS"):
        torch.set_num_threads(1)
    return torch.get_num_threads()


def free_memory(device: str | torch.device) -> int | None:
    """Returns the bytes free on a CUDA device; None on the CPU, which shares its memory."""
    import torch

    resolved = _parse(device)
    return None if resolved.type == "cpu" else torch.cuda.mem_get_info(resolved)[0]


def _parse(device: str | torch.device) -> torch.device:
    import torch

    try:
        resolved = torch.device(device)
    except RuntimeError as error:
        raise ConfigError(
            f"device is {str(device)!r}, expected 'cpu', 'cuda' or 'cuda:N'"
        ) from error
    if resolved.type not in SUPPORTED_TYPES:
        raise ConfigError(
            f"device type {resolved.type!r} is not supported, expected one of "
            f"{', '.join(SUPPORTED_TYPES)}"
        )
    return resolved


@lru_cache(maxsize=1)
def _probe_cpu() -> DeviceInfo:
    return DeviceInfo(type="cpu", name=_cpu_name(), sm=None, total_memory=_main_memory())


@lru_cache
def _probe_cuda(index: int | None) -> DeviceInfo:
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count == 0:
        raise ConfigError(
            "device 'cuda' was asked for, but torch sees no CUDA device. Use --device cpu, or "
            "install a CUDA build of torch and check the driver with nvidia-smi."
        )
    number = torch.cuda.current_device() if index is None else index
    if number >= count:
        raise ConfigError(f"device 'cuda:{number}' was asked for, but torch sees {count} device(s)")
    properties = torch.cuda.get_device_properties(number)
    return DeviceInfo(
        type="cuda",
        name=properties.name,
        sm=10 * properties.major + properties.minor,
        total_memory=properties.total_memory,
    )


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine() or "CPU"


def _main_memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return 0
