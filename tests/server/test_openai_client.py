# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""OpenAI's own client works unchanged, and its answers are the engine's."""

from __future__ import annotations

import openai
import pytest

from tensorrt_llm_ext import SamplingParams
from tests.server.running import NAME, PROMPT, Running


@pytest.fixture
def client(live: Running) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{live.url}/v1", api_key="any", max_retries=0)


def offline(live: Running, prompt, **sampling):
    return live.llm.generate(prompt, SamplingParams(**sampling))


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [NAME]
    assert client.models.retrieve(NAME).id == NAME
    with pytest.raises(openai.NotFoundError, match="no model"):
        client.models.retrieve("another")


def test_greedy_completion_is_the_engines(live: Running, client: openai.OpenAI) -> None:
    got = client.completions.create(model=NAME, prompt=PROMPT, max_tokens=40, temperature=0)
    want = offline(live, PROMPT, max_tokens=40, temperature=0.0)
    assert got.choices[0].text == want.outputs[0].text
    assert got.choices[0].finish_reason == "stop"
    assert got.usage is not None
    assert got.usage.prompt_tokens == len(want.prompt_token_ids)
    assert got.usage.completion_tokens == len(want.outputs[0].token_ids)


def test_seeded_text_streams_as_it_is_returned(client: openai.OpenAI) -> None:
    options = {"model": NAME, "prompt": PROMPT, "max_tokens": 30, "seed": 7}
    whole = client.completions.create(**options)
    pieces = list(
        client.completions.create(**options, stream=True, stream_options={"include_usage": True})
    )
    assert "".join(p.choices[0].text for p in pieces if p.choices) == whole.choices[0].text
    assert pieces[-1].choices == []
    assert pieces[-1].usage == whole.usage
    assert len({piece.id for piece in pieces}) == 1
    reasons = [p.choices[0].finish_reason for p in pieces if p.choices]
    assert reasons[-1] == whole.choices[0].finish_reason
    assert not any(reasons[:-1])


def test_default_temperature_is_one(client: openai.OpenAI) -> None:
    texts = {
        client.completions.create(model=NAME, prompt="Question: ", seed=seed).choices[0].text
        for seed in range(6)
    }
    assert len(texts) > 1


def test_lists_of_prompts_and_of_tokens(live: Running, client: openai.OpenAI) -> None:
    prompts = [PROMPT, "Question: Ann has 3 cups."]
    got = client.completions.create(model=NAME, prompt=prompts, max_tokens=8, temperature=0)
    assert [c.index for c in got.choices] == [0, 1]
    assert live.llm.tokenizer is not None
    ids = [live.llm.tokenizer.encode(prompt) for prompt in prompts]
    same = client.completions.create(model=NAME, prompt=ids, max_tokens=8, temperature=0)
    assert [c.text for c in same.choices] == [c.text for c in got.choices]
    one = client.completions.create(model=NAME, prompt=ids[1], max_tokens=8, temperature=0)
    assert one.choices[0].text == got.choices[1].text


def test_several_choices_in_a_stream(client: openai.OpenAI) -> None:
    options = {"model": NAME, "prompt": ["Question: ", PROMPT], "n": 2, "seed": 3, "max_tokens": 9}
    whole = client.completions.create(**options)
    texts = [""] * 4
    for piece in client.completions.create(**options, stream=True):
        texts[piece.choices[0].index] += piece.choices[0].text
    assert texts == [choice.text for choice in whole.choices]


def test_echo_and_no_new_tokens(client: openai.OpenAI) -> None:
    options = {"model": NAME, "prompt": PROMPT, "echo": True, "temperature": 0}
    got = client.completions.create(**options, max_tokens=5)
    assert got.choices[0].text.startswith(PROMPT)
    streamed = client.completions.create(**options, max_tokens=5, stream=True)
    assert "".join(piece.choices[0].text for piece in streamed) == got.choices[0].text
    none = client.completions.create(**options, max_tokens=0)
    assert none.choices[0].text == PROMPT
    assert none.usage is not None
    assert none.usage.completion_tokens == 0


