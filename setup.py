# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Places the recipes inside the package; everything else is said in pyproject.toml.

The recipes live in `modelopt_recipes/` and ship as `tensorrt_llm_ext/_recipes/`, because a
top-level package of that name would shadow the one that NVIDIA ModelOpt installs.
"""

from pathlib import Path

from setuptools import find_namespace_packages, find_packages, setup

PACKAGE = "tensorrt_llm_ext"
RECIPES_SOURCE = "modelopt_recipes"
RECIPES_TARGET = f"{PACKAGE}._recipes"

packages = find_packages(include=[PACKAGE, f"{PACKAGE}.*"])
# Alone in its folder, which is no package: TensorRT-LLM puts that folder on sys.path.
packages.append(f"{PACKAGE}._custom_modules.trtllm_ext_register")
package_dir = {}
if Path(__file__).with_name(RECIPES_SOURCE).is_dir():
    folders = find_namespace_packages(RECIPES_SOURCE)
    packages += [RECIPES_TARGET, *(f"{RECIPES_TARGET}.{folder}" for folder in folders)]
    package_dir[RECIPES_TARGET] = RECIPES_SOURCE

setup(
    packages=packages,
    package_dir=package_dir,
    package_data={
        PACKAGE: ["py.typed"],
        f"{PACKAGE}.trtllm": ["surface_data/*.json"],
        "": ["*.yaml", "*.md"],
    },
)
