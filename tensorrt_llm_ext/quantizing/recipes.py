# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Finds recipes by name, and reads those of `modelopt_recipes/` without ModelOpt.

ModelOpt reads any recipe. The built-in quantizer reads recipes that import nothing but the few
units in `_UNITS`, which are all that ours import, and whose algorithm is plain max calibration.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tensorrt_llm_ext.errors import ConfigError, UnsupportedError
from tensorrt_llm_ext.quantization.policy import Format

_PACKAGE: Final = Path(__file__).resolve().parents[1]
_ROOTS: Final = (_PACKAGE / "_recipes", _PACKAGE.parent / "modelopt_recipes")
_KV_SUFFIX: Final = "-kv_fp8_cast"
_KV_PATTERN: Final = "*[kv]_bmm_quantizer"

# What ModelOpt's units switch off that a draft could have.
_DEFAULT_DISABLED: Final = ("*lm_head*", "*mlp.gate.*", "*router*", "*output_layer*", "mtp.*")
_UNITS: Final[Mapping[str, tuple[Mapping[str, Any], ...]]] = {
    "configs/ptq/units/base_disable_all": ({"quantizer_name": "*", "enable": False},),
    "configs/ptq/units/default_disabled_quantizers": tuple(
        {"quantizer_name": pattern, "enable": False} for pattern in _DEFAULT_DISABLED
    ),
    "configs/ptq/units/kv_fp8_cast": (
        {"quantizer_name": _KV_PATTERN, "cfg": {"$import": "configs/numerics/fp8"}},
    ),
}
_NUMERICS: Final[Mapping[str, Format]] = {
    "configs/numerics/nvfp4": "nvfp4",
    "configs/numerics/fp8": "fp8",
}
_ENTRY_KEYS: Final = frozenset(("quantizer_name", "cfg", "enable"))


@dataclass(frozen=True, kw_only=True, slots=True)
class ModulePlan:
    """What a recipe makes of one linear module.

    Attributes:
        weight: Format of the weight.
        inputs: Format of the activations that it multiplies; "float" leaves them alone.
        constant_amax: Largest magnitude of the activations, where the recipe says it.
    """

    weight: Format = "float"
    inputs: Format = "float"
    constant_amax: float | None = None


@dataclass(frozen=True, kw_only=True)
class RecipePlan:
    """What a recipe makes of a draft.

    Attributes:
        modules: By canonical name, for every linear module.
        kv_cache_algo: "FP8", or None where the KV cache is left alone.
    """

    modules: Mapping[str, ModulePlan] = field(repr=False)
    kv_cache_algo: str | None

    @property
    def needs_data(self) -> bool:
        """Whether activations must be measured."""
        return any(
            plan.inputs != "float" and plan.constant_amax is None for plan in self.modules.values()
        )


def recipe_names() -> tuple[str, ...]:
    """Returns the names of the recipes that come with this package, without `.yaml`."""
    root = _root()
    if root is None:
        return ()
    files = (path.relative_to(root).with_suffix("") for path in root.rglob("*.yaml"))
    return tuple(sorted(path.as_posix() for path in files))


def find_recipe(name: str) -> Path:
    """Finds a recipe by path, by its name, or by the end of its name.

    `nvfp4_layer`, `nvfp4_layer-kv_fp8_cast`, `qad/nvfp4_layer` and full names all do; a recipe for
    post-training quantization (`ptq/`) goes before others of the same name.

    Args:
        name: As above, or the path of a file, with or without `.yaml`.

    Raises:
        ConfigError: If there is no such recipe, or several.
    """
    path = Path(name)
    for candidate in (path, path.with_name(f"{path.name}.yaml")):
        if candidate.is_file():
            return candidate.resolve()
    wanted = name.removesuffix(".yaml").removesuffix(_KV_SUFFIX)
    names = recipe_names()
    hits = [n for n in names if f"/{n}".removesuffix(_KV_SUFFIX).endswith(f"/{wanted}")]
    if len(hits) > 1:
        hits = [n for n in hits if "/ptq/" in n] or hits
    root = _root()
    if len(hits) == 1 and root is not None:
        return root / f"{hits[0]}.yaml"
    listing = ", ".join(n.rpartition("/")[2].removesuffix(_KV_SUFFIX) for n in hits or names)
    raise ConfigError(
        f"--recipe {name!r} names {'several recipes' if hits else 'no file and no recipe'}. "
        f"{'They are' if hits else 'Known'}: {listing or 'none is installed'}. Give the path of a "
        "YAML file, or more of the name."
    )


