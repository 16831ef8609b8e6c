# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from tensorrt_llm_ext.configs.sampling import SamplingParams
from tensorrt_llm_ext.engine.handle import GenerationHandle
from tensorrt_llm_ext.engine.llm import LLM
from tensorrt_llm_ext.engine.outputs import RequestOutput
from tensorrt_llm_ext.engine.settings import EngineConfig
from tensorrt_llm_ext.errors import RequestError
from tests.support.cycling_models import cycling_models
from tests.support.tiny_tokenizers import byte_level_tokenizer

TEXT = "Tom has 3🦊 apples. "  # the fox takes three tokens
CYCLE = byte_level_tokenizer().encode(TEXT)
LONG = SamplingParams(max_tokens=200)
TIMEOUT = 60.0


def make_llm(**limits: Any) -> LLM:
    return LLM.from_loaded(cycling_models(CYCLE), EngineConfig(max_draft_len=1, **limits))


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with make_llm(max_batch_size=4) as engine:
        yield engine


def engine_threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name == "trtllm-ext-engine"]


def check_idle(llm: LLM) -> None:
    """No request is left in the engine, and it still serves."""
    assert llm.generate(CYCLE, SamplingParams(max_tokens=3)).outputs[0].length == 3
    core = llm._service._core
    assert not core.has_unfinished()
    core.check_integrity()


def joined(outputs: list[RequestOutput]) -> tuple[str, list[int]]:
    text = "".join(output.outputs[0].text_diff for output in outputs)
    return text, [i for output in outputs for i in output.outputs[0].token_ids_diff]


def test_streaming_yields_growing_texts_whose_diffs_join(llm: LLM) -> None:
    params = SamplingParams(max_tokens=30, logprobs=0)
    outputs = list(llm.generate_async(CYCLE, params, streaming=True))
    final = outputs[-1].outputs[0]
    whole = llm.generate(CYCLE, params).outputs[0]
    assert (final.text, final.token_ids) == (whole.text, whole.token_ids) == joined(outputs)
    assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]
    assert len(outputs) > 1
    for output in outputs:
        assert "\ufffd" not in output.outputs[0].text or output.finished
        assert final.text.startswith(output.outputs[0].text)
        assert len(output.outputs[0].logprobs_diff) == len(output.outputs[0].token_ids_diff)


def test_a_stop_string_is_never_streamed_in_part(llm: LLM) -> None:
    params = SamplingParams(max_tokens=60, stop="🦊 apples. Tom")
    outputs = list(llm.generate_async(CYCLE, params, streaming=True))
    assert outputs[-1].outputs[0].text == "Tom has 3"
    assert joined(outputs)[0] == "Tom has 3"
    check_idle(llm)


def test_without_streaming_a_handle_yields_once(llm: LLM) -> None:
    handle = llm.generate_async(CYCLE, SamplingParams(max_tokens=20))
    (output,) = list(handle)
    assert output.finished
    assert output.outputs[0].text_diff == output.outputs[0].text
    assert list(handle) == []
    assert handle.result(TIMEOUT).outputs[0].text == output.outputs[0].text
    assert handle.finished
    assert handle.prompt is None
    assert handle.prompt_token_ids == CYCLE


def test_await_and_async_for(llm: LLM) -> None:
    async def main() -> tuple[RequestOutput, list[RequestOutput], list[RequestOutput]]:
        params = SamplingParams(max_tokens=25)
        handles = [llm.generate_async(CYCLE, params, streaming=s) for s in (False, True, False)]
        streamed = [output async for output in handles[1]]
        once = [output async for output in handles[2]]
        return await handles[0], streamed, once

    awaited, streamed, once = asyncio.run(main())
    assert awaited.outputs[0].length == 25
    assert joined(streamed)[1] == awaited.outputs[0].token_ids == once[0].outputs[0].token_ids
    assert len(once) == 1


def test_many_tasks_await_at_once(llm: LLM) -> None:
    async def main() -> list[RequestOutput]:
        prompts = [CYCLE[: 1 + i % len(CYCLE)] for i in range(12)]
        return await asyncio.gather(
            *(llm.generate_async(prompt, SamplingParams(max_tokens=8)) for prompt in prompts)
        )

    outputs = asyncio.run(main())
    for i, output in enumerate(outputs):
        start = (1 + i % len(CYCLE)) % len(CYCLE)
        assert output.outputs[0].token_ids == [CYCLE[(start + j) % len(CYCLE)] for j in range(8)]


def test_a_cancelled_task_leaves_the_request_running(llm: LLM) -> None:
    async def main() -> RequestOutput:
        handle = llm.generate_async(CYCLE, SamplingParams(max_tokens=60))
        task = asyncio.ensure_future(handle.aresult())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return await handle

    assert asyncio.run(main()).outputs[0].length == 60


def test_a_loop_that_closed_early_does_not_harm_the_engine(llm: LLM) -> None:
    loop = asyncio.new_event_loop()
    handle = llm.generate_async(CYCLE, LONG)
    task = loop.create_task(handle.aresult())
    loop.run_until_complete(asyncio.sleep(0))
    task.cancel()
    loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
    loop.close()
    assert handle.result(TIMEOUT).finished
    check_idle(llm)


def test_abort_keeps_what_was_generated(llm: LLM) -> None:
    handle = llm.generate_async(CYCLE, LONG, streaming=True)
    next(handle)
    handle.abort()
    output = handle.result(TIMEOUT)
    assert output.outputs[0].finish_reason == "cancelled"
    assert 0 < output.outputs[0].length < 200
    assert list(handle)[-1].finished
    handle.abort()  # once more does nothing
    check_idle(llm)


