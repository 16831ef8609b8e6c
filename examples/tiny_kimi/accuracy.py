# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Exact match on held-out problems, computed with the training module.

Greedy answers without a cache: slow, but independent of the package's engine. For the engine's own
number, and the same with the draft, run `trtllm-ext generate --problems 500`.

    python examples/tiny_kimi/accuracy.py --n 200
    python examples/tiny_kimi/accuracy.py --n 200 --checkpoint target.pt
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import torch
from hf_names import read_target
from model import Target
from problems import extract_answer
from rich.progress import track
from tokenizers import Tokenizer

HERE = Path(__file__).resolve().parent
EOS_TOKEN_ID = 2
MAX_NEW_TOKENS = 90  # the longest worked answer of the language has fewer
_BATCH_SIZE = 32  # without a cache, larger batches cost memory and gain nothing


@torch.no_grad()
def greedy(
    net: Target,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int = MAX_NEW_TOKENS,
    autocast: bool = False,
) -> list[list[int]]:
    """Continues prompts greedily until the end token.

    Args:
        net: The target.
        prompts: Token ids.
        max_new_tokens: Tokens after which a text is cut.
        autocast: Whether matrix products are in bfloat16.

    Returns:
        Per prompt its ids and those of its continuation, with the end token where there is one.
    """
    device = net.embed.weight.device
    rows = [list(prompt) for prompt in prompts]
    live = list(range(len(rows)))
    for _ in range(max_new_tokens):
        if not live:
            break
        # Padding stands behind the tokens, where causal attention does not look.
        ids = torch.zeros(len(live), max(len(rows[i]) for i in live), dtype=torch.long)
        for j, i in enumerate(live):
            ids[j, : len(rows[i])] = torch.tensor(rows[i])
        last = torch.tensor([len(rows[i]) - 1 for i in live])
        with torch.autocast(device.type, torch.bfloat16, enabled=autocast):
            hidden, _ = net(ids.to(device))
            logits = net.head(hidden[torch.arange(len(live)), last])
        for i, token in zip(live, logits.argmax(-1).tolist(), strict=True):
            rows[i].append(token)
        live = [i for i in live if rows[i][-1] != EOS_TOKEN_ID]
    return rows


def count_exact(
    net: Target,
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    finals: Sequence[int],
    *,
    autocast: bool = False,
) -> int:
    """Returns how many answers end in the right number.

    Args:
        net: The target.
        tokenizer: Its tokenizer.
        prompts: What it is asked, one or more.
        finals: The right numbers.
        autocast: Whether matrix products are in bfloat16.
    """
    ids = [tokenizer.encode(prompt).ids for prompt in prompts]
    rows = [
        row
        for start in range(0, len(ids), _BATCH_SIZE)
        for row in greedy(net, ids[start : start + _BATCH_SIZE], autocast=autocast)
    ]
    answers = [tokenizer.decode(row[len(start) :]) for row, start in zip(rows, ids, strict=True)]
    return sum(extract_answer(a) == final for a, final in zip(answers, finals, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--n", type=int, default=200, help="problems (%(default)s)")
    parser.add_argument("--target", type=Path, default=HERE / "target", help="exported folder")
    parser.add_argument("--checkpoint", type=Path, help="of train_target.py, instead of --target")
    parser.add_argument("--problems", type=Path, default=HERE / "heldout.jsonl")
    options = parser.parse_args()
    if options.checkpoint is None:
        net = read_target(options.target)
    else:
        net = Target().eval()
        net.load_state_dict(torch.load(options.checkpoint, weights_only=True)["net"])
    tokenizer = Tokenizer.from_file(str(HERE / "tokenizer.json"))
    lines = options.problems.read_text(encoding="utf-8").splitlines()[: options.n]
    rows = [json.loads(line) for line in lines]
    prompts = [f"Question: {row['question']}\nAnswer:" for row in rows]
    finals = [row["final"] for row in rows]
    hits = 0
    for start in track(range(0, len(rows), _BATCH_SIZE), description="answering"):
        part = slice(start, start + _BATCH_SIZE)
        hits += count_exact(net, tokenizer, prompts[part], finals[part])
    share = hits / len(rows)
    error = (share * (1 - share) / len(rows)) ** 0.5
    print(f"exact match {share:.4f} ± {error:.4f} ({hits} of {len(rows)})")


if __name__ == "__main__":
    main()
