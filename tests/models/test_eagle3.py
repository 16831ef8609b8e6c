# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""The draft against an independent implementation, over every flag and through the paged cache."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tensorrt_llm_ext.configs.draft import DraftConfig
from tensorrt_llm_ext.configs.mla import MLAConfig, RopeConfig
from tensorrt_llm_ext.errors import CheckpointError, ConfigError, UnsupportedError
from tensorrt_llm_ext.models.blocks import TorchBlocks
from tensorrt_llm_ext.models.eagle3 import Eagle3Draft
from tests.models import naive_draft
from tests.support.tiny_models import CPU, ROPES, DictSource, PagedSequences, random_d2t

VOCAB_SIZE = 30
TARGET_LAYERS = 6


def draft_config(rng: random.Random, **fields: object) -> DraftConfig:
    """A draft of drawn sizes; `fields` are those of `DraftConfig`, `q_lora_rank` and `yarn`."""
    mla = MLAConfig(
        num_heads=2,
        q_lora_rank=fields.pop("q_lora_rank", 10),
        kv_lora_rank=8,
        qk_nope_head_dim=6,
        qk_rope_head_dim=4,
        v_head_dim=5,
        rms_norm_eps=1e-4,
        rope=RopeConfig(
            theta=100.0,
            max_position_embeddings=64,
            yarn=fields.pop("yarn", ROPES[rng.choice(sorted(ROPES))]),
        ),
    )
    config = {
        "hidden_size": 12,
        "target_hidden_size": 12,
        "num_layers": 1,
        "intermediate_size": 14,
        "vocab_size": VOCAB_SIZE,
        "draft_vocab_size": VOCAB_SIZE,
        "rms_norm_eps": 1e-3,
        "mla": mla,
        "boundaries": (1, 3, 6),
    }
    return DraftConfig(**{**config, **fields})


def random_weights(config: DraftConfig, rng: random.Random) -> dict[str, torch.Tensor]:
    """Draws the tensors of a checkpoint."""
    generator = torch.Generator().manual_seed(rng.getrandbits(32))
    weights = {}
    for name, shape in naive_draft.canonical_shapes(config).items():
        values = torch.randn(shape, generator=generator, dtype=torch.float64)
        if name == "d2t":
            values = random_d2t(rng, config.draft_vocab_size, config.vocab_size)
        elif len(shape) == 1:
            values = 1.0 + 0.3 * values
        elif not name.startswith(("embed_tokens", "lm_head")):
            values = values * 1.5 * shape[-1] ** -0.5
        weights[name] = values
    return weights


def stand_in_target(config: DraftConfig, rng: random.Random) -> SimpleNamespace:
    """What `share_with` looks at: sizes, an embedding and a head."""
    blocks = TorchBlocks(CPU, torch.float64)
    size = config.target_hidden_size
    generator = torch.Generator().manual_seed(rng.getrandbits(32))
    embedding = blocks.embedding("embed_tokens", VOCAB_SIZE, size)
    head = blocks.lm_head("lm_head", size, VOCAB_SIZE)
    for module in (embedding, head):
        module.weight.copy_(torch.randn(VOCAB_SIZE, size, generator=generator).double())
    sizes = SimpleNamespace(hidden_size=size, vocab_size=VOCAB_SIZE)
    return SimpleNamespace(config=sizes, embed_tokens=embedding, lm_head=head)


@dataclass
class Sequence:
    """Inputs of the rows whose draft KV is valid so far, and the last row's state."""

    hidden: list[torch.Tensor] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)


