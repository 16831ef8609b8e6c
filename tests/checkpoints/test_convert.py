# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""A draft stays the same draft, bit for bit, from any layout to any receiver and back."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from tensorrt_llm_ext.checkpoints import convert as convert_module
from tensorrt_llm_ext.checkpoints import stream
from tensorrt_llm_ext.checkpoints.checks.base import Status
from tensorrt_llm_ext.checkpoints.convert import ConvertOptions, canonical_hash, convert_draft
from tensorrt_llm_ext.checkpoints.normalize import (
    draft_config,
    open_draft,
    open_target,
    target_config,
)
from tensorrt_llm_ext.checkpoints.receivers import RECEIVERS
from tensorrt_llm_ext.checkpoints.store import FolderStore
from tensorrt_llm_ext.checkpoints.writer import save_checkpoint
from tensorrt_llm_ext.configs.hf_target import target_config_from_hf
from tensorrt_llm_ext.errors import CheckpointError, ConfigError
from tests.support.nvfp4_drafts import hf_quant_config, nvfp4_tensors
from tests.support.tiny_checkpoints import (
    Tensors,
    draft_json,
    draft_shapes,
    random_tensors,
    target_json,
    write_draft,
    write_target,
)

PREFIXES = ("", "model.", "eagle_module.", "draft_model.")
LAYERS = ("midlayer.", "layers.0.")
IDS = {"after-layer": [1, 3, 4], "boundary": [2, 4, 5]}  # the default triples for 8 layers
TARGET = target_config_from_hf(target_json())
TINY_KIMI = Path(__file__).parents[2] / "examples" / "tiny_kimi"


def fused(tensors: Tensors) -> Tensors:
    """Joins q_a with kv_a and gate with up, their row-wise scales too; scalars stay one."""
    result = dict(tensors)
    pairs = {
        "layers.0.self_attn.fused_qkv_a_proj_with_mqa": (
            "layers.0.self_attn.q_a_proj",
            "layers.0.self_attn.kv_a_proj_with_mqa",
        ),
        "layers.0.mlp.gate_up_proj": ("layers.0.mlp.gate_proj", "layers.0.mlp.up_proj"),
    }
    for joined, (first, second) in pairs.items():
        for kind in ("weight", "weight_scale", "weight_scale_2", "input_scale"):
            if f"{first}.{kind}" not in result:
                continue
            a, b = result.pop(f"{first}.{kind}"), result.pop(f"{second}.{kind}")
            result[f"{joined}.{kind}"] = torch.cat([a, b]) if a.ndim else a
    return result


def canonical_tensors(*, embedding: bool, quantized: bool) -> Tensors:
    shapes = draft_shapes(draft_json(), embedding=embedding)
    tensors = random_tensors(shapes, seed=7, dtype=torch.bfloat16)
    return nvfp4_tensors(tensors) if quantized else tensors


def write_layout(
    folder: Path,
    tensors: Tensors,
    *,
    prefix: str = "",
    layer: str = "layers.0.",
    is_fused: bool = False,
    ids: list[int] | None = None,
    quantized: bool = False,
    **config: Any,
) -> Path:
    """Writes canonical tensors in some producer's layout."""
    stored = fused(tensors) if is_fused else tensors
    names = {name: prefix + name.replace("layers.0.", layer) for name in stored}
    document = draft_json(torch_dtype="bfloat16", **config)
    document["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": ids or IDS["boundary"]}
    extra = {"hf_quant_config.json": hf_quant_config()} if quantized else None
    save_checkpoint(
        folder, document, {names[name]: stored[name] for name in stored}, extra_json=extra
    )
    return folder


def stored(folder: Path) -> Tensors:
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


