# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Registration: once, in every process, by name, by pickle and by `--custom_module_dirs`."""

from __future__ import annotations

import pickle
import platform
import subprocess
import sys
from pathlib import Path

import pytest

import tensorrt_llm_ext
from tests.trtllm.host import ERAS, environment, use_host

MODULES = Path(tensorrt_llm_ext.__file__).parent / "_custom_modules"
TARGETS = {
    "e1": {"DeepseekV3ForCausalLM"},
    "e2": {"DeepseekV3ForCausalLM", "KimiK25ForConditionalGeneration"},
    "e3": {"DeepseekV3ForCausalLM", "KimiK25ForConditionalGeneration"},
}


def run(era: str, code: str) -> str:
    """Runs code in a fresh interpreter that has the double and this package."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(era),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip()


@pytest.mark.parametrize("era", ERAS)
def test_registration_is_idempotent(era: str) -> None:
    with use_host(era):
        import tensorrt_llm._torch.models.modeling_speculative as speculative
        import tensorrt_llm._torch.models.modeling_utils as utils

        from tensorrt_llm_ext.trtllm.plugin import register

        stock = dict(utils.MODEL_CLASS_MAPPING)
        register()
        once = dict(utils.MODEL_CLASS_MAPPING)
        hook = speculative.get_draft_model
        register()
        assert dict(utils.MODEL_CLASS_MAPPING) == once
        assert speculative.get_draft_model is hook
        changed = {name for name in stock if once[name] is not stock[name]}
        assert changed == TARGETS[era]
        for name in changed:
            assert issubclass(once[name], stock[name])
            assert once[name].__name__ == name
        assert "Eagle3DeepseekV2ForCausalLM" in once


@pytest.mark.parametrize("era", ERAS)
def test_a_process_that_unpickles_the_target_class_has_everything(era: str) -> None:
    with use_host(era):
        from tensorrt_llm._torch.models.modeling_utils import MODEL_CLASS_MAPPING

        from tensorrt_llm_ext.trtllm.plugin import register

        register()
        data = pickle.dumps(dict(MODEL_CLASS_MAPPING))
    code = f"""
import pickle, sys
assert "tensorrt_llm_ext" not in sys.modules
pickle.loads({data!r})
import tensorrt_llm._torch.models.modeling_speculative as speculative
import tensorrt_llm._torch.models.modeling_utils as utils
from tensorrt_llm._torch.speculative.interface import SpeculativeDecodingMode as Mode
from tensorrt_llm._torch.speculative.eagle3 import Eagle3OneModelSpecMetadata as Metadata
from transformers import AutoConfig
print(utils.MODEL_CLASS_MAPPING["DeepseekV3ForCausalLM"].__module__)
look = getattr(utils, "get_registered_draft_model_builder", None)
build = speculative.get_draft_model if look is None else look(Mode.EAGLE3_ONE_MODEL)
print(build.__trtllm_ext_patch__, Metadata.prepare.__trtllm_ext_patch__)
config = AutoConfig.for_model("kimi_k2", kv_lora_rank=512, hidden_size=256)
print(config.model_type, config.kv_lora_rank, pickle.loads(pickle.dumps(config)).hidden_size)
"""
    assert run(era, code).splitlines() == [
        "tensorrt_llm_ext.trtllm.registered",
        "draft builder rows that count",
        "kimi_k2 512 256",
    ]


def test_the_module_folder_shadows_nothing() -> None:
    code = f"""
import sys
from tensorrt_llm.tools.importlib_utils import import_custom_module_from_dir
import_custom_module_from_dir({str(MODULES / "trtllm_ext_register")!r})
import tensorrt_llm._torch.models.modeling_utils as utils
sys.modules.pop("platform", None)
import platform
print(sys.path[0])
print(platform.__file__)
print(utils.MODEL_CLASS_MAPPING["DeepseekV3ForCausalLM"].__module__)
"""
    folder, module, target = run("e2", code).splitlines()
    assert folder == str(MODULES)
    assert Path(module) == Path(platform.__file__)
    assert target == "tensorrt_llm_ext.trtllm.registered"


def test_the_module_folder_holds_one_package() -> None:
    names = {path.name for path in MODULES.iterdir() if path.name != "__pycache__"}
    assert names == {"trtllm_ext_register"}
    assert "trtllm_ext_register" not in sys.stdlib_module_names


@pytest.mark.parametrize("era", ERAS)
def test_two_models_are_refused_by_name(era: str) -> None:
    with use_host(era):
        from tensorrt_llm._torch.models.modeling_utils import MODEL_CLASS_MAPPING

        from tensorrt_llm_ext.errors import UnsupportedError
        from tensorrt_llm_ext.trtllm.plugin import register

        register()
        with pytest.raises(UnsupportedError, match="eagle3_one_model"):
            MODEL_CLASS_MAPPING["EAGLE3DeepseekV2ForCausalLM"](object())
