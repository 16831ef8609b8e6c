# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Drafts that are always right: one that replays, and one that reads a code at one boundary."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from tensorrt_llm_ext.configs.draft import DraftConfig
from tensorrt_llm_ext.models.blocks import TorchBlocks
from tensorrt_llm_ext.models.deepseek import DeepseekV3
from tensorrt_llm_ext.models.eagle3 import Eagle3Draft
from tests.support.oracle_dense import dense_target
from tests.support.oracle_engine import Models
from tests.support.tiny_models import CPU, random_target, randomize


class ReplayDraft(nn.Module):
    """Implements `DraftModel` by looking up the known continuation of each sequence.

    A row of extend is recognised by the target's state after its last layer, which stands for the
    tokens up to the row, and by nothing else; the recurrent state is (sequence, position). Wrong
    states, rows, positions or successors therefore lose the thread.
    """

    def __init__(self, target: DeepseekV3, sequences: list[list[int]]) -> None:
        super().__init__()
        config = target.config
        self.config = DraftConfig(
            hidden_size=config.hidden_size,
            target_hidden_size=config.hidden_size,
            num_layers=1,
            intermediate_size=1,
            vocab_size=config.vocab_size,
            draft_vocab_size=config.vocab_size,
            rms_norm_eps=1e-6,
            mla=config.mla,
            boundaries=(config.num_layers,),
            has_fc=False,
        )
        self.tokens = [torch.tensor(sequence) for sequence in sequences]
        states = [dense_target(target, t, self.config.boundaries)[2] for t in self.tokens]
        self.known = torch.cat(states)
        self.places = torch.tensor(
            [(s, p) for s, tokens in enumerate(self.tokens) for p in range(len(tokens))]
        )

    def combine(self, captured: torch.Tensor) -> torch.Tensor:
        """[rows, H_t] -> [rows, 2]: sequence and position, found by the state."""
        distances = torch.cdist(captured, self.known)
        nearest = distances.min(dim=1)
        places = self.places[nearest.indices].clone()
        places[nearest.values > 1e-6] = -1  # rows behind a rejection belong to no sequence
        return places

    def forward(
        self, hidden: torch.Tensor, token_ids: torch.Tensor, positions: torch.Tensor, ctx: Any
    ) -> torch.Tensor:
        """Moves each row one token on, if the token and the position are what they must be."""
        rows = []
        for (sequence, place), token, position in zip(
            hidden.tolist(), token_ids.tolist(), positions.tolist(), strict=True
        ):
            tokens = self.tokens[sequence] if sequence >= 0 else torch.empty(0)
            fits = place == position and place + 1 < len(tokens) and tokens[place + 1] == token
            rows.append((sequence, place + 1) if fits else (-1, -1))
        return torch.tensor(rows).view(-1, 2)

    def propose(self, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The token after the state's."""
        ids = []
        for sequence, place in state.tolist():
            known = sequence >= 0 and place + 1 < len(self.tokens[sequence])
            ids.append(int(self.tokens[sequence][place + 1]) if known else 0)
        token_ids = torch.tensor(ids)
        return token_ids, token_ids


def permutation_models(
    seed: int, *, vocab_size: int, num_layers: int, boundary: int, shift: int = 0
) -> Models:
    """Builds the constructed pair of DESIGN section 4 (d).

    The stream has one dimension per token, then a code subspace of one dimension per token and a
    blank. The embedding sets the token and the blank. Layer `boundary - 1` turns the blank into the
    token's code, layer `boundary` turns the code back into the blank, all others add nothing; the
    head reads the token and answers the next one of a cycle. The draft's fc reads the code subspace
    and nothing else; its layer moves the code one token on.

    Args:
        seed: Of the cycle, and of the attention weights, whose output is zero.
        boundary: Where the code is visible, 1..num_layers - 1.
        shift: Added to the boundary that the draft captures.
    """
    cycle = list(range(vocab_size))
    random.Random(seed).shuffle(cycle)
    successor = torch.empty(vocab_size, dtype=torch.int64)
    successor[torch.tensor(cycle)] = torch.tensor([*cycle[1:], cycle[0]])
    code_size = vocab_size + 1
    config, target = random_target(
        seed,
        vocab_size=vocab_size,
        hidden_size=vocab_size + code_size,
        num_layers=num_layers,
        intermediate_size=vocab_size,
        moe=None,
        moe_layers=frozenset(),
        tie_word_embeddings=False,
    )
    tokens = torch.arange(vocab_size)
    codes, blank = vocab_size + tokens, 2 * vocab_size
    for name, weight in target.named_parameters():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            weight.zero_()
        elif name.endswith("norm.weight"):
            weight.fill_(1.0)
    embedding = target.embed_tokens.weight.zero_()
    embedding[tokens, tokens] = 1.0
    embedding[:, blank] = 1.0
    target.lm_head.weight.zero_()[successor, tokens] = 1.0
    # Token and blank, or token and code: two ones in the stream before either layer.
    level = _level(2, config.hidden_size, config.rms_norm_eps)
    writer, eraser = target.layers[boundary - 1].mlp, target.layers[boundary].mlp
    _make_switch(writer, reads=tokens, clears=blank, sets=codes, level=level)
    _make_switch(eraser, reads=codes, clears=codes, sets=blank, level=level)
    return Models(target, _code_reader(seed, target, successor, boundary + shift))


def _code_reader(
    seed: int, target: DeepseekV3, successor: torch.Tensor, boundary: int
) -> Eagle3Draft:
    config = target.config
    vocab_size, code_size = config.vocab_size, config.vocab_size + 1
    draft_config = DraftConfig(
        hidden_size=code_size,
        target_hidden_size=config.hidden_size,
        num_layers=1,
        intermediate_size=vocab_size,
        vocab_size=vocab_size,
        draft_vocab_size=vocab_size,
        rms_norm_eps=1e-6,
        mla=replace(config.mla, num_heads=1),
        boundaries=(boundary,),
        has_own_embedding=True,
    )
    draft = Eagle3Draft(draft_config, TorchBlocks(CPU, torch.float64), config.num_layers)
    with torch.no_grad():
        randomize(draft, seed)
    for name, weight in draft.named_parameters():
        if name.endswith("o_proj.weight"):
            weight.zero_()
        elif "norm" in name:
            weight.fill_(1.0)
    tokens = torch.arange(vocab_size)
    draft.fc.weight.zero_()[:, vocab_size:] = torch.eye(code_size, dtype=torch.float64)
    level = _level(1, code_size, draft_config.rms_norm_eps)
    _make_switch(draft.first_layer.mlp, reads=tokens, clears=tokens, sets=successor, level=level)
    draft.lm_head.weight.zero_()[successor, tokens] = 1.0
    draft.lm_head.weight[0, vocab_size] = 1.0  # the blank knows no token
    draft.share_with(target)
    return draft


def _level(num_ones: int, size: int, eps: float) -> float:
    """Value of each one of a 0/1 vector after RMS norm."""
    return (num_ones / size + eps) ** -0.5


def _make_switch(
    mlp: nn.Module,
    *,
    reads: torch.Tensor,
    clears: torch.Tensor | int,
    sets: torch.Tensor | int,
    level: float,
) -> None:
    """Makes a SwiGLU subtract one at `clears[i]` and add one at `sets[i]` when `reads[i]` is on.

    Unit i has gate and up equal to the input at `reads[i]`; a unit whose input is zero is zero.
    """
    units = torch.arange(len(reads))
    gate_up = mlp.gate_up_proj.weight.zero_()
    gate_up[units, reads] = 1.0
    gate_up[len(reads) + units, reads] = 1.0
    height = level * level / (1.0 + torch.exp(torch.tensor(-level, dtype=torch.float64)))
    down = mlp.down_proj.weight.zero_()
    down[clears, units] -= 1.0 / height
    down[sets, units] += 1.0 / height