@pytest.mark.parametrize("quantized", [False, True], ids=["bf16", "nvfp4"])
@pytest.mark.parametrize("embedding", [False, True], ids=["no-embed", "embed"])
@pytest.mark.parametrize("prefix", PREFIXES)
def test_every_layout_becomes_the_same_checkpoint(
    tmp_path: Path, prefix: str, embedding: bool, quantized: bool
) -> None:
    tensors = canonical_tensors(embedding=embedding, quantized=quantized)
    plain = write_layout(tmp_path / "plain", tensors, quantized=quantized)
    reference = canonical_hash(open_draft(plain), target=TARGET)
    receivers = itertools.cycle(["trtllm", "vllm", "sglang", "specforge"])
    for layer, is_fused, ids in itertools.product(LAYERS, (False, True), IDS.values()):
        name = f"{layer}{is_fused}{ids[0]}"
        folder = write_layout(
            tmp_path / name,
            tensors,
            prefix=prefix,
            layer=layer,
            is_fused=is_fused,
            ids=ids,
            quantized=quantized,
        )
        source = open_draft(folder)
        assert canonical_hash(source, target=TARGET) == reference
        out = tmp_path / f"{name}-out"
        report = convert_draft(source, out, to=next(receivers), target=TARGET)
        assert report.is_same_draft
        assert report.canonical_hash == reference
        # Now the files say their boundaries themselves: no target is needed.
        assert canonical_hash(open_draft(out)) == reference


@pytest.mark.parametrize("quantized", [False, True], ids=["bf16", "nvfp4"])
@pytest.mark.parametrize("boundaries", [(2, 4, 5), (3, 5, 8)])
@pytest.mark.parametrize("receiver", RECEIVERS)
def test_there_and_back(
    tmp_path: Path, receiver: str, boundaries: tuple[int, ...], quantized: bool
) -> None:
    tensors = canonical_tensors(embedding=False, quantized=quantized)
    folder = write_layout(
        tmp_path / "in", tensors, ids=list(boundaries), prefix="model.", quantized=quantized
    )
    source = open_draft(folder)
    first = convert_draft(source, tmp_path / "a", to=receiver, target=TARGET, boundaries=boundaries)
    for back in RECEIVERS:
        second = convert_draft(open_draft(tmp_path / "a"), tmp_path / back, to=back)
        assert second.canonical_hash == first.canonical_hash
        config = draft_config(open_draft(tmp_path / back))
        assert config.boundaries == boundaries
        assert draft_config(open_draft(tmp_path / back), TARGET).boundaries == boundaries
    # The way does not matter: the same receiver gets the same bytes.
    for name in ("model.safetensors", "config.json"):
        direct = (tmp_path / "a" / name).read_bytes()
        assert (tmp_path / receiver / name).read_bytes() == direct


def test_same_input_gives_same_bytes(tmp_path: Path) -> None:
    tensors = canonical_tensors(embedding=True, quantized=True)
    a = write_layout(tmp_path / "a", tensors, quantized=True)
    b = write_layout(tmp_path / "b", dict(reversed(tensors.items())), quantized=True)
    for folder in (a, b):
        convert_draft(open_draft(folder), folder / "out", to="vllm", target=TARGET)
    for name in ("model.safetensors", "config.json", "hf_quant_config.json"):
        assert (a / "out" / name).read_bytes() == (b / "out" / name).read_bytes()


def test_hash_sees_every_bit_and_every_setting(tmp_path: Path) -> None:
    tensors = canonical_tensors(embedding=False, quantized=False)
    folder = write_layout(tmp_path / "in", tensors)
    reference = canonical_hash(open_draft(folder), target=TARGET)
    hashes = {reference}
    changes: list[tuple[Tensors, dict[str, Any]]] = [
        ({"norm.weight": tensors["norm.weight"] * 2}, {}),
        ({"fc.weight": tensors["fc.weight"].flip(0)}, {}),
        ({}, {"norm_output": True}),
        ({}, {"rms_norm_eps": 1e-6}),
        ({}, {"rope_theta": 50000.0}),
        ({}, {"max_position_embeddings": 64}),
    ]
    for number, (replaced, config) in enumerate(changes):
        other = write_layout(tmp_path / str(number), {**tensors, **replaced}, **config)
        hashes.add(canonical_hash(open_draft(other), target=TARGET))
    hashes.add(canonical_hash(open_draft(folder), boundaries=(2, 4, 5)))
    hashes.add(canonical_hash(open_draft(folder), boundaries=(3, 5, 6)))
    assert len(hashes) == len(changes) + 2  # the reference, and one other triple


