# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Stream several prompts at once; a verify step may bring more than one token.

python examples/streaming.py
"""

import asyncio
from pathlib import Path

from tensorrt_llm_ext import LLM, EagleDecodingConfig, SamplingParams

TINY_KIMI = Path(__file__).parent / "tiny_kimi"

PROMPTS = {
    "apples": "Question: Tom has 3 apples and buys 4 more. How many does he have now?\nAnswer:",
    "pens": "Question: A box holds 6 pens. How many pens are in 5 boxes?\nAnswer:",
}


async def stream(llm: LLM, name: str, prompt: str) -> None:
    handle = llm.generate_async(prompt, SamplingParams(max_tokens=96), streaming=True)
    async for output in handle:
        print(f"{name:>8} | {output.outputs[0].text_diff!r}")
    print(f"{name:>8} | finished: {output.outputs[0].finish_reason}")


async def main() -> None:
    draft = EagleDecodingConfig(max_draft_len=3, speculative_model=TINY_KIMI / "draft")
    with LLM(model=TINY_KIMI / "target", speculative_config=draft) as llm:
        await asyncio.gather(*(stream(llm, name, prompt) for name, prompt in PROMPTS.items()))


if __name__ == "__main__":
    asyncio.run(main())
