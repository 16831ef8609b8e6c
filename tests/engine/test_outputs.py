# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tensorrt_llm_ext.configs.sampling import SamplingParams
from tensorrt_llm_ext.engine.outputs import CompletionOutput, SequenceAssembler
from tensorrt_llm_ext.engine.request import Logprob, TokenUpdate
from tensorrt_llm_ext.speculative.stats import AcceptanceStats
from tests.support.tiny_tokenizers import VOCAB_SIZE, byte_level_tokenizer

TEXT = "Tom has 7 apples. END of the answer."


def update(ids: list[int], finish: str | None = None, **fields: Any) -> TokenUpdate:
    return TokenUpdate(
        request_id=0,
        new_token_ids=ids,
        new_logprobs=fields.pop("logprobs", None),
        finish_reason=finish,  # type: ignore[arg-type]
        stop_reason=fields.pop("stop_reason", None),
        acceptance=AcceptanceStats(num_steps=1, num_drafted=3, num_accepted=2),
    )


def assemble(
    ids: list[int], run: int, finish: str = "length", **sampling: Any
) -> tuple[CompletionOutput, list[CompletionOutput], bool]:
    """Feeds ids in runs; returns the final output, each step's snapshot, and whether to abort."""
    assembler = SequenceAssembler(0, SamplingParams(**sampling), byte_level_tokenizer())
    snapshots = []
    for start in range(0, len(ids), run):
        last = start + run >= len(ids)
        must_abort = assembler.apply(update(ids[start : start + run], finish if last else None))
        snapshots.append(assembler.snapshot(advance=True))
        if must_abort:
            return snapshots[-1], snapshots, True
        if assembler.finish_reason is not None:
            break
    return snapshots[-1], snapshots, False


def num_tokens_until(ids: list[int], stop: str) -> int:
    """Number of tokens after which the decoded text first contains `stop`."""
    tokenizer = byte_level_tokenizer()
    return next(n for n in range(len(ids) + 1) if stop in tokenizer.decode(ids[:n]))


@given(st.integers(1, 9))
def test_a_stop_string_inside_a_run_ends_text_and_tokens(run: int) -> None:
    ids = byte_level_tokenizer().encode(TEXT)
    output, _, must_abort = assemble(ids, run, stop="END")
    assert output.text == "Tom has 7 apples. "
    assert (output.finish_reason, output.stop_reason) == ("stop", "END")
    assert output.token_ids == ids[: num_tokens_until(ids, "END")]
    assert must_abort == (len(output.token_ids) <= (len(ids) - 1) // run * run)


def test_the_stop_string_stays_when_asked_for() -> None:
    ids = byte_level_tokenizer().encode(TEXT)
    output, _, _ = assemble(ids, 4, stop=["7 app", "END"], include_stop_str_in_output=True)
    assert output.text == "Tom has 7 app"
    assert output.stop_reason == "7 app"


def test_the_first_min_tokens_tokens_complete_no_stop_string() -> None:
    ids = byte_level_tokenizer().encode(TEXT)
    needed = num_tokens_until(ids, "7")
    stopped, _, _ = assemble(ids, 3, stop="7", min_tokens=needed - 1)
    assert stopped.finish_reason == "stop"
    assert stopped.length == needed
    kept, _, _ = assemble(ids, 3, stop="7", min_tokens=needed)
    assert kept.finish_reason == "length"
    assert kept.text == TEXT


@given(
    st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=60),
    st.integers(1, 7),
    st.sampled_from([None, "a", "er", "qu"]),
    st.booleans(),
)
def test_diffs_join_to_the_whole(ids: list[int], run: int, stop: str | None, keep: bool) -> None:
    output, snapshots, _ = assemble(ids, run, stop=stop, include_stop_str_in_output=keep)
    assert "".join(s.text_diff for s in snapshots) == output.text
    assert [i for s in snapshots for i in s.token_ids_diff] == output.token_ids
    for snapshot in snapshots:
        assert output.text.startswith(snapshot.text)
        assert snapshot.length == len(snapshot.token_ids)
    whole = byte_level_tokenizer().decode(output.token_ids)
    if stop is None or stop not in whole:
        assert output.text == whole
        assert output.finish_reason == "length"
    else:
        end = whole.index(stop) + (len(stop) if keep else 0)
        assert output.text == whole[:end]


def test_log_probabilities_are_cut_and_summed_with_the_tokens() -> None:
    ids = byte_level_tokenizer().encode(TEXT)
    rows = [{i: Logprob(-0.5, 1), 0: Logprob(-2.0, 2)} for i in ids]
    assembler = SequenceAssembler(0, SamplingParams(stop="7", logprobs=2), byte_level_tokenizer())
    assembler.apply(update(ids, "length", logprobs=rows))
    output = assembler.snapshot(advance=True)
    assert output.logprobs == rows[: output.length] == output.logprobs_diff
    assert output.length < len(ids)
    assert math.isclose(output.cumulative_logprob, -0.5 * output.length)


def test_without_a_tokenizer_there_are_tokens_and_no_text() -> None:
    assembler = SequenceAssembler(0, SamplingParams(), None)
    assert not assembler.apply(update([5, 6]))
    assert not assembler.apply(update([7], "stop", stop_reason=7))
    output = assembler.snapshot(advance=False)
    assert (output.token_ids, output.text, output.stop_reason) == ([5, 6, 7], "", 7)
    assert output.cumulative_logprob is None


def test_detokenize_off_still_honours_stop_strings() -> None:
    ids = byte_level_tokenizer().encode(TEXT)
    output, _, _ = assemble(ids, 2, stop="END", detokenize=False)
    assert (output.text, output.stop_reason) == ("", "END")


def test_cancel_keeps_what_was_generated_and_ignores_later_updates() -> None:
    ids = byte_level_tokenizer().encode(TEXT)
    assembler = SequenceAssembler(0, SamplingParams(), byte_level_tokenizer())
    assembler.apply(update(ids[:5]))
    assembler.cancel()
    assembler.apply(update(ids[5:], "length"))
    output = assembler.snapshot(advance=False)
    assert output.finish_reason == "cancelled"
    assert output.token_ids == ids[:5]
    assert assembler.acceptance.num_accepted == 2


def test_snapshots_do_not_change_afterwards() -> None:
    assembler = SequenceAssembler(0, SamplingParams(), byte_level_tokenizer())
    assembler.apply(update([40, 41]))
    before = assembler.snapshot(advance=False)
    assembler.apply(update([42]))
    assert before.token_ids == [40, 41]
