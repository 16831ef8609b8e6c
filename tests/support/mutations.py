# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Random damage to checkpoint folders, repeatable by seed.

A folder is held as {file name: content}; each mutation takes one and changes it in place. Content
is bytes, or a `Special`: a link, a FIFO, a folder, or a sparse file of some length.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorrt_llm_ext.checkpoints.io import INDEX_NAME


@dataclass(frozen=True)
class Special:
    """Something that is no regular file with content."""

    kind: str  # "link", "fifo", "folder", "sparse"
    target: str = ""
    size: int = 0


Files = dict[str, "bytes | Special"]
Mutation = Callable[[Files, random.Random], str]

_DEEP: Any = 0
for _ in range(60):
    _DEEP = [_DEEP]
_BIG_NUMBER = "@BIG@"  # becomes a number of 5,000 digits in the text
_JUNK: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 3, 7, 2**31, 2**63, -(2**63), 10**30, 10**400),
    *(0.5, -0.0, 1e-300, 1e308, math.nan, math.inf, -math.inf, 3.0, 4.5),
    *("", "abc", "7168", "true", "x" * 5000, "\x00", "\ud800", "../../x", "yarn", "\u202e\u0130"),
    *([], {}, [1], [1, 2, 3], [2, 4, 5], [-1, 0, 1], [True, False, True], ["1", "2"], [[1], [2]]),
    *([1.0, 2.0, 3.0], [2**70] * 3, list(range(3000)), {"a": {"b": None}}, {"": []}, _DEEP),
    _BIG_NUMBER,
)
_KEYS = (
    *("eagle_config", "eagle_aux_hidden_state_layer_ids", "trtllm_ext_aux_boundaries", "layer_ids"),
    *("aux_hidden_states_layer_ids", "fc_norm", "norm_output", "norm_before_fc", "use_aux_norm"),
    *("norm_before_residual", "draft_vocab_size", "target_hidden_size", "num_aux_hidden_states"),
    *("rope_scaling", "rope_parameters", "rope_theta", "quantization_config", "auto_map"),
    *("text_config", "transformer_layer_config", "speculators_config", "tie_word_embeddings"),
    *("max_position_embeddings", "head_dim", "torch_dtype", "dtype", "hidden_act", "architectures"),
    *("model_type", "num_nextn_predict_layers", "kv_cache_scheme", "config_groups", "ignore"),
    *("quant_method", "quant_algo", "optional", "transform_config", "parallel_draft_step"),
)
_DTYPES = ("F64", "F32", "BF16", "F8_E4M3", "I64", "I32", "U8", "BOOL", "F4", "F99", "", "f32", 1)
_TENSORS = (
    *("midlayer.fc.weight", "model.fc.weight", "fc_norm.0.weight", "fc_norm.7.weight", "d2t"),
    *("t2d", "input_norm.weight", "layers.0.self_attn.g_proj.weight", "layers.3.norm.weight"),
    *("layers.0.self_attn.fused_qkv_a_proj.weight", "layers.0.mlp.gate_up_proj.weight_scale"),
    *("fc.weight_scale", "fc.weight_packed", "layers.0.self_attn.kv_b_proj.k_scale", "", "."),
    *("__metadata__", "../x", "\u0130\u202e", "\x00", "x" * 4000, "layers.99999999999999.norm"),
    *("layers.0.mlp.experts.0.gate_proj.weight", "layers.0.self_attn.k_proj.weight", "\ud800"),
)
_FILE_NAMES = (
    *("../x.safetensors", "/etc/passwd", "C:\\x.safetensors", "a/b.safetensors", "..", "", "\x00"),
    *("pytorch_model.bin", "model.pt", "absent.safetensors", "x" * 400 + ".safetensors"),
    *("\ud800.safetensors", ".safetensors", "config.json", "model.safetensors/", "CON"),
)


def mutate(files: Files, rng: random.Random) -> list[str]:
    """Applies one to three mutations; returns what was done."""
    times = rng.choice((1, 1, 1, 2, 3))
    # Two removals can empty a folder: nothing is left to damage.
    return [rng.choice(MUTATIONS)(files, rng) for _ in range(times) if files]