class Pair:
    """A draft and its oracle, fed the same rows."""

    def __init__(self, config: DraftConfig, rng: random.Random, block_size: int = 4) -> None:
        self.config, self.rng = config, rng
        self.generator = torch.Generator().manual_seed(rng.getrandbits(32))
        self.weights = random_weights(config, rng)
        self.draft = Eagle3Draft(config, TorchBlocks(CPU, torch.float64), TARGET_LAYERS)
        source = DictSource(self.weights)
        self.draft.load_weights(source)
        assert not source.remaining
        target = stand_in_target(config, rng)
        self.draft.share_with(target)
        self.embedding = self.weights.get("embed_tokens.weight", target.embed_tokens.weight)
        self.head = self.weights.get("lm_head.weight", target.lm_head.weight)
        self.sequences = [Sequence(), Sequence()]
        self.paged = PagedSequences(
            TARGET_LAYERS + config.num_layers,
            config.mla.latent_size,
            num_sequences=2,
            max_len=60,
            block_size=block_size,
            seed=rng.getrandbits(16),
        )

    def extend(
        self, decode: list[tuple[int, int]], prefill: list[tuple[int, int]] = ()
    ) -> torch.Tensor:
        """Feeds (sequence, rows) of drawn captured states; returns the states of the last rows."""
        runs: dict[str, list[tuple[int, int, int]]] = {"decode": [], "prefill": []}
        width = self.config.num_captured * self.config.target_hidden_size
        for kind, parts in (("decode", decode), ("prefill", prefill)):
            for index, count in parts:
                sequence = self.sequences[index]
                runs[kind].append((index, len(sequence.tokens), count))
                captured = torch.randn(count, width, generator=self.generator, dtype=torch.float64)
                mine = self.draft.combine(captured)
                oracle = naive_draft.combine(self.config, self.weights, captured)
                torch.testing.assert_close(mine, oracle, rtol=1e-10, atol=1e-10)
                sequence.hidden += list(mine)
                sequence.tokens += [self.rng.randrange(VOCAB_SIZE) for _ in range(count)]
        return self._run(runs)

    def chain(self, last_states: torch.Tensor, steps: int) -> None:
        """Runs provisional rows after the last ones, then forgets them."""
        saved = [len(sequence.tokens) for sequence in self.sequences]
        for _ in range(steps):
            target_ids = self._check_proposal(last_states)
            runs = []
            for index, sequence in enumerate(self.sequences):
                runs.append((index, len(sequence.tokens), 1))
                sequence.hidden.append(last_states[index])
                sequence.tokens.append(int(target_ids[index]))
            last_states = self._run({"decode": runs, "prefill": []})
        for sequence, length in zip(self.sequences, saved, strict=True):
            del sequence.hidden[length:], sequence.tokens[length:]

    def _run(self, runs: dict[str, list[tuple[int, int, int]]]) -> torch.Tensor:
        plan = self.paged.plan(**runs)
        hidden = plan.gather([torch.stack(seq.hidden) for seq in self.sequences])
        tokens = plan.gather([torch.tensor(seq.tokens) for seq in self.sequences])
        states = self.draft(hidden, tokens, plan.positions, plan.ctx)
        logits = self.draft.compute_logits(states)
        oracles = [self._oracle(sequence) for sequence in self.sequences]
        for row, where in enumerate(plan.rows):
            if where is not None:
                expected = oracles[where[0]][where[1]]
                torch.testing.assert_close(states[row], expected, rtol=1e-9, atol=1e-9)
                expected = naive_draft.logits(self.config, self.weights, self.head, expected)
                torch.testing.assert_close(logits[row], expected, rtol=1e-9, atol=1e-9)
        last = {where[0]: states[row] for row, where in enumerate(plan.rows) if where is not None}
        return torch.stack([last[index] for index in sorted(last)])

    def _oracle(self, sequence: Sequence) -> torch.Tensor:
        return naive_draft.states(
            self.config,
            self.weights,
            self.embedding,
            torch.stack(sequence.hidden),
            torch.tensor(sequence.tokens),
        )

    def _check_proposal(self, states: torch.Tensor) -> torch.Tensor:
        draft_ids, target_ids = self.draft.propose(states)
        expected = naive_draft.logits(self.config, self.weights, self.head, states).argmax(dim=-1)
        assert draft_ids.tolist() == expected.tolist()
        if self.config.has_d2t:
            expected = expected + self.weights["d2t"][expected]
        assert target_ids.tolist() == expected.tolist()
        return target_ids


