# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Small tokenizers made in memory, with merges across characters and inside of them."""

from __future__ import annotations

from functools import lru_cache

from tokenizers import Tokenizer as RustTokenizer
from tokenizers import decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from tensorrt_llm_ext.engine.tokenizer import Tokenizer

VOCAB_SIZE = 320
BOS, EOS = "<s>", "</s>"
TEXTS = [
    "Question: Tom has 3 apples and buys 4 more. How many apples does he have now?",
    "Answer: 3 + 4 = 7. The answer is 7. Stop here. END of the answer.",
    "naïve café — 数学の問題です。 Ответ: семь 🍎🍏🍎 👩‍👩‍👧‍👦 done",
]


@lru_cache(maxsize=1)
def byte_level_tokenizer() -> Tokenizer:
    """A byte-level BPE tokenizer with `VOCAB_SIZE` tokens; its merges also split characters."""
    rust = RustTokenizer(models.BPE())
    rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    rust.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[BOS, EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    rust.train_from_iterator(TEXTS * 4, trainer)
    return Tokenizer(PreTrainedTokenizerFast(tokenizer_object=rust, bos_token=BOS, eos_token=EOS))


@lru_cache(maxsize=1)
def metaspace_tokenizer() -> Tokenizer:
    """A tokenizer whose decoder writes spaces for word starts and strips the very first one."""
    rust = RustTokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    rust.pre_tokenizer = pre_tokenizers.Metaspace()
    rust.decoder = decoders.Metaspace()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE, special_tokens=["<unk>", BOS, EOS], show_progress=False
    )
    rust.train_from_iterator(TEXTS * 4, trainer)
    return Tokenizer(PreTrainedTokenizerFast(tokenizer_object=rust, bos_token=BOS, eos_token=EOS))