@pytest.mark.parametrize("receiver", RECEIVERS)
def test_tiny_kimi_loads_from_every_receivers_files(tmp_path: Path, receiver: str) -> None:
    from tensorrt_llm_ext.checkpoints.loader import load_draft, load_target

    target_files = open_target(TINY_KIMI / "target")
    source = open_draft(TINY_KIMI / "draft")
    report = convert_draft(
        source,
        tmp_path / "out",
        to=receiver,
        target=target_config(target_files),
        options=ConvertOptions(target_checkpoint=target_files),
    )
    assert report.is_same_draft
    assert report.canonical_hash == canonical_hash(source)
    assert not [f for f in report.findings if f.status is Status.ERROR]
    assert "tokenizer.json" in report.files
    target = load_target(TINY_KIMI / "target")
    draft = load_draft(tmp_path / "out", target)
    original = load_draft(TINY_KIMI / "draft", target)
    expected = original.state_dict()
    for name, value in draft.state_dict().items():
        assert torch.equal(value, expected[name]), name
    assert draft.config.boundaries == original.config.boundaries == (3, 5, 7)


def test_nothing_is_left_after_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_layout(tmp_path / "in", canonical_tensors(embedding=False, quantized=False))
    source = open_draft(folder)
    honest = convert_module.tensor_digests

    def wrong(*args: Any, **kwargs: Any) -> Any:
        digests = honest(*args, **kwargs)
        digests["fc.weight"] = digests["fc.weight"]._replace(sha256="0" * 64)
        return digests

    monkeypatch.setattr(convert_module, "tensor_digests", wrong)
    with pytest.raises(CheckpointError, match=r"1 tensors read back differently.*fc\.weight"):
        convert_draft(source, tmp_path / "out", to="vllm", target=TARGET)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_a_check_that_only_the_output_fails_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_layout(tmp_path / "in", canonical_tensors(embedding=False, quantized=False))
    honest = convert_module.receiver_config

    def wrong(*args: Any, **kwargs: Any) -> dict[str, Any]:
        return {**honest(*args, **kwargs), "num_aux_hidden_states": 4}

    monkeypatch.setattr(convert_module, "receiver_config", wrong)
    with pytest.raises((ConfigError, CheckpointError), match="num_aux_hidden_states"):
        convert_draft(open_draft(folder), tmp_path / "out", to="vllm", target=TARGET)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_existing_output_is_safe(tmp_path: Path) -> None:
    tensors = canonical_tensors(embedding=False, quantized=False)
    source = open_draft(write_layout(tmp_path / "in", tensors))
    out = tmp_path / "out"
    convert_draft(source, out, to="vllm", target=TARGET)
    with pytest.raises(CheckpointError, match="--overwrite"):
        convert_draft(source, out, to="trtllm", target=TARGET)
    assert "layers.0.self_attn.o_proj.weight" in stored(out)
    overwrite = ConvertOptions(overwrite=True)
    convert_draft(source, out, to="trtllm", target=TARGET, options=overwrite)
    assert "midlayer.self_attn.o_proj.weight" in stored(out)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out"]
    for bad in (tmp_path / "in", tmp_path):
        with pytest.raises(CheckpointError, match="is to be converted"):
            convert_draft(source, bad, to="vllm", target=TARGET, options=overwrite)
    other = tmp_path / "notes"
    other.mkdir()
    (other / "diary.txt").write_text("dear diary")
    with pytest.raises(CheckpointError, match="does not look like a checkpoint"):
        convert_draft(source, other, to="vllm", target=TARGET, options=overwrite)
    assert (other / "diary.txt").exists()


def test_noise_goes_and_unknown_keys_stay(tmp_path: Path) -> None:
    folder = write_layout(
        tmp_path / "in",
        canonical_tensors(embedding=False, quantized=False),
        n_routed_experts=384,
        first_k_dense_replace=1,
        num_nextn_predict_layers=0,
        target_hidden_size=None,
        temperature=1.0,
        bos_token_id=3,
        some_later_key={"a": 1},
    )
    report = convert_draft(open_draft(folder), tmp_path / "out", to="trtllm", target=TARGET)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert not {"n_routed_experts", "first_k_dense_replace", "temperature"} & config.keys()
    assert None not in config.values()
    assert config["target_hidden_size"] == 32
    assert config["max_position_embeddings"] == 128
    assert config["bos_token_id"] == 3
    assert config["some_later_key"] == {"a": 1}
    assert "n_routed_experts" in report.config["removed"]
    assert report.config["added"]["trtllm_ext_aux_boundaries"] == [2, 4, 5]


