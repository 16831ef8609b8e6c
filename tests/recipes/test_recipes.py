# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""The ModelOpt recipes: what they quantize, that they load, and that they shadow nothing."""

from __future__ import annotations

import fnmatch
import importlib.metadata
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tensorrt_llm_ext.quantization.policy import TIERS, rule_for, tier_formats

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "modelopt_recipes"
RECIPES = sorted(str(path.relative_to(FOLDER).with_suffix("")) for path in FOLDER.rglob("*.yaml"))
DRAFT = "huggingface/eagle3_deepseek_mla/"
TARGET = "huggingface/kimi_k25/"
DRAFT_RECIPES = [name for name in RECIPES if name.startswith(DRAFT)]
TARGET_RECIPES = [name for name in RECIPES if name.startswith(TARGET)]
KV = "-kv_fp8_cast"

# What ModelOpt's own units say, as far as modules of drafts and Kimi targets are concerned;
# `test_units_are_modelopts` compares it with an installed ModelOpt.
UNITS: dict[str, Any] = {
    "configs/ptq/units/base_disable_all": [{"quantizer_name": "*", "enable": False}],
    "configs/ptq/units/default_disabled_quantizers": [
        {"quantizer_name": pattern, "enable": False}
        for pattern in ("*lm_head*", "*mlp.gate.*", "*router*", "*vision_tower*")
    ],
    "configs/ptq/units/kv_fp8_cast": [
        {
            "quantizer_name": "*[kv]_bmm_quantizer",
            "cfg": {"num_bits": "e4m3", "use_constant_amax": True},
        }
    ],
    "configs/numerics/nvfp4": {
        "num_bits": "e2m1",
        "block_sizes": {-1: 16, "type": "dynamic", "scale_bits": "e4m3"},
    },
    "configs/numerics/fp8": {"num_bits": "e4m3"},
}
FORMAT_OF = {"e2m1": "nvfp4", "e4m3": "fp8"}

DRAFT_MODULES = [
    "fc",
    *(
        f"layers.{layer}.{name}"
        for layer in (0, 1)
        for name in (
            "self_attn.q_a_proj",
            "self_attn.kv_a_proj_with_mqa",
            "self_attn.q_b_proj",
            "self_attn.q_proj",
            "self_attn.kv_b_proj",
            "self_attn.o_proj",
            "mlp.gate_proj",
            "mlp.up_proj",
            "mlp.down_proj",
        )
    ),
    "lm_head",
    "embed_tokens",
]
LAYER = "language_model.model.layers.3"
TARGET_MODULES = {
    "experts": [f"{LAYER}.mlp.experts.17.{name}_proj" for name in ("gate", "up", "down")],
    "mlp": [
        f"{LAYER}.mlp.shared_experts.gate_proj",
        "language_model.model.layers.0.mlp.down_proj",
    ],
    "o_proj": [f"{LAYER}.self_attn.o_proj"],
    "never": [
        f"{LAYER}.self_attn.kv_b_proj",
        f"{LAYER}.self_attn.q_a_proj",
        f"{LAYER}.mlp.gate",
        "language_model.lm_head",
        "language_model.model.embed_tokens",
        "vision_tower.encoder.blocks.0.mlp.fc0",
        "mm_projector.linear_1",
    ],
}


def entries(recipe: str) -> list[dict[str, Any]]:
    """Returns the recipe's entries with every import resolved."""
    document = yaml.safe_load((FOLDER / f"{recipe}.yaml").read_text(encoding="utf-8"))
    resolved: list[dict[str, Any]] = []
    for entry in document["quantize"]["quant_cfg"]:
        if "$import" in entry:
            assert set(entry) == {"$import"}
            resolved += UNITS[document["imports"][entry["$import"]]]
        elif "cfg" in entry:
            cfg = dict(entry["cfg"])
            unit = UNITS[document["imports"][cfg.pop("$import")]]
            resolved.append(entry | {"cfg": unit | cfg})
        else:
            resolved.append(entry)
    return resolved


def replay(recipe_entries: list[dict[str, Any]], quantizer: str) -> dict[str, Any] | None:
    """Returns the attributes of one quantizer: the last entry that matches it wins."""
    result = None
    for entry in recipe_entries:
        if fnmatch.fnmatchcase(quantizer, entry["quantizer_name"]):
            result = entry["cfg"] if entry.get("enable", True) else None
    return result


def kind_of(attributes: dict[str, Any] | None) -> str:
    return "float" if attributes is None else FORMAT_OF[attributes["num_bits"]]


def weight_formats(recipe: str, modules: list[str]) -> dict[str, str]:
    resolved = entries(recipe)
    return {name: kind_of(replay(resolved, f"{name}.weight_quantizer")) for name in modules}


def stem(recipe: str) -> str:
    return Path(recipe).name.removesuffix(KV)


def tier(recipe: str) -> str:
    """Returns the tier that a draft recipe's name promises."""
    name = stem(recipe).removeprefix("w4a16_").removeprefix("nvfp4_")
    return name.replace("_input_scale1", "")