def write(files: Files, folder: Path) -> None:
    """Writes the folder; names that a file system cannot hold are left out."""
    folder.mkdir(parents=True)
    for name, content in files.items():
        path = folder / name
        if isinstance(content, bytes):
            path.write_bytes(content)
        elif content.kind == "link":
            path.symlink_to(content.target)
        elif content.kind == "fifo":
            os.mkfifo(path)
        elif content.kind == "folder":
            path.mkdir()
        else:
            with path.open("wb") as file:
                file.truncate(content.size)


# --- JSON documents ---------------------------------------------------------------------------


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) of a document."""
    found: list[tuple[Any, Any]] = []
    stack = [value]
    while stack:
        current = stack.pop()
        if isinstance(current, dict | list):
            keys = list(current) if isinstance(current, dict) else range(len(current))
            found += [(current, key) for key in keys]
            stack += [current[key] for key in keys]
    return found


def _retyped(value: Any, rng: random.Random) -> Any:
    options: list[Any] = [str(value), [value], {"value": value}, None]
    if isinstance(value, int | float) and not isinstance(value, bool):
        with contextlib.suppress(OverflowError):
            options += [-value, value + 1, value - 1, value * 10**9, not value, float(value)]
    if isinstance(value, list):
        options += [value[::-1], value[:1], value * 2, value[:-1], dict(enumerate(value))]
    if isinstance(value, str):
        options += [value.upper(), value + " ", value[:-1], 1]
    return rng.choice(options)


def _change(document: dict[str, Any], rng: random.Random) -> str:
    places = _places(document)
    if not places:
        document[rng.choice(_KEYS)] = rng.choice(_JUNK)
        return "filled an empty document"
    container, key = rng.choice(places)
    kind = rng.randrange(5)
    if kind == 0:
        del container[key]
        return f"removed {key!r}"
    if kind == 1:
        container[key] = _retyped(container[key], rng)
    elif kind == 2:
        container[key] = (
            container[rng.choice(list(container))]
            if isinstance(container, dict)
            else rng.choice(_JUNK)
        )
    elif kind == 3:
        sections = [document, *(v for v in document.values() if isinstance(v, dict))]
        key = rng.choice(_KEYS)
        rng.choice(sections)[key] = rng.choice(_JUNK)
    else:
        container[key] = rng.choice(_JUNK)
    return f"set {key!r}"[:80]


def _dump(document: Any) -> bytes:
    text = json.dumps(document)
    return text.replace(f'"{_BIG_NUMBER}"', "7" * 5000).encode("utf-8", "surrogatepass")


def _load(content: bytes | Special | None) -> dict[str, Any] | None:
    if not isinstance(content, bytes):
        return None
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _json_files(files: Files) -> list[str]:
    # config.json twice: it has the most readers.
    return [*sorted(name for name in files if name.endswith(".json")), "config.json"]


def json_value(files: Files, rng: random.Random) -> str:
    """Changes one value of a JSON file."""
    name = rng.choice(_json_files(files))
    document = _load(files.get(name))
    if document is None:
        return json_text(files, rng)
    what = _change(document, rng)
    files[name] = _dump(document)
    return f"{name}: {what}"


def json_text(files: Files, rng: random.Random) -> str:
    """Damages the text of a JSON file."""
    name = rng.choice(_json_files(files))
    content = files.get(name)
    text = content if isinstance(content, bytes) else b"{}"
    kind = rng.randrange(10)
    at = rng.randrange(len(text) + 1)
    junk = json.dumps(rng.choice(_JUNK)).encode("utf-8", "surrogatepass")
    key = rng.choice(_KEYS).encode()
    files[name] = {
        0: lambda: text[:at],
        1: lambda: text[:at] + bytes([rng.randrange(256)]) + text[at + 1 :],
        2: lambda: b'{"' + key + b'": ' + junk + b"," + text.lstrip()[1:],
        3: lambda: text.rstrip()[:-1] + b', "' + key + b'": ' + junk + b"}",
        4: lambda: b"[" * 200_000,
        5: lambda: b'{"a":' * 20_000 + b"1" + b"}" * 20_000,
        6: lambda: b"\xff\xfe" + text.decode("utf-8", "replace").encode("utf-16-le"),
        7: lambda: b"\xef\xbb\xbf" + text,
        8: lambda: b"",
        9: lambda: text + b"\x00" * 7,
    }[kind]()
    return f"{name}: text damage {kind} at {at}"


# --- safetensors files ------------------------------------------------------------------------


def _tensor_files(files: Files) -> list[str]:
    return sorted(
        name
        for name, content in files.items()
        if name.endswith(".safetensors") and isinstance(content, bytes) and len(content) > 8
    )


def _split(content: bytes) -> tuple[dict[str, Any] | None, bytes]:
    length = struct.unpack("<Q", content[:8])[0]
    return _load(content[8 : 8 + length]), content[8 + length :]


def _join(header: bytes, payload: bytes) -> bytes:
    header += b" " * (-len(header) % 8)
    return struct.pack("<Q", len(header)) + header + payload


def header_entry(files: Files, rng: random.Random) -> str:
    """Changes dtype, shape, offsets or name of one tensor."""
    name = rng.choice(_tensor_files(files) or [""])
    header, payload = _split(files[name]) if name else (None, b"")
    names = [key for key, value in (header or {}).items() if isinstance(value, dict)]
    names = [key for key in names if key != "__metadata__"]
    if not header or not names:
        return json_value(files, rng)
    tensor = rng.choice(names)
    entry = header[tensor]
    kind = rng.randrange(9)
    if kind == 0:
        entry["dtype"] = rng.choice(_DTYPES)
    elif kind == 1:
        entry["shape"] = rng.choice(
            (
                [],
                [0],
                [-1, 4],
                [2**40, 2**40],
                [1.5, 2],
                ["2", 3],
                [True, 4],
                4,
                None,
                [[2]],
                [4] * 99,
            )
        )
    elif kind == 2 and isinstance(entry.get("shape"), list):
        entry["shape"] = rng.choice(
            (entry["shape"][::-1], [1, *entry["shape"]], entry["shape"][:1])
        )
    elif kind == 3:
        entry["data_offsets"] = rng.choice(
            ([0, 4], [4, 0], [-8, 0], [2**62, 2**63], [0, 2**64], [0.0, 4.0], [0], [0, 1, 2], "0,4")
        )
    elif kind == 4:
        entry["data_offsets"] = list(header[rng.choice(names)].get("data_offsets", [0, 0]))
    elif kind == 5:
        del header[tensor]
    elif kind == 6:
        header[rng.choice(_TENSORS)] = header.pop(tensor)
    elif kind == 7:
        header[rng.choice(_TENSORS)] = dict(entry)
    else:
        header[tensor] = rng.choice(_JUNK)
    files[name] = _join(_dump(header), payload)
    return f"{name}: tensor {tensor!r}, damage {kind}"


def header_names(files: Files, rng: random.Random) -> str:
    """Renames all tensors, or adds many without data."""
    name = rng.choice(_tensor_files(files) or [""])
    header, payload = _split(files[name]) if name else (None, b"")
    if not header:
        return json_text(files, rng)
    kind = rng.randrange(4)
    if kind == 0:
        prefix = rng.choice(("model.", "model.model.", "eagle_module.", "draft_model.", "x."))
        header = {prefix + key: value for key, value in header.items()}
    elif kind == 1:
        header = {key.replace("layers.0.", "midlayer."): value for key, value in header.items()}
    elif kind == 2:
        empty = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
        header |= {f"layers.{i}.extra": empty for i in range(rng.choice((3, 3000)))}
    else:
        header["__metadata__"] = rng.choice(_JUNK)
    files[name] = _join(_dump(header), payload)
    return f"{name}: names, damage {kind}"


def header_bytes(files: Files, rng: random.Random) -> str:
    """Damages the bytes of a file: length, header text, end."""
    name = rng.choice(_tensor_files(files) or [""])
    if not name:
        return json_text(files, rng)
    content = files[name]
    assert isinstance(content, bytes)
    length = struct.unpack("<Q", content[:8])[0]
    at = rng.randrange(8, min(8 + length, len(content) - 1) + 1)
    lengths = (0, 1, 2, length - 1, length + 1, len(content), 100_000_001, 2**40, 2**63, 2**64 - 1)
    kind = rng.randrange(6)
    files[name] = {
        0: lambda: struct.pack("<Q", min(max(rng.choice(lengths), 0), 2**64 - 1)) + content[8:],
        1: lambda: content[:at] + bytes([rng.randrange(256)]) + content[at + 1 :],
        2: lambda: content[: rng.randrange(len(content))],
        3: lambda: content + b"\x00" * rng.choice((1, 8, 1000)),
        4: lambda: content[:8] + b"\x00" * min(length, 4096) + content[8 + length :],
        5: lambda: content[:8] + content[8:][::-1],
    }[kind]()
    return f"{name}: byte damage {kind} at {at}"


# --- index and folder -------------------------------------------------------------------------


def index_entry(files: Files, rng: random.Random) -> str:
    """Points the index elsewhere; adds one where there is none."""
    shards = _tensor_files(files) or ["model.safetensors"]
    index = _load(files.get(INDEX_NAME)) or {"weight_map": {"fc.weight": shards[0]}}
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        index["weight_map"] = weight_map = {"fc.weight": shards[0]}
    tensor = rng.choice(list(weight_map))
    kind = rng.randrange(6)
    if kind == 0:
        weight_map[tensor] = rng.choice(_FILE_NAMES)
    elif kind == 1:
        weight_map[tensor] = rng.choice(shards)
    elif kind == 2:
        del weight_map[tensor]
    elif kind == 3:
        weight_map[rng.choice(_TENSORS)] = rng.choice(shards)
    elif kind == 4:
        weight_map |= {f"t{i}": f"model-{i:05d}-of-03000.safetensors" for i in range(1, 3001)}
    else:
        weight_map[tensor] = rng.choice(_JUNK)
    files[INDEX_NAME] = _dump(index)
    return f"index: damage {kind} at {tensor!r}"[:100]


def replace_file(files: Files, rng: random.Random) -> str:
    """Puts a link, FIFO, folder, or a huge or empty file where a file was."""
    name = rng.choice(sorted(files))
    links = (
        *("../elsewhere.safetensors", "../elsewhere.json", "/etc/passwd", "/dev/zero", name),
        *("absent", "config.json", "..", "../../../../../../etc/hostname"),
    )
    files[name] = rng.choice(
        (
            *(Special("link", target) for target in links),
            Special("fifo"),
            Special("folder"),
            *(Special("sparse", size=size) for size in (0, 7, 8, 4096, 17 << 20, 1 << 33)),
        )
    )
    return f"{name}: {files[name]}"


def add_file(files: Files, rng: random.Random) -> str:
    """Adds a file that has no business there."""
    name = rng.choice(
        (
            *("pytorch_model.bin", "model.pt", "x.pkl", "modeling_draft.py", "other.safetensors"),
            *("model-00001-of-00002.safetensors", "hf_quant_config.json", "generation_config.json"),
            *(".safetensors", "adapter_config.json", "quant_model_description.json", INDEX_NAME),
        )
    )
    if name in files:
        return replace_file(files, rng)
    others = [content for content in files.values() if isinstance(content, bytes)]
    files[name] = rng.choice(
        (b"", b"{}", b"\x80\x04N.", b"[]", *others, Special("fifo"), Special("folder"))
    )
    return f"added {name}"


def drop_file(files: Files, rng: random.Random) -> str:
    """Removes or renames a file."""
    name = rng.choice(sorted(files))
    content = files.pop(name)
    if rng.random() < 0.5:
        return f"removed {name}"
    renamed = rng.choice(
        (name + ".bak", name.upper(), "pytorch_model.bin", "b" + name, "model.safetensors")
    )
    files[renamed] = content
    return f"renamed {name} to {renamed}"


MUTATIONS: tuple[Mutation, ...] = (
    *(json_value,) * 6,
    *(header_entry,) * 4,
    json_text,
    header_names,
    header_bytes,
    header_bytes,
    index_entry,
    index_entry,
    replace_file,
    add_file,
    drop_file,
)
