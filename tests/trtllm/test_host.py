# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""The probe of an installed TensorRT-LLM, on small packages that stand in for one."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from pathlib import Path

import pytest

import tensorrt_llm_ext
from tensorrt_llm_ext.checkpoints.checks.base import HostFacts
from tensorrt_llm_ext.errors import HostError
from tensorrt_llm_ext.trtllm import host
from tensorrt_llm_ext.trtllm.versions import PACKAGE, SYMBOLS, HostSymbol

SPECULATIVE = """
class Eagle3MLAttention:
    def __init__(self, model_config, layer_idx=None, next_layer_regular=False): ...
class Eagle3DraftModel:
    def forward(self, attn_metadata, input_ids=None, position_ids=None, inputs_embeds=None,
                spec_metadata=None, hidden_states=None, all_rank_num_tokens=None): ...
class Eagle3ForCausalLM:
    def apply_eagle3_fc(self, x): ...
    def load_weights(self, weights, weight_mapper=None): ...
    def load_weights_from_target_model(self, target_model): ...
class SpecDecOneEngineForCausalLM:
    def load_draft_weights(self, weights, weight_mapper=None): ...
def get_draft_model(model_config, draft_config, lm_head, model): ...
"""
WRAPPER = """
class KimiK25ForConditionalGeneration:
    def __init__(self, model_config):
        self.model = self.lm_head = self.draft_model = None
    @property
    def draft_config(self): ...
    def load_draft_weights(self, *args, **kwargs): ...
    def forward(self, input_ids, **kwargs): ...
"""
EAGLE3 = """
class Eagle3OneModelSpecMetadata:
    layers_to_capture: tuple = None
    def prepare(self): ...
    def is_layer_capture(self, layer_id): ...
    def maybe_capture_hidden_states(self, layer_id, hidden_states, residual=None): ...
class Eagle3OneModelWorker: ...
"""
CONFIG = """
class EagleDecodingConfig:
    eagle3_layers_to_capture: set = None
    max_draft_len: int = None
    speculative_model: str = None
"""
UTILS = """
def register_auto_model(name): ...
class DecoderModelForCausalLM:
    def __init__(self, model, *, config, hidden_size, vocab_size): ...
"""


def _filled(names: Collection[str]) -> dict[str, str]:
    """Modules with what these symbols ask for, at the oldest of their places."""
    modules: dict[str, str] = {}
    for symbol in (row for row in SYMBOLS if row.name in names):
        module, _, attribute = symbol.places[-1].partition(":")
        signature = ", ".join(("self", *symbol.parameters))
        body = "".join(f"    {name} = None\n" for name in symbol.members)
        text = f"class {attribute}:\n{body}    def __init__({signature}): ...\n"
        path = module.replace(".", "/")
        modules[path] = modules.get(path, "") + text
    return modules


# As the 1.3 release candidates are laid out, with MLA at its old place.
WRITTEN = {
    "__init__": "__version__ = '1.3.0rc9'",
    "_torch/models/modeling_utils": UTILS,
    "_torch/models/modeling_speculative": SPECULATIVE,
    "_torch/models/modeling_deepseekv3": "class DeepseekV3ForCausalLM:\n"
    "    def __init__(self, model_config): ...",
    "_torch/models/modeling_kimi_k25": WRAPPER,
    "_torch/speculative/eagle3": EAGLE3,
    "_torch/pyexecutor/model_loader": "class ModelLoader:\n"
    "    def load(self, checkpoint_dir, checkpoint_loader): ...",
    "llmapi/llm_args": CONFIG,
}
COMPLETE = {
    **WRITTEN,
    **_filled(
        {
            row.name
            for row in SYMBOLS
            if not any(p.partition(":")[0].replace(".", "/") in WRITTEN for p in row.places)
        }
    ),
}