def run_scenario(pair: Pair) -> None:
    """Prompts in chunks, a mixed pass, chains, and extends over stale provisional rows."""
    pair.extend([], [(0, 5), (1, 3)])
    states = pair.extend([(1, 2)], [(0, 4)])  # a decode grid and a chunk in one pass
    pair.chain(states, 3)
    states = pair.extend([(0, 3), (1, 1)])  # ragged: the second run is padded
    pair.chain(states, 2)


SHARING = ("own_both", "own_embedding", "own_head", "own_head_d2t", "own_both_d2t", "shared")


def remaining_combinations() -> Iterator[dict[str, object]]:
    """Every combination of what the test's parameters do not name."""
    for sharing, own_width, has_fc in itertools.product(SHARING, (False, True), (True, False)):
        if own_width and not sharing.startswith("own_both"):
            continue  # refused: see test_refuses_to_borrow_another_width
        yield {
            "has_own_embedding": "own_both" in sharing or sharing == "own_embedding",
            "has_own_lm_head": "own_both" in sharing or "own_head" in sharing,
            "has_d2t": sharing.endswith("d2t"),
            "draft_vocab_size": 23 if sharing.endswith("d2t") else VOCAB_SIZE,
            "own_width": own_width,
            "has_fc": has_fc,
        }


@pytest.mark.parametrize("q_lora_rank", [10, None])
@pytest.mark.parametrize("norm_before_residual", [False, True])
@pytest.mark.parametrize("norm_output", [False, True])
@pytest.mark.parametrize("norm", ["fc_norm", "norm_before_fc", "no_norm"])
def test_equals_naive_draft(
    norm: str, norm_output: bool, norm_before_residual: bool, q_lora_rank: int | None
) -> None:
    rng = random.Random(f"{norm}{norm_output}{norm_before_residual}{q_lora_rank}")
    layer_counts = itertools.cycle(rng.sample((1, 2, 3), 3))
    captured_counts = itertools.cycle(rng.sample((1, 2, 3, 4, 5), 5))
    for fields in remaining_combinations():
        hidden_size = 12
        target_hidden_size = 8 if fields.pop("own_width") else 12
        if fields["has_fc"]:
            num_captured = next(captured_counts)
        else:
            num_captured = 1 if target_hidden_size == 12 else 2
            hidden_size = num_captured * target_hidden_size
        config = draft_config(
            rng,
            hidden_size=hidden_size,
            target_hidden_size=target_hidden_size,
            num_layers=next(layer_counts),
            boundaries=tuple(range(1, num_captured + 1)),
            fc_norm=norm == "fc_norm",
            norm_before_fc=norm == "norm_before_fc",
            norm_output=norm_output,
            norm_before_residual=norm_before_residual,
            q_lora_rank=q_lora_rank,
            **fields,
        )
        run_scenario(Pair(config, rng))


@given(data=st.data())
def test_any_history_equals_naive_draft(data: st.DataObject) -> None:
    rng = random.Random(data.draw(st.integers(0, 2**32), label="seed"))
    config = draft_config(
        rng,
        num_layers=data.draw(st.integers(1, 2)),
        norm_output=data.draw(st.booleans()),
        norm_before_residual=data.draw(st.booleans()),
        q_lora_rank=data.draw(st.sampled_from((None, 10))),
    )
    pair = Pair(config, rng, block_size=data.draw(st.sampled_from((1, 3, 4, 16))))
    sizes = st.integers(1, 5)
    pair.extend([], [(0, data.draw(sizes)), (1, data.draw(sizes))])
    for _ in range(data.draw(st.integers(1, 4))):
        order = data.draw(st.permutations((0, 1)))
        runs = [(index, data.draw(sizes)) for index in order]
        num_decode = data.draw(st.integers(0, 2))
        states = pair.extend(runs[:num_decode], runs[num_decode:])
        pair.chain(states, data.draw(st.integers(0, 3)))