def test_an_echoed_prompt_is_scored(live: Running, client: openai.OpenAI) -> None:
    """What lm_eval reads for loglikelihood tasks."""
    options = {"model": NAME, "prompt": PROMPT, "echo": True, "temperature": 0, "logprobs": 2}
    got = client.completions.create(**options, max_tokens=3).choices[0]
    found = got.logprobs
    assert found is not None
    wanted = {"temperature": 0.0, "logprobs": 2, "prompt_logprobs": 2}
    output = offline(live, PROMPT, max_tokens=3, **wanted)
    want = output.outputs[0]
    tokens = [*output.prompt_token_ids, *want.token_ids]
    rows = [*want.prompt_logprobs, *want.logprobs]
    assert len(found.tokens) == len(tokens) == len(rows) + 1
    assert "".join(found.tokens) == got.text
    assert found.token_logprobs[0] is None
    assert found.top_logprobs[0] is None
    scores = [row[token].logprob for row, token in zip(rows, tokens[1:], strict=True)]
    assert found.token_logprobs[1:] == pytest.approx(scores, abs=1e-6)
    for text, offset in zip(found.tokens, found.text_offset, strict=True):
        assert got.text[offset : offset + len(text)] == text
    for index in range(1, len(tokens)):
        best = max(rows[index - 1].values(), key=lambda entry: entry.logprob)
        assert max(found.top_logprobs[index].values()) == pytest.approx(best.logprob, abs=1e-6)

    none = client.completions.create(**options, max_tokens=0)
    assert none.choices[0].text == PROMPT
    assert none.choices[0].finish_reason == "length"
    assert none.usage is not None
    assert none.usage.completion_tokens == 0
    assert none.choices[0].logprobs is not None
    assert none.choices[0].logprobs.token_logprobs[1:] == pytest.approx(
        scores[: len(output.prompt_token_ids) - 1], abs=1e-6
    )


@pytest.mark.parametrize("num_new", [0, 5])
def test_an_echoed_prompt_is_scored_in_a_stream(client: openai.OpenAI, num_new: int) -> None:
    options = {"model": NAME, "prompt": [PROMPT, "Tom"], "echo": True, "temperature": 0}
    options |= {"logprobs": 1, "max_tokens": num_new}
    whole = client.completions.create(**options)
    texts, tokens, scores, offsets = (["", ""], *([[], []] for _ in range(3)))
    for piece in client.completions.create(**options, stream=True):
        choice = piece.choices[0]
        texts[choice.index] += choice.text
        assert choice.logprobs is not None
        tokens[choice.index] += choice.logprobs.tokens
        scores[choice.index] += choice.logprobs.token_logprobs
        offsets[choice.index] += choice.logprobs.text_offset
    for choice in whole.choices:
        assert choice.logprobs is not None
        assert texts[choice.index] == choice.text
        assert tokens[choice.index] == choice.logprobs.tokens
        assert offsets[choice.index] == choice.logprobs.text_offset
        assert scores[choice.index][1:] == pytest.approx(choice.logprobs.token_logprobs[1:])


def test_logprobs(live: Running, client: openai.OpenAI) -> None:
    got = client.completions.create(
        model=NAME, prompt=PROMPT, max_tokens=6, temperature=0, logprobs=3
    )
    found = got.choices[0].logprobs
    assert found is not None
    want = offline(live, PROMPT, max_tokens=6, temperature=0.0, logprobs=3).outputs[0]
    assert found.token_logprobs == [
        row[token].logprob for row, token in zip(want.logprobs, want.token_ids, strict=True)
    ]
    assert "".join(found.tokens or []) == got.choices[0].text
    assert all(len(row) >= 3 for row in found.top_logprobs or [])
    chat = client.chat.completions.create(
        model=NAME,
        messages=[{"role": "user", "content": PROMPT}],
        max_tokens=4,
        logprobs=True,
        top_logprobs=2,
    )
    entries = chat.choices[0].logprobs
    assert entries is not None
    assert len(entries.content or []) == 4
    assert all(len(entry.top_logprobs) >= 2 for entry in entries.content or [])


