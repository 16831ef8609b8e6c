# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Which seed each sequence draws from: the user's, or one derived from what makes it distinct."""

from __future__ import annotations

_MASK = (1 << 64) - 1


def derived_seed(seed: int, index: int) -> int:
    """Returns an independent seed per index, as an int64 that is not negative.

    Formula: output `index` of the splitmix64 generator seeded with `seed` (Steele, Lea and Flood,
    "Fast splittable pseudorandom number generators", OOPSLA 2014), without its lowest bit.
    """
    z = (seed + (index + 1) * 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return (z ^ (z >> 31)) >> 1


def request_seed(engine_seed: int, number: int, own: int | None) -> int:
    """Returns the seed of a request as an int64: its own, or that of its number in the engine.

    Args:
        engine_seed: Seed of the engine.
        number: How many requests the engine had before.
        own: What the request asks for, 0..2^64-1; the upper half becomes negative, so that no two
            seeds fall together.
    """
    if own is None:
        return derived_seed(engine_seed, number)
    return own - (1 << 64) if own >> 63 else own


def sequence_seeds(seed: int, num_sequences: int) -> tuple[int, ...]:
    """Returns one seed per sequence of a request; the first is the request's own."""
    return (seed, *(derived_seed(seed, index) for index in range(1, num_sequences)))
