# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""TensorRT-LLM's own LLM API with an MLA Eagle3 draft; needs TensorRT-LLM.

    python examples/trtllm/llm_api.py TARGET DRAFT [GPUS]

1.2 does not know the Kimi-K2.5 wrapper: unwrap tiny_kimi first (examples/tiny_kimi/unwrap.py).
"""

import sys

import tensorrt_llm_ext

PROMPTS = [
    "Question: Tom has 3 apples and buys 4 more. How many apples does Tom have now?\nAnswer:",
    "Question: A box holds 6 pens. How many pens are in 5 boxes?\nAnswer:",
]


def main() -> None:
    target, draft = sys.argv[1:3]
    gpus = int(sys.argv[3]) if len(sys.argv) > 3 else 1
    tensorrt_llm_ext.register()  # before LLM(...): worker processes are told by it

    from tensorrt_llm import LLM, SamplingParams

    # The layers to capture come from the draft; the host never reads them.
    speculation = tensorrt_llm_ext.speculative_config(target, draft, max_draft_len=3)
    with LLM(target, tensor_parallel_size=gpus, speculative_config=speculation) as llm:
        for prompt, output in zip(
            PROMPTS, llm.generate(PROMPTS, SamplingParams(max_tokens=96)), strict=True
        ):
            print(prompt + output.outputs[0].text)
            print(f"[tokens per step: {output.avg_decoded_tokens_per_iter:.2f}]\n")


if __name__ == "__main__":  # worker processes import this file
    main()