def is_distillation(path: Path) -> bool:
    """Whether a recipe is to be followed by training: it lies in a folder `qad`, as ModelOpt's."""
    return path.parent.name in ("qad", "qat")


def read_plan(path: Path, modules: Iterable[str]) -> RecipePlan:
    """Reads a recipe and applies it to modules as ModelOpt would: in order, later entries win.

    Args:
        path: The recipe.
        modules: Canonical names of linear modules.

    Raises:
        ConfigError: If the file is not a PTQ recipe.
        UnsupportedError: If it needs ModelOpt itself.
    """
    document = _document(path)
    quantize = document.get("quantize")
    if not isinstance(quantize, Mapping) or not isinstance(quantize.get("quant_cfg"), list):
        raise ConfigError(f"{path} has no quantize.quant_cfg list, so it is no PTQ recipe.")
    algorithm = quantize.get("algorithm", "max")
    method = algorithm.get("method") if isinstance(algorithm, Mapping) else algorithm
    if method != "max":
        raise _needs_modelopt(path, f"algorithm {method!r}")
    imports = document.get("imports") or {}
    entries = list(_entries(path, quantize["quant_cfg"], imports))
    plans = {module: _module_plan(path, module, entries) for module in modules}
    kv = _last(entries, "layers.0.self_attn.k_bmm_quantizer")
    return RecipePlan(modules=plans, kv_cache_algo="FP8" if kv and kv.format == "fp8" else None)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Entry:
    pattern: str
    format: Format
    constant_amax: float | None = None


def _root() -> Path | None:
    return next((root for root in _ROOTS if root.is_dir()), None)


def _document(path: Path) -> Mapping[str, Any]:
    import yaml

    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"The recipe {path} cannot be read: {error}") from None
    if not isinstance(document, Mapping):
        raise ConfigError(f"The recipe {path} holds no mapping.")
    return document


def _entries(path: Path, items: Sequence[Any], imports: Mapping[str, str]) -> Iterable[_Entry]:
    for item in items:
        if not isinstance(item, Mapping):
            raise ConfigError(f"{path}: an entry of quant_cfg is {item!r}, expected a mapping.")
        if set(item) == {"$import"}:
            unit = imports.get(item["$import"], item["$import"])
            if unit not in _UNITS:
                raise _needs_modelopt(path, f"unit {unit!r}")
            yield from _entries(path, _UNITS[unit], imports)
            continue
        unknown = set(item) - _ENTRY_KEYS
        if unknown or "quantizer_name" not in item:
            raise _needs_modelopt(path, f"entry {dict(item)!r}")
        pattern = str(item["quantizer_name"])
        cfg = item.get("cfg")
        if cfg is None or item.get("enable") is False:
            if item.get("enable") is not False:
                raise _needs_modelopt(path, f"entry {dict(item)!r}")
            yield _Entry(pattern=pattern, format="float")
            continue
        yield _enabled(path, pattern, cfg, imports)


def _enabled(
    path: Path, pattern: str, cfg: Mapping[str, Any], imports: Mapping[str, str]
) -> _Entry:
    name = cfg.get("$import", "")
    kind = _NUMERICS.get(imports.get(name, name))
    if kind is None or set(cfg) - {"$import", "constant_amax"}:
        raise _needs_modelopt(path, f"number format {dict(cfg)!r}")
    amax = cfg.get("constant_amax")
    return _Entry(pattern=pattern, format=kind, constant_amax=None if amax is None else float(amax))


def _module_plan(path: Path, module: str, entries: Sequence[_Entry]) -> ModulePlan:
    weight = _last(entries, f"{module}.weight_quantizer")
    inputs = _last(entries, f"{module}.input_quantizer")
    if inputs is not None and inputs.format not in ("float", weight.format if weight else None):
        raise _needs_modelopt(path, f"activations of {module} in another format than its weight")
    return ModulePlan(
        weight="float" if weight is None else weight.format,
        inputs="float" if inputs is None else inputs.format,
        constant_amax=None if inputs is None else inputs.constant_amax,
    )


def _last(entries: Sequence[_Entry], quantizer: str) -> _Entry | None:
    found = None
    for entry in entries:
        if fnmatch.fnmatchcase(quantizer, entry.pattern):
            found = entry
    return found


def _needs_modelopt(path: Path, what: str) -> UnsupportedError:
    return UnsupportedError(
        f"{path.name} has {what}, which only ModelOpt reads. Install it (pip install "
        "'tensorrt-llm-ext[quantize]', best in an environment of its own) and run the command "
        "there, or choose a recipe of modelopt_recipes."
    )