def test_embedding_is_left_out_only_when_it_is_the_targets(tmp_path: Path) -> None:
    target_tensors = write_target(tmp_path / "target")
    target_files = open_target(tmp_path / "target")
    options = ConvertOptions(target_checkpoint=target_files)
    own = target_tensors["model.embed_tokens.weight"]
    write_draft(tmp_path / "same", embedding=True, change={"embed_tokens.weight": own})
    write_draft(tmp_path / "other", embedding=True)
    same, other = open_draft(tmp_path / "same"), open_draft(tmp_path / "other")
    report = convert_draft(same, tmp_path / "a", to="modelopt", target=TARGET, options=options)
    assert "embed_tokens.weight" not in stored(tmp_path / "a")
    assert not report.is_same_draft  # it borrows now
    with pytest.raises(ConfigError, match=r"differs from the target's.*has no place"):
        convert_draft(other, tmp_path / "b", to="modelopt", target=TARGET, options=options)
    with pytest.raises(ConfigError, match="cannot be compared"):
        convert_draft(same, tmp_path / "b", to="modelopt", target=TARGET)
    unseen = ConvertOptions(drop_embedding=True)
    convert_draft(other, tmp_path / "c", to="modelopt", target=TARGET, options=unseen)
    seen = ConvertOptions(drop_embedding=True, target_checkpoint=target_files)
    with pytest.raises(ConfigError, match="Leave out --drop-embedding"):
        convert_draft(other, tmp_path / "b", to="vllm", target=TARGET, options=seen)
    warned = convert_draft(other, tmp_path / "d", to="sglang", target=TARGET, options=options)
    assert "SGLang uses the target's embedding; the draft's own differs." in warned.warnings
    quiet = convert_draft(same, tmp_path / "e", to="sglang", target=TARGET, options=options)
    assert not [w for w in quiet.warnings if "embedding" in w]


def test_missing_head_is_taken_from_the_target_where_it_is_needed(tmp_path: Path) -> None:
    target_tensors = write_target(tmp_path / "target", wrapper=True)
    write_draft(tmp_path / "in", head=False)
    source = open_draft(tmp_path / "in")
    with pytest.raises(ConfigError, match=r"no lm_head\.weight.*--target"):
        convert_draft(source, tmp_path / "out", to="modelopt", target=TARGET)
    options = ConvertOptions(target_checkpoint=open_target(tmp_path / "target"))
    convert_draft(source, tmp_path / "out", to="modelopt", target=TARGET, options=options)
    assert torch.equal(stored(tmp_path / "out")["lm_head.weight"], target_tensors["lm_head.weight"])
    convert_draft(source, tmp_path / "sglang", to="sglang", target=TARGET)
    config = json.loads((tmp_path / "sglang" / "config.json").read_text())
    assert "draft_vocab_size" not in config  # or SGLang would expect a head


def test_full_vocabulary_maps_are_left_out(tmp_path: Path) -> None:
    maps = {"d2t": torch.zeros(64, dtype=torch.int64), "t2d": torch.ones(64, dtype=torch.bool)}
    write_draft(tmp_path / "maps", change=maps)
    write_draft(tmp_path / "none")
    source = open_draft(tmp_path / "maps")
    reference = canonical_hash(open_draft(tmp_path / "none"), target=TARGET)
    assert canonical_hash(source, target=TARGET) == reference
    report = convert_draft(source, tmp_path / "out", to="vllm", target=TARGET)
    assert report.canonical_hash == reference
    assert not {"d2t", "t2d"} & stored(tmp_path / "out").keys()


