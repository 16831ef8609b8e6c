# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Random tiny targets and drafts, and paged caches for them, without any file."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from tensorrt_llm_ext.configs.draft import DraftConfig
from tensorrt_llm_ext.configs.mla import MLAConfig, RopeConfig, YarnConfig
from tensorrt_llm_ext.configs.target import MoEConfig, TargetConfig
from tensorrt_llm_ext.errors import CheckpointError
from tensorrt_llm_ext.models.blocks import TorchBlocks
from tensorrt_llm_ext.models.deepseek import DeepseekV3
from tensorrt_llm_ext.models.eagle3 import Eagle3Draft
from tensorrt_llm_ext.models.interfaces import ForwardContext
from tensorrt_llm_ext.ops.attention.metadata import (
    NULL_BLOCK,
    PADDING_SLOT,
    DecodeMetadata,
    MLAMetadata,
    PrefillMetadata,
)

CPU = torch.device("cpu")
MAX_POSITIONS = 256

ROPES = {
    "plain": None,
    "yarn_equal_mscale": YarnConfig(
        factor=4.0, original_max_position_embeddings=64, mscale=1.0, mscale_all_dim=1.0
    ),
    "yarn_unequal_mscale": YarnConfig(
        factor=8.0, original_max_position_embeddings=32, mscale=0.707, mscale_all_dim=1.3
    ),
    "yarn_no_mscale": YarnConfig(
        factor=4.0, original_max_position_embeddings=64, beta_fast=8.0, beta_slow=2.0
    ),
}