def test_result_times_out_and_can_be_asked_again(llm: LLM) -> None:
    handle = llm.generate_async(CYCLE, LONG)
    with pytest.raises(TimeoutError, match="keeps running"):
        handle.result(timeout=0.0)
    assert handle.result(TIMEOUT).outputs[0].length == 200


def test_the_engine_thread_sleeps_between_requests_and_ends_with_shutdown() -> None:
    before = len(engine_threads())
    with make_llm() as llm:
        assert len(engine_threads()) == before  # no request yet
        llm.generate(CYCLE, SamplingParams(max_tokens=2))
        assert len(engine_threads()) == before + 1
    assert len(engine_threads()) == before
    with pytest.raises(RequestError, match="shut down"):
        llm.generate(CYCLE)
    llm.shutdown()  # once more does nothing


def test_shutdown_fails_what_runs_and_what_waits() -> None:
    llm = make_llm(max_batch_size=1)
    handles = [llm.generate_async(CYCLE, LONG, streaming=True) for _ in range(3)]
    next(handles[0])
    llm.shutdown()
    for handle in handles:
        with pytest.raises(RequestError, match="shut down before request"):
            handle.result(TIMEOUT)
        with pytest.raises(RequestError, match="shut down"):
            list(handle)
        assert list(handle) == []  # the error is raised once
    assert llm._service._core.has_unfinished() is False
    llm._service._core.check_integrity()


def test_shutdown_can_let_requests_finish() -> None:
    llm = make_llm(max_batch_size=1)
    handles = [llm.generate_async(CYCLE, SamplingParams(max_tokens=20)) for _ in range(3)]
    llm.shutdown(finish=True)
    assert [handle.result(0.0).outputs[0].length for handle in handles] == [20, 20, 20]


def test_a_forgotten_llm_ends_its_thread_and_a_handle_keeps_it_alive() -> None:
    before = len(engine_threads())
    llm = make_llm()
    handle = llm.generate_async(CYCLE, SamplingParams(max_tokens=100))
    alive = weakref.ref(llm)
    del llm
    gc.collect()
    assert handle.result(TIMEOUT).outputs[0].length == 100
    assert alive() is not None
    del handle
    gc.collect()
    assert alive() is None
    assert len(engine_threads()) == before


class FailingTarget:
    """Makes the forward pass of a target raise while it is armed."""

    def __init__(self, llm: LLM) -> None:
        self.target = llm._models.target
        self.original = self.target.forward
        self.is_armed = False
        self.target.forward = self.forward  # type: ignore[method-assign]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self.is_armed:
            raise FloatingPointError("the device is on fire")
        return self.original(*args, **kwargs)


def test_an_error_in_a_step_fails_the_running_requests_only() -> None:
    with make_llm(max_batch_size=1) as llm:
        failing = FailingTarget(llm)
        running = llm.generate_async(CYCLE, LONG, streaming=True)
        next(running)
        waiting = llm.generate_async(CYCLE, SamplingParams(max_tokens=5))
        failing.is_armed = True
        waiting.add_done_callback(lambda: None)
        running.add_done_callback(lambda: setattr(failing, "is_armed", False))
        with pytest.raises(FloatingPointError, match="on fire"):
            running.result(TIMEOUT)
        assert waiting.result(TIMEOUT).outputs[0].length == 5
        assert running.outputs[0].length > 0  # what was generated before stays readable
        check_idle(llm)


def test_generate_raises_the_error_of_a_step() -> None:
    with make_llm() as llm:
        failing = FailingTarget(llm)
        failing.is_armed = True
        with pytest.raises(FloatingPointError, match="on fire"):
            llm.generate([CYCLE, CYCLE])
        failing.is_armed = False
        check_idle(llm)


def test_an_error_of_the_tokenizer_fails_its_request_only(monkeypatch: pytest.MonkeyPatch) -> None:
    with make_llm() as llm:
        good = llm.generate_async(CYCLE, SamplingParams(max_tokens=150, detokenize=False))
        bad = llm.generate_async(CYCLE, SamplingParams(max_tokens=150))

        def decode(*args: Any, **kwargs: Any) -> str:
            raise ValueError("no such token")

        monkeypatch.setattr(llm.tokenizer, "decode", decode)
        with pytest.raises(ValueError, match="no such token"):
            bad.result(TIMEOUT)
        assert good.result(TIMEOUT).outputs[0].length == 150
        monkeypatch.undo()
        check_idle(llm)


def test_several_sequences_stream_in_one_handle() -> None:
    with make_llm() as llm:
        params = SamplingParams(max_tokens=12, n=2, temperature=0.01)
        handle: GenerationHandle = llm.generate_async(CYCLE, params, streaming=True)
        outputs = list(handle)
        for index in (0, 1):
            diffs = [i for output in outputs for i in output.outputs[index].token_ids_diff]
            assert diffs == outputs[-1].outputs[index].token_ids
            assert len(diffs) == 12


def test_generate_async_takes_one_prompt(llm: LLM) -> None:
    with pytest.raises(RequestError, match="one prompt"):
        llm.generate_async(["a", "b"])  # type: ignore[list-item]
    with pytest.raises(RequestError, match="vocabulary"):
        llm.generate_async([100000]).result(TIMEOUT)