def test_chat_is_the_completion_of_its_template(live: Running, client: openai.OpenAI) -> None:
    messages = [{"role": "user", "content": "Tom has 12 pens."}]
    options = {"max_tokens": 20, "temperature": 0}
    got = client.chat.completions.create(model=NAME, messages=messages, **options)
    assert live.llm.tokenizer is not None
    text = live.llm.tokenizer.apply_chat_template(messages)
    ids = live.llm.tokenizer.encode(text, add_special_tokens=False)
    want = client.completions.create(model=NAME, prompt=ids, **options)
    assert got.choices[0].message.content == want.choices[0].text
    pieces = list(
        client.chat.completions.create(model=NAME, messages=messages, **options, stream=True)
    )
    assert pieces[0].choices[0].delta.role == "assistant"
    told = "".join(piece.choices[0].delta.content or "" for piece in pieces)
    assert told == got.choices[0].message.content
    parts = [{"role": "user", "content": [{"type": "text", "text": "Tom has 12 pens."}]}]
    again = client.chat.completions.create(model=NAME, messages=parts, **options)
    assert again.choices[0].message.content == got.choices[0].message.content


@pytest.mark.parametrize("stream", [False, True])
def test_stop_strings_are_cut_off(client: openai.OpenAI, stream: bool) -> None:
    options = {"model": NAME, "prompt": PROMPT, "max_tokens": 40, "temperature": 0}
    full = client.completions.create(**options).choices[0].text
    stop = full[5:9]  # within tokens, over their borders
    got = client.completions.create(**options, stop=["never said", stop], stream=stream)
    pieces = list(got) if stream else [got]
    text = "".join(piece.choices[0].text for piece in pieces)
    assert text == full[: full.index(stop)]
    assert pieces[-1].choices[0].finish_reason == "stop"


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"temprature": 1}, "temprature"),
        ({"temperature": -1}, "temperature"),
        ({"presence_penalty": 2.1}, "presence_penalty"),
        ({"frequency_penalty": -3}, "frequency_penalty"),
        ({"repetition_penalty": 1e-300}, "repetition_penalty"),
        ({"logit_bias": {"1": 1e300}}, "logit_bias"),
        ({"n": 0}, "n"),
        ({"n": 99}, "n"),
        ({"max_tokens": 100000}, "max_tokens"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"best_of": 3}, "best_of"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ""}, "prompt"),
    ],
)
def test_refused_by_name(client: openai.OpenAI, values: dict, field: str) -> None:
    body = {"model": NAME, "prompt": PROMPT, **values}
    with pytest.raises(openai.BadRequestError) as caught:
        client.post("/completions", body=body, cast_to=object)
    error = caught.value.body
    assert isinstance(error, dict)
    assert field in (error["param"] or "") or field in error["message"]
    assert error["type"] == "invalid_request_error"


def test_fields_without_effect_are_taken(client: openai.OpenAI) -> None:
    got = client.completions.create(
        model=NAME, prompt=PROMPT, max_tokens=2, user="me", extra_body={"metadata": {"a": "b"}}
    )
    assert got.choices[0].text


def test_another_model_is_not_found(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="only 'tiny_kimi'"):
        client.completions.create(model="gpt", prompt=PROMPT)


def test_acceptance_of_one_request(live: Running, client: openai.OpenAI) -> None:
    got = client.completions.create(
        model=NAME,
        prompt=PROMPT,
        max_tokens=40,
        temperature=0,
        extra_body={"return_spec_stats": True},
    )
    stats = got.model_extra["spec_stats"] if got.model_extra else {}
    want = offline(live, PROMPT, max_tokens=40, temperature=0.0).acceptance
    assert stats["num_drafts"] == want.num_steps > 0
    assert stats["num_accepted_tokens_per_pos"] == want.accepted_per_position
    assert stats["acceptance_length"] == want.acceptance_length
