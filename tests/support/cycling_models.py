# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""A target whose next token is a fixed function of the last one, with a draft that knows it.

All layers add zero to the residual stream, so the final state of a token is its embedding, and the
head maps that to the next token. The draft sees the embedding of the token two places back of what
it proposes; its recurrent state never changes, so further drafts repeat the first. A target that
repeats one token thus accepts every draft, and a longer cycle accepts exactly the first.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tensorrt_llm_ext.engine.loading import LoadedModels
from tensorrt_llm_ext.engine.tokenizer import Tokenizer
from tests.support.tiny_models import random_draft, random_target
from tests.support.tiny_tokenizers import VOCAB_SIZE, byte_level_tokenizer

EOS = 1


def cycling_models(
    cycle: Sequence[int],
    *,
    tokenizer: Tokenizer | None = None,
    dtype: torch.dtype = torch.float64,
) -> LoadedModels:
    """Makes models that generate a cycle of different tokens over and over; EOS is 1.

    Prompts must end with a token of the cycle.
    """
    target_config, target = random_target(
        0, dtype=dtype, vocab_size=VOCAB_SIZE, num_layers=2, tie_word_embeddings=False
    )
    _, draft = random_draft(
        0,
        target_config,
        dtype=dtype,
        hidden_size=target_config.hidden_size,
        num_layers=1,
        boundaries=(1,),
        has_fc=False,
        fc_norm=False,
        norm_before_fc=False,
        norm_before_residual=False,
        norm_output=False,
        has_own_embedding=False,
        has_own_lm_head=True,
        has_d2t=False,
        draft_vocab_size=VOCAB_SIZE,
    )
    with torch.no_grad():
        for name, weight in [*target.named_parameters(), *draft.named_parameters()]:
            if name.endswith(("o_proj.weight", "down_proj.weight", "w_down")):
                weight.zero_()
            elif name.endswith("norm.weight"):
                weight.fill_(1.0)
        embedding = target.embed_tokens.weight
        embedding.copy_(torch.nn.functional.normalize(embedding, dim=-1))
        target.lm_head.weight.copy_(_head(embedding, cycle, 1))
        draft.lm_head.weight.copy_(_head(embedding, cycle, 2))
    draft.share_with(target)
    return LoadedModels(
        target=target,
        draft=draft,
        tokenizer=tokenizer or byte_level_tokenizer(),
        eos_token_ids=(EOS,),
    )


def _head(embedding: torch.Tensor, cycle: Sequence[int], ahead: int) -> torch.Tensor:
    """Head whose largest logit, for a token of the cycle, is the token `ahead` places on."""
    head = torch.zeros_like(embedding)
    for index, token in enumerate(cycle):
        head[cycle[(index + ahead) % len(cycle)]] = 30.0 * embedding[token]
    return head
