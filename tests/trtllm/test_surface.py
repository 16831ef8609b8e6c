# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""`doctor --trtllm` on each double: era, symbols, patches, and planted differences by name."""

from __future__ import annotations

import functools
import inspect
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tensorrt_llm_ext.cli.main import app
from tensorrt_llm_ext.trtllm.surface import ERAS as RECORDED
from tensorrt_llm_ext.trtllm.surface import recorded, select
from tests.trtllm.host import ERAS, use_host

FIXTURES = Path(__file__).parents[1] / "fixtures" / "host_api"
PATCHED = {
    "e1": ["captured layers", "draft builder", "rows that count"],
    "e3": ["captured layers", "rows that count"],
}


def doctor(*arguments: str) -> tuple[int, str]:
    """Runs the command on whatever host is in place."""
    result = CliRunner().invoke(app, ["doctor", "--trtllm", *arguments], env={"COLUMNS": "250"})
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout


def planted(report: dict[str, Any], level: str) -> list[str]:
    return [d["name"] for d in report["differences"] if d["level"] == level]


@pytest.mark.parametrize("era", RECORDED)
def test_data_are_the_part_of_the_record_that_is_used(era: str) -> None:
    rows = json.loads((FIXTURES / f"{era}.json").read_text(encoding="utf-8"))["symbols"]
    assert recorded(era) == select(rows), "run: python -m tensorrt_llm_ext.trtllm.surface FOLDER"
    assert len(recorded(era)) > 30


@pytest.mark.parametrize("era", ERAS)
def test_a_double_is_its_era_without_errors(era: str) -> None:
    with use_host(era):
        code, out = doctor("--json")
        report = json.loads(out)
        assert code == 0, out
        assert report["era"] == era.upper()
        assert report["missing"] == []
        assert planted(report, "error") == []
        assert sorted(report["patches"]) == PATCHED.get(era, PATCHED["e1"])
        place = "_torch.modules.mla:MLA" if era == "e3" else "_torch.modules.attention:MLA"
        assert report["symbols"]["MLA"] == place
        wrapper = report["symbols"]["KimiK25ForConditionalGeneration"]
        assert (wrapper is None) == (era == "e1")
        code, out = doctor()
        assert code == 0
        for word in (f"era {era.upper()}", "symbols found", "patched when registered"):
            assert word in out


def rewritten(function: Any, change: Any) -> Any:
    """The same function behind another signature."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def other(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    parameters = [change(p) for p in signature.parameters.values()]
    other.__signature__ = signature.replace(parameters=[p for p in parameters if p is not None])
    return other


@pytest.mark.parametrize("era", ERAS)
def test_a_renamed_class_is_named(era: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with use_host(era):
        import tensorrt_llm._torch.models.modeling_speculative as module

        monkeypatch.setattr(module, "Eagle3LatentForCausalLM", module.Eagle3ForCausalLM, False)
        monkeypatch.delattr(module, "Eagle3ForCausalLM")
        code, out = doctor("--json")
        assert code == 1
        report = json.loads(out)
        name = "_torch.models.modeling_speculative.Eagle3ForCausalLM"
        assert report["missing"] == [name]
        assert planted(report, "error") == [f"tensorrt_llm.{name}"]
        message = report["differences"][0]["message"]
        assert "renamed to Eagle3LatentForCausalLM?" in message
        code, out = doctor()
        assert code == 1
        assert "Eagle3LatentForCausalLM" in out


@pytest.mark.parametrize("era", ERAS)
def test_a_missing_argument_is_named(era: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with use_host(era):
        from tensorrt_llm_ext.trtllm.host import host

        found = host().find("MLA")
        gone = rewritten(found.value.__init__, lambda p: None if p.name == "layer_idx" else p)
        monkeypatch.setattr(found.value, "__init__", gone)
        code, out = doctor("--json")
        assert code == 1
        place = found.place.replace(":", ".")
        assert planted(json.loads(out), "error") == [f"tensorrt_llm.{place}.__init__(layer_idx)"]


@pytest.mark.parametrize("era", ERAS)
def test_a_changed_default_is_named(era: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def change(parameter: Any) -> Any:
        is_it = parameter.name == "next_layer_regular"
        return parameter.replace(default=True) if is_it else parameter

    with use_host(era):
        import tensorrt_llm._torch.models.modeling_speculative as module

        cls = module.Eagle3MLAttention
        monkeypatch.setattr(cls, "__init__", rewritten(cls.__init__, change))
        code, out = doctor("--json")
        assert code == 0
        report = json.loads(out)
        label = (
            "tensorrt_llm._torch.models.modeling_speculative.Eagle3MLAttention.__init__"
            "(next_layer_regular)"
        )
        found = next(d for d in report["differences"] if d["name"] == label)
        assert found["level"] == "warning"
        assert found["message"] == "the default is True, recorded was False"


def test_a_new_argument_that_must_be_given_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with use_host("e1"):
        import tensorrt_llm._torch.modules.gated_mlp as module

        before = module.GatedMLP.__init__

        def other(self: Any, *args: Any, router: Any, **kwargs: Any) -> None:
            before(self, *args, **kwargs)

        signature = inspect.signature(before)
        extra = inspect.Parameter("router", inspect.Parameter.KEYWORD_ONLY)
        other.__signature__ = signature.replace(parameters=[*signature.parameters.values(), extra])
        monkeypatch.setattr(module.GatedMLP, "__init__", other)
        _, out = doctor("--json")
        names = planted(json.loads(out), "warning")
        assert "tensorrt_llm._torch.modules.gated_mlp.GatedMLP.__init__(router)" in names
