# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Trains the tokenizer: byte-level BPE on word problems, with digits as tokens of their own.

The language has fewer words than the vocabulary has room for, so the rest are reserved tokens.
No token is added to a text: prompts begin without <|bos|>, as the model was trained.

    python examples/tiny_kimi/tokenizer.py --out examples/tiny_kimi
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path

import problems
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

VOCAB_SIZE = 896
SPECIAL_TOKENS = {"pad_token": "<|pad|>", "bos_token": "<|bos|>", "eos_token": "<|eos|>"}
MODEL_MAX_LENGTH = 4096


def corpus(num_problems: int = 20000, num_equations: int = 18000) -> list[str]:
    """Returns the text that the vocabulary is made from.

    Of bare equations only the signs matter here: digits are never part of a longer token.
    """
    worked = problems.generate("train", 99, num_problems, problems.WIDE)
    signs = random.Random(7).choices("++--*/", k=num_equations)
    return [*map(problems.format_text, worked), *(f"1 {sign} 1 = 1\n" for sign in signs)]


def build(texts: list[str]) -> Tokenizer:
    """Trains a tokenizer of VOCAB_SIZE tokens; ids 0, 1 and 2 are pad, bos and eos."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=list(SPECIAL_TOKENS.values()),
        # All bytes, so that any text can be encoded.
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    unused = VOCAB_SIZE - tokenizer.get_vocab_size()
    tokenizer.add_special_tokens([f"<|reserved_{i}|>" for i in range(unused)])
    return tokenizer


def save(tokenizer: Tokenizer, folder: Path) -> None:
    """Writes tokenizer.json and the two files in which transformers looks for special tokens."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **SPECIAL_TOKENS,
        "add_bos_token": False,
        "add_eos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": MODEL_MAX_LENGTH,
    }
    documents = {"tokenizer_config.json": config, "special_tokens_map.json": SPECIAL_TOKENS}
    for name, document in documents.items():
        text = json.dumps(document, indent=2) + "\n"
        (folder / name).write_text(text, encoding="utf-8", newline="\n")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    options = parser.parse_args()
    tokenizer = build(corpus())
    save(tokenizer, options.out)
    print(f"{options.out}: {tokenizer.get_vocab_size()} tokens")


if __name__ == "__main__":
    main()