class DictSource:
    """A `WeightSource` over a dict; `remaining` are the tensors that nobody took."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self.remaining = dict(tensors)

    def has(self, name: str) -> bool:
        return name in self.remaining

    def take(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        tensor = self.remaining.pop(name, None)
        if tensor is None:
            raise CheckpointError(f"{name} is missing, or taken twice.")
        if tuple(tensor.shape) != shape:
            raise CheckpointError(f"{name} has shape {tuple(tensor.shape)}, expected {shape}.")
        return tensor


def randomize(model: nn.Module, seed: int) -> None:
    """Fills every weight: norms near one, matrices so that activations keep a unit scale.

    Values are drawn in float64, so a float32 model is the rounding of the float64 one.
    """
    generator = torch.Generator().manual_seed(seed)
    for name, weight in model.named_parameters():
        values = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
        if "norm" in name:
            values = 1.0 + 0.3 * values
        elif name.endswith("e_score_correction_bias"):
            values = 0.1 * values
        elif name.endswith("w_vc"):  # [num_heads, kv_lora_rank, v_head_dim]
            values = values * weight.shape[-2] ** -0.5
        elif not name.startswith("embed_tokens"):
            values = values * weight.shape[-1] ** -0.5
        if name.startswith("lm_head"):
            values = 3.0 * values  # logits far apart, so that argmax depends on the input
        weight.copy_(values)


def random_target(
    seed: int, *, dtype: torch.dtype = torch.float64, **overrides: object
) -> tuple[TargetConfig, DeepseekV3]:
    """Draws a tiny target: 2 to 4 layers, either router grouping, either q form, any rope.

    Args:
        seed: Decides configuration and weights.
        dtype: Dtype of the model.
        overrides: Fields of `TargetConfig`, of `MLAConfig` (`mla` itself excepted), or `yarn`.
    """
    rng = random.Random(seed)
    num_layers = rng.randint(2, 4)
    first_dense = rng.randint(0, 2)
    grouped = rng.random() < 0.5
    moe = MoEConfig(
        num_experts=16 if grouped else rng.choice((4, 6)),
        num_experts_per_tok=rng.randint(1, 3),
        num_shared_experts=rng.randint(1, 2),
        intermediate_size=12,
        num_groups=8 if grouped else 1,
        topk_group=4 if grouped else 1,
        norm_topk_prob=rng.random() < 0.5,
        routed_scaling_factor=rng.uniform(1.0, 2.5),
    )
    mla = _random_mla(rng, overrides)
    config = TargetConfig(
        architecture="DeepseekV3ForCausalLM",
        vocab_size=40,
        hidden_size=32,
        num_layers=num_layers,
        intermediate_size=48,
        rms_norm_eps=1e-5,
        mla=mla,
        moe=moe,
        moe_layers=frozenset(range(first_dense, num_layers)),
        tie_word_embeddings=rng.random() < 0.25,
        max_position_embeddings=MAX_POSITIONS,
        bos_token_id=0,
        eos_token_ids=(1,),
    )
    if "num_layers" in overrides and "moe_layers" not in overrides:
        overrides["moe_layers"] = frozenset(range(first_dense, int(str(overrides["num_layers"]))))
    config = replace(config, **overrides)  # type: ignore[arg-type]
    with torch.no_grad():
        model = DeepseekV3(config, TorchBlocks(CPU, dtype))
        randomize(model, seed)
    return config, model


def random_draft(
    seed: int, target: TargetConfig, *, dtype: torch.dtype = torch.float64, **overrides: object
) -> tuple[DraftConfig, Eagle3Draft]:
    """Draws a tiny draft for a target; call `draft.share_with(target_model)` before running it.

    Args:
        seed: Decides configuration and weights.
        target: The target's configuration: latent sizes, width and vocabulary are taken from it.
        dtype: Dtype of the model.
        overrides: Fields of `DraftConfig`, of `MLAConfig`, or `yarn`.
    """
    rng = random.Random(seed + 1000)
    num_captured = rng.randint(1, 4)
    norm = rng.choice(("fc_norm", "norm_before_fc", None))
    # A width of its own needs an embedding and a head of its own.
    own_width = rng.random() < 0.25
    hidden_size = int(str(overrides.get("hidden_size", 24 if own_width else target.hidden_size)))
    own_width = hidden_size != target.hidden_size
    has_own_lm_head = own_width or rng.random() < 0.5
    has_d2t = has_own_lm_head and rng.random() < 0.5
    config = DraftConfig(
        hidden_size=hidden_size,
        target_hidden_size=target.hidden_size,
        num_layers=rng.randint(1, 2),
        intermediate_size=40,
        vocab_size=target.vocab_size,
        draft_vocab_size=target.vocab_size - 7 if has_d2t else target.vocab_size,
        rms_norm_eps=1e-6,
        mla=_random_mla(
            rng,
            overrides,
            kv_lora_rank=target.mla.kv_lora_rank,
            qk_rope_head_dim=target.mla.qk_rope_head_dim,
        ),
        boundaries=tuple(
            sorted(rng.choices(range(1, target.num_layers + 1), k=num_captured))
            if num_captured > target.num_layers
            else sorted(rng.sample(range(1, target.num_layers + 1), num_captured))
        ),
        fc_norm=norm == "fc_norm",
        norm_before_fc=norm == "norm_before_fc",
        norm_output=rng.random() < 0.5,
        norm_before_residual=rng.random() < 0.5,
        has_own_embedding=own_width or rng.random() < 0.5,
        has_own_lm_head=has_own_lm_head,
        has_d2t=has_d2t,
    )
    config = replace(config, **overrides)  # type: ignore[arg-type]
    with torch.no_grad():
        draft = Eagle3Draft(config, TorchBlocks(CPU, dtype), target.num_layers)
        randomize(draft, seed + 1000)
        if draft.d2t is not None:
            draft.d2t.copy_(random_d2t(rng, config.draft_vocab_size, config.vocab_size))
    return config, draft


def random_d2t(rng: random.Random, draft_vocab_size: int, vocab_size: int) -> torch.Tensor:
    """Draws the offsets of an increasing map from draft ids to target ids, [draft_vocab_size]."""
    targets = sorted(rng.sample(range(vocab_size), draft_vocab_size))
    return torch.tensor([target - draft for draft, target in enumerate(targets)])


@dataclass
class Pass:
    """One forward pass: context, positions, and (sequence, position) of each row, None: padding."""

    ctx: ForwardContext
    positions: torch.Tensor
    rows: list[tuple[int, int] | None]

    def gather(self, values: Sequence[torch.Tensor]) -> torch.Tensor:
        """Picks, for each row, the value of its sequence at its position; zeros for padding."""
        zero = torch.zeros_like(values[0][0])
        return torch.stack([zero if row is None else values[row[0]][row[1]] for row in self.rows])


class PagedSequences:
    """Latent caches with scattered blocks; every slot that was not written holds NaN."""

    def __init__(
        self,
        num_layers: int,
        latent_size: int,
        *,
        num_sequences: int = 1,
        max_len: int = 64,
        block_size: int = 4,
        dtype: torch.dtype = torch.float64,
        seed: int = 0,
    ) -> None:
        self.block_size = block_size
        columns = -(-max_len // block_size)
        num_blocks = 1 + num_sequences * columns
        blocks = list(range(1, num_blocks))
        random.Random(seed).shuffle(blocks)
        self.blocks = [blocks[i * columns : (i + 1) * columns] for i in range(num_sequences)]
        caches = torch.full(
            (num_layers, num_blocks, block_size, latent_size), torch.nan, dtype=dtype
        )
        caches[:, NULL_BLOCK] = 0.0
        self.latent_caches = tuple(caches)

    def plan(
        self,
        *,
        decode: Sequence[tuple[int, int, int]] = (),
        prefill: Sequence[tuple[int, int, int]] = (),
    ) -> Pass:
        """Lays out one pass over runs (sequence, first position, number of rows).

        Runs of the decode grid may be of unequal length: the shorter ones are padded.
        """
        query_len = max((count for _, _, count in decode), default=0)
        rows: list[tuple[int, int] | None] = []
        positions: list[int] = []
        for sequence, start, count in decode:
            rows += [(sequence, start + i) for i in range(count)]
            rows += [None] * (query_len - count)
            positions += [start + min(i, count - 1) for i in range(query_len)]
        has_padding = None in rows
        grid = None
        if decode:
            needed = max(start + count for _, start, count in decode)
            grid = DecodeMetadata(
                block_table=torch.stack(
                    [self._table(seq, start + count, needed) for seq, start, count in decode]
                ),
                positions=torch.tensor(positions).view(len(decode), query_len),
                block_size=self.block_size,
            )
        chunks = []
        for sequence, start, count in prefill:
            rows += [(sequence, start + i) for i in range(count)]
            positions += range(start, start + count)
            table = self._table(sequence, start + count, start + count)
            chunks.append(
                PrefillMetadata(
                    block_table=table, start=start, num_tokens=count, block_size=self.block_size
                )
            )
        metadata = MLAMetadata(
            slot_mapping=torch.tensor([self._slot(row) for row in rows]),
            decode=grid,
            prefill=tuple(chunks),
            has_padding=has_padding,
        )
        return Pass(ForwardContext(self.latent_caches, metadata), torch.tensor(positions), rows)

    def _slot(self, row: tuple[int, int] | None) -> int:
        if row is None:
            return PADDING_SLOT
        block = self.blocks[row[0]][row[1] // self.block_size]
        return block * self.block_size + row[1] % self.block_size

    def _table(self, sequence: int, length: int, longest: int) -> torch.Tensor:
        used = -(-length // self.block_size)
        unused = -(-longest // self.block_size) - used
        return torch.tensor(self.blocks[sequence][:used] + [10**6] * unused)


def make_context(
    num_layers: int,
    latent_size: int,
    lengths: Sequence[int],
    *,
    dtype: torch.dtype = torch.float64,
) -> Pass:
    """Plans one pass that prefills whole sequences of these lengths into fresh caches."""
    sequences = PagedSequences(
        num_layers, latent_size, num_sequences=len(lengths), max_len=max(lengths), dtype=dtype
    )
    return sequences.plan(prefill=[(index, 0, length) for index, length in enumerate(lengths)])


def _random_mla(rng: random.Random, overrides: dict[str, object], **fixed: int) -> MLAConfig:
    """Draws an MLA layer; takes its fields, and `yarn`, out of `overrides`."""
    yarn = overrides.pop("yarn", ROPES[rng.choice(sorted(ROPES))])
    config = MLAConfig(
        num_heads=rng.choice((2, 3)),
        q_lora_rank=rng.choice((None, 20)),
        kv_lora_rank=16,
        qk_nope_head_dim=10,
        qk_rope_head_dim=8,
        v_head_dim=12,
        rms_norm_eps=1e-6,
        rope=RopeConfig(theta=10000.0, max_position_embeddings=MAX_POSITIONS, yarn=yarn),  # type: ignore[arg-type]
    )
    names = ("num_heads", "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim")
    given = {name: overrides.pop(name) for name in (*names, "v_head_dim") if name in overrides}
    config = replace(config, **fixed, **given)  # type: ignore[arg-type]
    mla = overrides.pop("mla", config)
    assert isinstance(mla, MLAConfig)
    return mla