def write_package(folder: Path, modules: Mapping[str, str]) -> None:
    """Writes a package; folders on the way to a module become packages."""
    root = folder / PACKAGE
    for name, source in modules.items():
        path = root / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source, encoding="utf-8")
    for path in [root, *(p for p in root.rglob("*") if p.is_dir())]:
        (path / "__init__.py").touch()


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Puts a stand-in where Python finds it; its modules are forgotten afterwards."""

    def put(modules: Mapping[str, str]) -> None:
        write_package(tmp_path, modules)
        monkeypatch.syspath_prepend(tmp_path)

    before = set(sys.modules)
    host._host.cache_clear()
    yield put
    host._host.cache_clear()
    for name in set(sys.modules) - before:
        if name.partition(".")[0] == PACKAGE:
            del sys.modules[name]


def without(module: str, text: str, instead: str = "") -> dict[str, str]:
    """The complete package but for some source text."""
    assert text in COMPLETE[module]
    return {**COMPLETE, module: COMPLETE[module].replace(text, instead)}


@pytest.mark.skipif(host.is_installed(), reason="TensorRT-LLM is installed here")
def test_an_absent_host_is_not_imported() -> None:
    assert host.probe_host() == HostFacts()
    assert PACKAGE not in sys.modules


@pytest.mark.skipif(host.is_installed(), reason="TensorRT-LLM is installed here")
def test_an_absent_host_is_one_clear_error() -> None:
    for call in (host.host, tensorrt_llm_ext.register):
        with pytest.raises(HostError, match="TensorRT-LLM is not installed in this environment"):
            call()
    with pytest.raises(HostError, match="not installed"):
        tensorrt_llm_ext.speculative_config("target", "draft")


def test_a_broken_host_is_one_clear_error(install) -> None:
    install({"__init__": "raise RuntimeError('no driver')"})
    with pytest.raises(HostError, match=r"RuntimeError: no driver.*doctor --trtllm"):
        host.host()


def test_a_complete_host_lacks_nothing(install) -> None:
    install(COMPLETE)
    facts = host.probe_host()
    assert facts.version == "1.3.0rc9"
    assert facts.missing == ()
    found = host.host()
    assert (found.version, found.era) == ("1.3.0rc9", "E2")
    assert found.optional("get_registered_draft_model_builder") is None
    assert found.symbol("MLA").__module__ == f"{PACKAGE}._torch.modules.attention"
    assert found.has_parameter("draft builder", "", "lm_head")
    assert found.has_parameter("KimiK25ForConditionalGeneration", "forward", "**")
    assert not found.has_parameter("register_auto_model", "", "lm_head")


@pytest.mark.parametrize(
    ("modules", "missing"),
    [
        (
            without("_torch/models/modeling_speculative", "def apply_eagle3_fc(self, x): ..."),
            "_torch.models.modeling_speculative.Eagle3ForCausalLM.apply_eagle3_fc",
        ),
        (
            without("_torch/models/modeling_kimi_k25", ", **kwargs): ...\n", "): ...\n"),
            "_torch.models.modeling_kimi_k25.KimiK25ForConditionalGeneration.forward(**)",
        ),
        (
            without("_torch/models/modeling_kimi_k25", " = self.draft_model"),
            "_torch.models.modeling_kimi_k25.KimiK25ForConditionalGeneration.draft_model",
        ),
        (
            without("_torch/models/modeling_utils", "(name)", "(architecture)"),
            "_torch.models.modeling_utils.register_auto_model(name)",
        ),
        (
            without("llmapi/llm_args", "eagle3_layers_to_capture", "layers"),
            "llmapi.llm_args.EagleDecodingConfig.eagle3_layers_to_capture",
        ),
        (
            {
                name: text
                for name, text in COMPLETE.items()
                if not name.endswith("modules/attention")
            },
            "_torch.modules.mla.MLA or _torch.modules.attention.MLA",
        ),
    ],
)
def test_missing_names_are_listed(install, modules: dict[str, str], missing: str) -> None:
    install(modules)
    assert host.probe_host().missing == (missing,)


def test_a_module_that_cannot_be_imported_is_named_with_its_error(install) -> None:
    install({**COMPLETE, "_torch/speculative/eagle3": "raise OSError('libcuda.so.1 is missing')"})
    facts = host.probe_host()
    assert facts.version == "1.3.0rc9"
    assert set(facts.missing) == {
        "_torch.speculative.eagle3 (importing it raises OSError: libcuda.so.1 is missing)"
    }


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("raise RuntimeError('no driver')", "RuntimeError: no driver"),
        ("import a_library_that_is_not_there", "ModuleNotFoundError: No module named"),
        ("raise SystemExit(3)", "SystemExit: 3"),
    ],
)
def test_a_host_that_cannot_be_imported_is_a_result(install, source: str, error: str) -> None:
    install({"__init__": source})
    facts = host.probe_host()
    assert facts.version is None
    assert len(facts.missing) == 1
    assert facts.missing[0].startswith(f"tensorrt_llm (importing it raises {error}")


def test_a_missing_dependency_of_a_similar_name_is_no_absent_module(install) -> None:
    install({**COMPLETE, "_torch/modules/attention": "import tensorrt_that_is_not_there"})
    missing = host.probe_host().missing
    assert missing == (
        "_torch.modules.attention (importing it raises ModuleNotFoundError: No module named "
        "'tensorrt_that_is_not_there')",
    )


def test_lazy_attributes_may_raise(install) -> None:
    lazy = "def __getattr__(name):\n    raise RuntimeError('no GPU')"
    install({**COMPLETE, "_torch/models/modeling_deepseekv3": lazy})
    assert host.probe_host().missing == ("_torch.models.modeling_deepseekv3.DeepseekV3ForCausalLM",)
    with pytest.raises(HostError, match=r"has no DeepseekV3ForCausalLM, the target\. Tried: ten"):
        host.host().symbol("DeepseekV3ForCausalLM")


def test_a_signature_that_cannot_be_seen_is_not_held_against_the_host(install) -> None:
    hidden = "class Hidden:\n    __signature__ = 3\n    def __call__(self): ..."
    install({"__init__": "", "places": f"{hidden}\nf = Hidden()\ndef g(): ..."})
    f, g = (
        HostSymbol(name=name, places=(f"places:{name}",), parameters=("x",), why="a test")
        for name in "fg"
    )
    assert host.probe_host([f, g]).missing == ("places.g(x)",)


def test_symbols_are_well_formed() -> None:
    assert len({symbol.name for symbol in SYMBOLS}) == len(SYMBOLS)
    for symbol in SYMBOLS:
        assert symbol.places
        assert symbol.why
        for place in symbol.places:
            module, colon, attribute = place.partition(":")
            assert module
            assert colon
            assert attribute
