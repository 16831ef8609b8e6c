# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Invariant (e): proposals and committed cache rows are functions of the committed tokens alone."""

from hypothesis import given
from hypothesis import strategies as st

from tensorrt_llm_ext.engine.core import EngineCore
from tests.support.oracle_engine import (
    PathChecker,
    assert_same_outcomes,
    plain_outcomes,
    run,
    tiny_models,
)
from tests.support.oracle_strategies import MODEL_SEEDS, plans, works


@given(data=st.data(), key=MODEL_SEEDS, plan=plans())
def test_every_step_equals_the_stateless_oracle(data, key, plan):
    models = tiny_models(*key)
    requests = data.draw(works(models.vocab_size, rich=False))
    expected = plain_outcomes(models, requests, plan.max_seq_len)
    checker = PathChecker(models, requests, expected)
    engine = EngineCore(models.target, models.draft, plan.config(with_draft=True))
    assert_same_outcomes(run(engine, requests, plan, checker), expected)