@pytest.mark.parametrize("home", ["hf", "flat", "legacy", "both"])
def test_quantization_is_the_same_from_every_home(tmp_path: Path, home: str) -> None:
    tensors = canonical_tensors(embedding=False, quantized=True)
    plain = write_layout(tmp_path / "plain", tensors, quantized=True)
    reference = canonical_hash(open_draft(plain), target=TARGET)
    hf = hf_quant_config()
    flat = {
        "quant_method": "modelopt",
        "quant_algo": "NVFP4",
        "ignore": hf["quantization"]["exclude_modules"],
        "config_groups": {
            "group_0": {
                "input_activations": {"num_bits": 4, "type": "float", "group_size": 16},
                "weights": {"num_bits": 4, "type": "float", "group_size": 16},
                "targets": ["Linear"],
            }
        },
    }
    sections = {"hf": {}, "flat": flat, "both": flat, "legacy": hf}
    section = {"quantization_config": sections[home]} if sections[home] else {}
    extra = {"hf_quant_config.json": hf} if home in ("hf", "both") else None
    config = draft_json(torch_dtype="bfloat16", **section)
    save_checkpoint(tmp_path / "in", config, tensors, extra_json=extra)
    source = open_draft(tmp_path / "in")
    assert canonical_hash(source, target=TARGET) == reference
    report = convert_draft(source, tmp_path / "out", to="trtllm", target=TARGET)
    assert report.canonical_hash == reference
    assert not [f for f in report.findings if f.status in (Status.ERROR, Status.WARNING)]
    written = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    again = json.loads((tmp_path / "out" / "hf_quant_config.json").read_text())
    assert written["quant_method"] == "modelopt"
    assert written["ignore"] == again["quantization"]["exclude_modules"]
    assert "model.midlayer.self_attn.kv_b_proj" in written["ignore"]
    assert not [p for p in written["ignore"] if p.startswith(("eagle_module", "model*"))]
    if home != "flat":
        assert again["producer"] == hf["producer"]


class Remote(FolderStore):
    """Files that can only be read by ranges, as on a hub."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.home = self.folder
        self.folder = None  # type: ignore[assignment]
        self.label = "org/draft@main"

    def names(self) -> tuple[str, ...]:
        return tuple(sorted(path.name for path in self.home.iterdir()))

    def size(self, name: str) -> int:
        return (self.home / name).stat().st_size

    def read(self, name: str, begin: int, end: int) -> bytes:
        return (self.home / name).read_bytes()[begin:end]


def test_a_draft_on_the_hub_is_converted_by_ranges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_layout(tmp_path / "in", canonical_tensors(embedding=True, quantized=True))
    (folder / "LICENSE").write_text("free")
    (folder / "tokenizer_config.json").write_text('{"auto_map": {"AutoTokenizer": "a.B"}}')
    reference = canonical_hash(open_draft(folder), target=TARGET)
    monkeypatch.setattr(stream, "CHUNK_BYTES", 1000)
    report = convert_draft(open_draft(Remote(folder)), tmp_path / "out", to="trtllm", target=TARGET)
    assert report.canonical_hash == reference
    assert (tmp_path / "out" / "LICENSE").read_text() == "free"
    assert "tokenizer_config.json" not in report.files  # it names code


def test_progress_counts_every_byte_once_written_and_once_verified(tmp_path: Path) -> None:
    write_draft(tmp_path / "in", change={"t2d": torch.ones(64, dtype=torch.bool)})
    seen: list[tuple[int, int]] = []
    report = convert_draft(
        open_draft(tmp_path / "in"),
        tmp_path / "out",
        to="vllm",
        target=TARGET,
        progress=lambda done, total: seen.append((done, total)),
    )
    assert seen[-1] == (2 * report.nbytes, 2 * report.nbytes)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


@pytest.mark.parametrize("receiver", ["trtllm", "vllm", "modelopt"])
def test_two_layers_keep_their_numbers(tmp_path: Path, receiver: str) -> None:
    config = draft_json(num_hidden_layers=2)
    write_draft(tmp_path / "in", config)
    source = open_draft(tmp_path / "in")
    report = convert_draft(source, tmp_path / "out", to=receiver, target=TARGET)
    assert report.canonical_hash == canonical_hash(source, target=TARGET)
    names = stored(tmp_path / "out").keys()
    # TensorRT-LLM's later layers call their only input norm as the first calls the state's.
    later = "midlayer.1.hidden_norm" if receiver == "trtllm" else "layers.1.input_layernorm"
    assert f"{later}.weight" in names
    assert ("midlayer.0.mlp.up_proj.weight" in names) == (receiver == "trtllm")
