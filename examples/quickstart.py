# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Generate with a target and its MLA Eagle3 draft.

A script for TensorRT-LLM moves here, or back, by its import line.

    python examples/quickstart.py
"""

from pathlib import Path

from tensorrt_llm_ext import LLM, EagleDecodingConfig, SamplingParams

TINY_KIMI = Path(__file__).parent / "tiny_kimi"

PROMPTS = [
    "Question: Tom has 3 apples and buys 4 more. How many apples does Tom have now?\nAnswer:",
    "Question: A box holds 6 pens. How many pens are in 5 boxes?\nAnswer:",
]


def main() -> None:
    draft = EagleDecodingConfig(max_draft_len=3, speculative_model=TINY_KIMI / "draft")
    with LLM(model=TINY_KIMI / "target", speculative_config=draft) as llm:
        for output in llm.generate(PROMPTS, SamplingParams(max_tokens=128)):
            print(output.prompt + output.outputs[0].text)
            print(f"[tokens per verify step: {output.acceptance.acceptance_length:.2f}]\n")


if __name__ == "__main__":
    main()
