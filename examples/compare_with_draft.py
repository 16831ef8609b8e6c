# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Is a draft worth it? The same prompts with and without it: same text, acceptance, speed-up.

`trtllm-ext generate` does this from the command line; here is the same as data.

    python examples/compare_with_draft.py
"""

from pathlib import Path

from tensorrt_llm_ext import SamplingParams
from tensorrt_llm_ext.benchmarking.compare import compare_runs
from tensorrt_llm_ext.benchmarking.problems import load_problems
from tensorrt_llm_ext.benchmarking.runs import Workload, encode_all
from tensorrt_llm_ext.engine.loading import load_models

TINY_KIMI = Path(__file__).parent / "tiny_kimi"


def main() -> None:
    models = load_models(TINY_KIMI / "target", draft=TINY_KIMI / "draft")
    problems = load_problems(TINY_KIMI / "heldout.jsonl", 4)
    workload = Workload(
        prompts=encode_all(models, [problem.prompt for problem in problems]),
        sampling=SamplingParams(max_tokens=128),
    )
    for max_draft_len in (1, 3):
        result = compare_runs(models, workload, max_draft_len=max_draft_len, num_pairs=1)
        shares = ", ".join(f"{share:.2f}" for share in result.acceptance.per_position)
        print(
            f"{max_draft_len} draft token(s): text {result.verdict}, "
            f"acceptance length {result.acceptance.acceptance_length:.2f} "
            f"(per position {shares}), {result.speedup:.2f}x as fast"
        )


if __name__ == "__main__":
    main()
