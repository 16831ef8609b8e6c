# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("fastapi", reason="needs tensorrt-llm-ext[serve]")
pytest.importorskip("openai")
pytest.importorskip("httpx")

from tests.server.running import Running, make_llm, serving


@pytest.fixture(scope="package")
def live() -> Iterator[Running]:
    with make_llm() as llm, serving(llm) as running:
        yield running
