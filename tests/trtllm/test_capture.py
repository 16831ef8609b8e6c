# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""A draft is judged before the host reads it, and its layers are the ones that are captured."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tensorrt_llm_ext.errors import CheckpointError, ConfigError, UnsupportedError
from tests.trtllm.host import ERAS, use_host
from tests.trtllm.serving import EXAMPLE, serve, target_for

TARGET = json.loads((EXAMPLE / "target" / "config.json").read_text(encoding="utf-8"))


@pytest.fixture
def draft(tmp_path: Path) -> Path:
    return Path(shutil.copytree(EXAMPLE / "draft", tmp_path / "draft"))


def edit(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    change(config)
    path.write_text(json.dumps(config), encoding="utf-8")


def prepare(era: str, folder: Path, **options: Any) -> tuple[Any, Any]:
    """Prepares a draft on a double; returns the host's settings and what was found."""
    with use_host(era):
        from tensorrt_llm.llmapi.llm_args import Eagle3DecodingConfig

        from tensorrt_llm_ext.trtllm.capture import prepare_draft, prepared

        values = {"max_draft_len": 3, "speculative_model": str(folder), **options}
        spec = Eagle3DecodingConfig(**values)
        assert spec.num_capture_layers == len(options.get("eagle3_layers_to_capture") or (1, 2, 3))
        # The unwrapped target, as 1.2 gets it.
        config = TARGET["text_config"] | {"architectures": ["DeepseekV3ForCausalLM"]}
        found = prepare_draft(spec, SimpleNamespace(**config))
        assert prepared(folder) is found
        return spec, found


@pytest.mark.parametrize("era", ERAS)
def test_the_layers_are_set_from_the_draft(era: str) -> None:
    spec, found = prepare(era, EXAMPLE / "draft")
    assert spec.eagle3_layers_to_capture == {2, 4, 6}
    assert found.layers_to_capture == (2, 4, 6)
    assert found.config.boundaries == (3, 5, 7)
    assert spec._allow_separate_draft_kv_cache is False
    again, _ = prepare(era, EXAMPLE / "draft", eagle3_layers_to_capture={2, 4, 6})
    assert again.eagle3_layers_to_capture == {2, 4, 6}


def test_the_number_of_layers_is_computed_anew(draft: Path) -> None:
    """`num_capture_layers` is cached by the host, with three for no option."""
    stored = load_file(draft / "model.safetensors")
    stored["fc.weight"] = torch.zeros(256, 512)
    del stored["fc_norm.2.weight"]
    save_file(stored, draft / "model.safetensors")

    def two(config: dict[str, Any]) -> None:
        config["trtllm_ext_aux_boundaries"] = [3, 5]
        config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = [2, 4]
        config["num_aux_hidden_states"] = 2

    edit(draft, two)
    spec, _ = prepare("e2", draft)
    assert spec.eagle3_layers_to_capture == {2, 4}
    assert spec.num_capture_layers == 2


@pytest.mark.parametrize("era", ERAS)
def test_another_choice_of_the_user_is_an_error(era: str) -> None:
    with pytest.raises(ConfigError) as caught:
        prepare(era, EXAMPLE / "draft", eagle3_layers_to_capture={1, 3, 4})
    assert caught.value.check == "V12"
    for words in ("[1, 3, 4]", "[2, 4, 6]"):
        assert words in str(caught.value)


def test_the_user_decides_what_the_draft_leaves_open(draft: Path) -> None:
    def silent(config: dict[str, Any]) -> None:
        del config["trtllm_ext_aux_boundaries"]
        del config["eagle_config"]["eagle_aux_hidden_state_layer_ids"]

    edit(draft, silent)
    _, found = prepare("e1", draft, eagle3_layers_to_capture={2, 4, 6})
    assert found.config.boundaries == (3, 5, 7)
    with pytest.raises(ConfigError) as caught:
        prepare("e1", draft)
    assert caught.value.check == "V9"


@pytest.mark.parametrize(
    ("era", "how"), [("e1", "script"), ("e2", "auto_map"), ("e3", "script"), ("e3", "auto_map")]
)
def test_code_is_refused_before_the_host_reads_the_folder(
    era: str, how: str, draft: Path, unwrapped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if how == "script":
        (draft / "modeling_x.py").write_text("raise SystemExit", encoding="utf-8")
    else:
        edit(draft, lambda c: c.update(auto_map={"AutoConfig": "modeling_x.C"}))
    read: list[str] = []
    with use_host(era):
        from tensorrt_llm import LLM
        from trtllm_double import args

        before = args.load_config
        monkeypatch.setattr(
            args, "load_config", lambda f, *a: read.append(str(f)) or before(f, *a), raising=True
        )
        from tensorrt_llm.llmapi.llm_args import EagleDecodingConfig

        from tensorrt_llm_ext.trtllm.plugin import register

        register()
        monkeypatch.setenv("TLLM_WORKER_USE_SINGLE_PROCESS", "1")
        spec = EagleDecodingConfig(max_draft_len=3, speculative_model=str(draft))
        with pytest.raises(CheckpointError, match="brings code"):
            LLM(str(target_for(era, unwrapped)), dtype="float32", speculative_config=spec)
    assert str(draft) not in read


@pytest.mark.parametrize("era", ERAS)
def test_trees_are_refused(era: str) -> None:
    with pytest.raises(UnsupportedError, match="use_dynamic_tree asks for a draft tree"):
        prepare(era, EXAMPLE / "draft", use_dynamic_tree=True)


def test_no_speculation_and_other_modes_are_left_alone(draft: Path) -> None:
    (draft / "code.py").touch()
    with use_host("e2"):
        from tensorrt_llm.llmapi.llm_args import Eagle3DecodingConfig

        from tensorrt_llm_ext.trtllm.capture import prepare_draft

        assert prepare_draft(None, None) is None
        for option in ({"eagle3_one_model": False}, {"eagle3_model_arch": "mistral_large3"}):
            spec = Eagle3DecodingConfig(max_draft_len=3, speculative_model=str(draft), **option)
            assert prepare_draft(spec, None) is None
            assert spec.eagle3_layers_to_capture is None


def plain_attention(folder: Path) -> None:
    """A draft with ordinary attention."""

    def change(config: dict[str, Any]) -> None:
        config["architectures"] = ["LlamaForCausalLMEagle3"]
        config["model_type"] = "llama"
        for name in ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim"):
            del config[name]

    edit(folder, change)
    names = ("q_proj", "k_proj", "v_proj", "o_proj")
    tensors = {f"midlayer.self_attn.{n}.weight": torch.zeros(8, 8) for n in names}
    save_file(tensors, folder / "model.safetensors")


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("readable", [True, False])
def test_a_draft_with_ordinary_attention_is_left_to_the_host(
    era: str, readable: bool, draft: Path
) -> None:
    plain_attention(draft)
    if not readable:  # the host reads pickles, we do not
        (draft / "model.safetensors").rename(draft / "pytorch_model.bin")
    spec, found = prepare(era, draft)
    assert found is None
    assert spec.eagle3_layers_to_capture is None
    assert spec._allow_separate_draft_kv_cache is True


@pytest.mark.parametrize("era", ERAS)
def test_what_is_not_ours_goes_to_the_builder_of_before(era: str, draft: Path) -> None:
    plain_attention(draft)
    with use_host(era):
        from tensorrt_llm_ext.trtllm.builder import build_draft

        seen: list[Any] = []
        config = SimpleNamespace(spec_config=SimpleNamespace(speculative_model=str(draft)))
        given = (config, object(), object(), object())
        assert build_draft(lambda *args: seen.append(args) or "theirs", *given) == "theirs"
        assert seen == [given]


@pytest.mark.parametrize("era", ERAS)
def test_the_helper_gives_the_host_its_own_object(era: str, unwrapped: Path) -> None:
    with use_host(era):
        from tensorrt_llm.llmapi.llm_args import Eagle3DecodingConfig

        from tensorrt_llm_ext.trtllm.spec_config import speculative_config

        target, draft = target_for(era, unwrapped), EXAMPLE / "draft"
        made = speculative_config(target, draft, max_draft_len=2, max_concurrency=4)
        assert type(made) is Eagle3DecodingConfig
        assert made.eagle3_layers_to_capture == {2, 4, 6}
        assert (made.max_draft_len, made.max_concurrency) == (2, 4)
        assert made.speculative_model == str(draft)
        with pytest.raises(ConfigError, match="no key 'max_draft_length'"):
            speculative_config(target, draft, max_draft_length=2)
        with pytest.raises(ConfigError, match=r"\[2, 4, 6\]"):
            speculative_config(target, draft, eagle3_layers_to_capture={1, 3, 4})
        from tensorrt_llm._torch.models.modeling_utils import MODEL_CLASS_MAPPING

        module = MODEL_CLASS_MAPPING["DeepseekV3ForCausalLM"].__module__
        assert module == "tensorrt_llm_ext.trtllm.registered"


def test_what_a_version_cannot_serve_is_refused_by_the_helper() -> None:
    with use_host("e1"):
        from tensorrt_llm_ext.trtllm.spec_config import speculative_config

        with pytest.raises(UnsupportedError, match=r"TensorRT-LLM 1\.2\.1 cannot run this pair"):
            speculative_config(EXAMPLE / "target", EXAMPLE / "draft")


def test_the_executor_captures_what_the_draft_says(unwrapped: Path) -> None:
    stock = serve("e1", unwrapped, None, [])
    assert stock.info[0]["layers_to_capture"] is None
    ours = serve("e1", unwrapped, EXAMPLE / "draft", [])
    assert ours.info[0]["layers_to_capture"] == [2, 4, 6]