def test_there_are_recipes() -> None:
    assert len(DRAFT_RECIPES) == 12
    assert len(TARGET_RECIPES) == 3
    assert len(RECIPES) == 15


def test_the_folder_holds_yaml_and_one_page_and_is_no_package() -> None:
    files = {path.relative_to(FOLDER) for path in FOLDER.rglob("*") if path.is_file()}
    others = {str(path) for path in files if path.suffix != ".yaml"}
    assert others == {"README.md"}, "a Python file here would shadow ModelOpt's modelopt_recipes"


def test_the_folder_is_found_only_as_a_namespace() -> None:
    code = (
        "import importlib.util, json\n"
        "spec = importlib.util.find_spec('modelopt_recipes')\n"
        "print(json.dumps([spec.origin, list(spec.submodule_search_locations)]))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    origin, locations = json.loads(result.stdout)
    if importlib.util.find_spec("modelopt") is None:
        assert origin is None  # a namespace gives way to a regular package wherever that lies
        assert str(FOLDER) in locations
    else:
        assert str(FOLDER) not in locations


def test_the_table_equals_the_disk() -> None:
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(huggingface/[^`]+)`", page, flags=re.MULTILINE)
    assert sorted(rows) == RECIPES
    for name, layers, fc, head, activations, data, _ in table(DRAFT):
        formats = weight_formats(name, DRAFT_MODULES)
        shown = {"layers.0.mlp.up_proj": layers, "fc": fc, "lm_head": head}
        for module, cell in shown.items():
            assert formats[module] == {"NVFP4": "nvfp4", "FP8": "fp8", "-": "float"}[cell], name
        inputs = [entry for entry in entries(name) if "input_quantizer" in entry["quantizer_name"]]
        assert (activations == "bf16") == (not inputs), name
        constant = [entry for entry in inputs if "constant_amax" in entry["cfg"]]
        assert (data == "no") == (len(constant) == len(inputs)), name
    for name, experts, mlp, attention, _, _ in table(TARGET):
        marks = {"experts": experts == "NVFP4", "mlp": mlp == "NVFP4", "o_proj": attention != "-"}
        for part, is_quantized in marks.items():
            got = set(weight_formats(name, TARGET_MODULES[part]).values())
            assert got == {"nvfp4" if is_quantized else "float"}, (name, part)


def table(prefix: str) -> list[list[str]]:
    """Returns the cells of the README's rows whose recipe starts with `prefix`."""
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    lines = [line for line in page.splitlines() if line.startswith(f"| `{prefix}")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [[row[0].split("`")[1], *row[1:]] for row in rows]


@pytest.mark.parametrize("recipe", DRAFT_RECIPES)
def test_a_draft_recipe_is_its_tier(recipe: str) -> None:
    assert tier(recipe) in TIERS
    for prefix in ("", "model.", "draft_model."):
        modules = [prefix + name for name in DRAFT_MODULES]
        assert weight_formats(recipe, modules) == tier_formats(tier(recipe), modules)


@pytest.mark.parametrize("recipe", DRAFT_RECIPES)
def test_inputs_follow_weights(recipe: str) -> None:
    resolved = entries(recipe)
    for module in DRAFT_MODULES:
        weight = replay(resolved, f"{module}.weight_quantizer")
        given = replay(resolved, f"{module}.input_quantizer")
        want = "float" if "w4a16" in recipe else kind_of(weight)
        assert kind_of(given) == want, module
        if given is not None and "input_scale1" in recipe:
            assert given["constant_amax"] == 6 * 448


@pytest.mark.parametrize("recipe", TARGET_RECIPES)
def test_a_target_recipe_quantizes_what_its_name_says(recipe: str) -> None:
    scope = stem(recipe).removeprefix("nvfp4_").removesuffix("_only")
    parts = {
        "experts": ["experts"],
        "mlp": ["experts", "mlp"],
        "omlp": ["experts", "mlp", "o_proj"],
    }
    for part, modules in TARGET_MODULES.items():
        want = "nvfp4" if part in parts[scope] else "float"
        assert set(weight_formats(recipe, modules).values()) == {want}, part


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_recipe_spares_what_the_policy_says_and_caches_in_fp8(recipe: str) -> None:
    resolved = entries(recipe)
    for module in (*DRAFT_MODULES, *TARGET_MODULES["never"]):
        if rule_for(module).part == "never" and "vision" not in module:
            assert replay(resolved, f"{module}.weight_quantizer") is None
            assert replay(resolved, f"{module}.input_quantizer") is None
    cache = replay(resolved, "layers.0.self_attn.k_bmm_quantizer")
    assert cache == {"num_bits": "e4m3", "use_constant_amax": True}


@pytest.mark.parametrize("recipe", RECIPES)
def test_recipes_import_only_what_modelopt_ships(recipe: str) -> None:
    document = yaml.safe_load((FOLDER / f"{recipe}.yaml").read_text(encoding="utf-8"))
    assert set(document["imports"].values()) <= set(UNITS)
    assert set(document) == {"imports", "metadata", "quantize"}
    assert document["metadata"]["recipe_type"] == "ptq"


def test_every_tier_has_a_recipe() -> None:
    assert {tier(recipe) for recipe in DRAFT_RECIPES} == set(TIERS)


# --- with ModelOpt ----------------------------------------------------------------------------

needs_modelopt = pytest.mark.skipif(
    importlib.util.find_spec("modelopt") is None,
    reason="needs NVIDIA ModelOpt (pip install 'tensorrt-llm-ext[quantize]')",
)
LOAD_ALL = """
import json, sys
from modelopt.recipe import load_recipe
import modelopt.torch.quantization
results = {}
for path in json.loads(sys.argv[1]):
    try:
        config = load_recipe(path).quantize.model_dump(exclude_unset=True)
        results[path] = [entry["quantizer_name"] for entry in config["quant_cfg"]]
    except ValueError as error:
        results[path] = str(error)
print("RESULT" + json.dumps(results))
"""


def load_all(paths: list[str], cwd: Path) -> dict[str, Any]:
    """Loads recipes in a fresh interpreter that has `cwd` on its path, as `python -c` does."""
    result = subprocess.run(
        [sys.executable, "-c", LOAD_ALL, json.dumps(paths)],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.partition("RESULT")[2])


@needs_modelopt
@pytest.mark.parametrize("place", ["repository root", "filesystem root"])
def test_every_recipe_loads_with_modelopt(place: str) -> None:
    version = tuple(map(int, importlib.metadata.version("nvidia-modelopt").split(".")[:2]))
    oldest = {
        row[0]: tuple(map(int, row[-1].split("."))) for row in (*table(DRAFT), *table(TARGET))
    }
    if place == "repository root":
        paths, cwd = {name: f"modelopt_recipes/{name}" for name in RECIPES}, ROOT
    else:
        paths, cwd = {name: str(FOLDER / f"{name}.yaml") for name in RECIPES}, Path("/")
    loaded = load_all(list(paths.values()), cwd)
    for name, path in paths.items():
        if version >= oldest[name]:
            assert isinstance(loaded[path], list), loaded[path]
            assert loaded[path][0] == "*"
            assert loaded[path][-1] == "*kv_b_proj*"
        else:
            assert "constant_amax" in loaded[path]


@needs_modelopt
def test_units_are_modelopts() -> None:
    import modelopt

    library = Path(modelopt.__file__).parents[1] / "modelopt_recipes"
    for name, known in UNITS.items():
        documents = list(yaml.safe_load_all((library / f"{name}.yaml").read_text(encoding="utf-8")))
        unit = documents[-1]
        if isinstance(known, list):
            unit = unit if isinstance(unit, list) else [unit]
            patterns = {entry["quantizer_name"] for entry in unit}
            assert {entry["quantizer_name"] for entry in known} <= patterns
            assert all(("cfg" in entry) == ("cfg" in unit[0]) for entry in known)
        else:
            assert known.items() <= unit.items()


# --- the wheel --------------------------------------------------------------------------------

CAPTURE = """
import json, runpy, setuptools
setuptools.setup = lambda **settings: print("RESULT" + json.dumps(
    {key: settings[key] for key in ("packages", "package_dir")}))
runpy.run_path("setup.py")
"""


def test_the_wheel_has_one_top_level_name_and_every_recipe() -> None:
    pytest.importorskip("setuptools")
    result = subprocess.run(
        [sys.executable, "-c", CAPTURE], cwd=ROOT, capture_output=True, text=True, check=True
    )
    settings = json.loads(result.stdout.partition("RESULT")[2])
    assert {name.partition(".")[0] for name in settings["packages"]} == {"tensorrt_llm_ext"}
    folders = {str(Path(recipe).parent).replace("/", ".") for recipe in RECIPES}
    assert {f"tensorrt_llm_ext._recipes.{folder}" for folder in folders} <= set(
        settings["packages"]
    )
    assert settings["package_dir"] == {"tensorrt_llm_ext._recipes": "modelopt_recipes"}


@pytest.mark.slow
def test_a_built_wheel_carries_the_recipes_inside_the_package(tmp_path: Path) -> None:
    import shutil
    import zipfile

    source = tmp_path / "source"  # a build leaves files beside its sources
    source.mkdir()
    for name in ("tensorrt_llm_ext", "modelopt_recipes"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"),
            *("--no-build-isolation", "--wheel-dir", str(tmp_path), str(source)),
        ],
        check=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    top = {name.partition("/")[0] for name in names}
    assert {name for name in top if not name.endswith(".dist-info")} == {"tensorrt_llm_ext"}
    packed = {f"tensorrt_llm_ext/_recipes/{recipe}.yaml" for recipe in RECIPES}
    assert packed | {"tensorrt_llm_ext/_recipes/README.md"} <= set(names)