@pytest.mark.parametrize("flag", ["norm_output", "norm_before_residual"])
def test_flag_without_a_tensor_is_not_inert(flag: str) -> None:
    """No tensor shows these flags, so a draft that ignored one would load, and only be slow."""
    results = {}
    for value in (False, True):
        rng = random.Random(3)  # the same weights and inputs both times
        pair = Pair(draft_config(rng, has_own_embedding=True, **{flag: value}), rng)
        states = pair.extend([], [(0, 4), (1, 4)])
        results[value] = (states, pair.draft.compute_logits(states))
    assert (results[False][0] - results[True][0]).abs().min() > 1e-4
    difference = (results[False][1] - results[True][1]).abs().max().item()
    if flag == "norm_output":  # the first step's logits cannot tell
        assert difference < 1e-12
    else:
        assert difference > 1e-2


def test_refuses_to_borrow_another_width() -> None:
    config = draft_config(
        random.Random(0), target_hidden_size=8, has_own_embedding=False, has_own_lm_head=True
    )
    with pytest.raises(
        ConfigError, match="target's embed_tokens: its checkpoint must have its own"
    ):
        Eagle3Draft(config, TorchBlocks(CPU, torch.float64), TARGET_LAYERS)


def test_refuses_a_pruned_vocabulary_without_own_head() -> None:
    config = draft_config(random.Random(0), has_own_lm_head=False, draft_vocab_size=20)
    with pytest.raises(ConfigError, match="draft_vocab_size 20 must equal vocab_size 30"):
        Eagle3Draft(config, TorchBlocks(CPU, torch.float64), TARGET_LAYERS)


def test_refuses_another_target() -> None:
    rng = random.Random(0)
    config = draft_config(rng)
    draft = Eagle3Draft(config, TorchBlocks(CPU, torch.float64), TARGET_LAYERS)
    target = stand_in_target(config, rng)
    target.config.hidden_size = 16
    with pytest.raises(ConfigError, match="hidden_size 12, but the target's hidden_size is 16"):
        draft.share_with(target)
    target.config = SimpleNamespace(hidden_size=12, vocab_size=31)
    with pytest.raises(ConfigError, match="vocab_size 30, but the target's vocab_size is 31"):
        draft.share_with(target)


def test_needs_share_with() -> None:
    config = draft_config(random.Random(0), has_own_lm_head=False)
    draft = Eagle3Draft(config, TorchBlocks(CPU, torch.float64), TARGET_LAYERS)
    with pytest.raises(ConfigError, match=r"no lm_head of its own.*call share_with"):
        draft.propose(torch.zeros(1, 12, dtype=torch.float64))
    plan = PagedSequences(TARGET_LAYERS + 1, config.mla.latent_size).plan(decode=[(0, 0, 1)])
    with pytest.raises(ConfigError, match=r"no embedding of its own.*call share_with"):
        draft(torch.zeros(1, 12), torch.zeros(1, dtype=torch.int64), plan.positions, plan.ctx)


def test_missing_tensor_is_named() -> None:
    rng = random.Random(0)
    config = draft_config(rng, fc_norm=True)
    weights = random_weights(config, rng)
    del weights["fc_norm.1.weight"]
    draft = Eagle3Draft(config, TorchBlocks(CPU, torch.float64), TARGET_LAYERS)
    with pytest.raises(CheckpointError, match=r"fc_norm\.1\.weight"):
        draft.load_weights(DictSource(weights))


def test_host_blocks_load_themselves() -> None:
    class HostBlocks(TorchBlocks):
        def linear(self, *args: object, **kwargs: object) -> torch.nn.Module:
            return torch.nn.Identity()

    rng = random.Random(0)
    config = draft_config(rng)
    draft = Eagle3Draft(config, HostBlocks(CPU, torch.float64), TARGET_LAYERS)
    with pytest.raises(UnsupportedError, match="Identity at 'fc' has no load"):
        draft.load_weights(DictSource(random_weights(config, rng)))
