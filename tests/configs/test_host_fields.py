# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""What a config in the host's shape does with fields that are not its own."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import pytest

from tensorrt_llm_ext.configs.host_fields import from_mapping, host_shaped, no_op, refuse
from tensorrt_llm_ext.errors import ConfigError, UnsupportedError


@host_shaped(
    aliases={"width": "size"},
    host_fields={
        "gone": refuse("it does not exist here", 0),
        "noise": no_op("it changes nothing", "auto"),
    },
)
@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    size: int = 1
    name: str = "x"


def test_own_fields_and_aliases() -> None:
    assert from_mapping(Sample, {"width": 3, "name": "y"}) == Sample(size=3, name="y")
    assert from_mapping(Sample, {"width": 3, "size": 3}).size == 3
    with pytest.raises(ConfigError, match=r"'size'.*disagree: 4 and 3"):
        from_mapping(Sample, {"width": 3, "size": 4})


@pytest.mark.parametrize("value", [None, 0])
def test_unused_values_of_refused_fields_pass(value: object) -> None:
    assert from_mapping(Sample, {"gone": value}) == Sample()


@pytest.mark.parametrize("value", [1, False, "0"])
def test_used_refused_fields_are_errors(value: object) -> None:
    # False is not 0 here: a flag set to false is not a count of zero.
    with pytest.raises(UnsupportedError, match=r"Sample\.gone=.*it does not exist here"):
        from_mapping(Sample, {"gone": value})


def test_no_ops_are_noted_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for _ in range(2):
        assert from_mapping(Sample, {"noise": 7}) == Sample()
    assert from_mapping(Sample, {"noise": "auto"}) == Sample()
    assert [r.getMessage() for r in caplog.records] == [
        "Sample.noise=7 has no effect here: it changes nothing."
    ]


def test_unknown_fields() -> None:
    with pytest.raises(ConfigError, match=r"'nme': did you mean 'name'.*name, noise, size, width"):
        from_mapping(Sample, {"nme": 1})
    with pytest.raises(ConfigError, match="field names are text, got 3"):
        from_mapping(Sample, {3: 1})  # type: ignore[dict-item]
