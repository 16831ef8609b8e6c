# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""A target whose next token is a fixed function of the last one, with a draft that knows it.

All layers add zero to the residual stream, so the final state of a token is its embedding, and the
head maps that to the next token. The draft sees the embedding of the token two places back of what
it proposes; its recurrent state never changes, so further drafts repeat the first. A target that
repeats one token thus accepts every draft, and a longer cycle accepts exactly the first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from tensorrt_llm_ext.checkpoints.writer import save_checkpoint
from tensorrt_llm_ext.engine.loading import LoadedModels
from tensorrt_llm_ext.engine.tokenizer import Tokenizer
from tests.support.tiny_checkpoints import (
    draft_json,
    draft_shapes,
    random_tensors,
    target_json,
    target_shapes,
)
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
    if len(set(cycle)) != len(cycle):
        raise ValueError(f"the tokens of a cycle must differ, got {list(cycle)}")
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
        target_weights, draft_weights = (dict(m.named_parameters()) for m in (target, draft))
        _make_transparent(target_weights)
        _make_transparent(draft_weights)
        embedding = target.embed_tokens.weight
        _normalize(embedding)
        target.lm_head.weight.copy_(_head(embedding, cycle, 1))
        draft.lm_head.weight.copy_(_head(embedding, cycle, 2))
    draft.share_with(target)
    return LoadedModels(
        target=target,
        draft=draft,
        tokenizer=tokenizer or byte_level_tokenizer(),
        eos_token_ids=(EOS,),
    )


def write_cycling_checkpoints(folder: Path, cycle: Sequence[int]) -> tuple[Path, Path]:
    """Writes such a target, with tokenizer, and its draft; returns the two folders."""
    target_config = target_json(vocab_size=VOCAB_SIZE, eos_token_id=EOS, num_hidden_layers=3)
    draft_config = draft_json(
        vocab_size=VOCAB_SIZE,
        draft_vocab_size=VOCAB_SIZE,
        eagle_config={"eagle_aux_hidden_state_layer_ids": [0, 1, 2]},
        trtllm_ext_aux_boundaries=[1, 2, 3],
    )
    target = random_tensors(target_shapes(target_config), seed=0)
    draft = random_tensors(draft_shapes(draft_config), seed=1)
    _make_transparent(target)
    _make_transparent(draft)
    embedding = target["model.embed_tokens.weight"]
    _normalize(embedding)
    target["lm_head.weight"] = _head(embedding, cycle, 1)
    draft["lm_head.weight"] = _head(embedding, cycle, 2)
    hidden = embedding.shape[1]
    draft["fc.weight"].zero_()
    draft["fc.weight"][:, :hidden] = torch.eye(hidden)
    save_checkpoint(folder / "target", target_config, target)
    save_checkpoint(folder / "draft", draft_config, draft)
    byte_level_tokenizer().hf_tokenizer.save_pretrained(folder / "target")
    return folder / "target", folder / "draft"


def _make_transparent(weights: Mapping[str, torch.Tensor]) -> None:
    """Lets every layer add zero, and every norm only normalise."""
    for name, weight in weights.items():
        if name.endswith(("o_proj.weight", "down_proj.weight", "w_down")):
            weight.zero_()
        elif name.endswith("norm.weight"):
            weight.fill_(1.0)


def _normalize(embedding: torch.Tensor) -> None:
    """Makes rows of one length, so that a row's largest product is that with itself."""
    embedding.copy_(torch.nn.functional.normalize(embedding, dim=-1))


def _head(embedding: torch.Tensor, cycle: Sequence[int], ahead: int) -> torch.Tensor:
    """Head whose largest logit, for a token of the cycle, is the token `ahead` places on."""
    head = torch.zeros_like(embedding)
    for index, token in enumerate(cycle):
        head[cycle[(index + ahead) % len(cycle)]] = 30.0 * embedding[token]
    return head
