# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""`trtllm-ext convert`: any draft in, the files that one program wants out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from tensorrt_llm_ext.cli import options
from tensorrt_llm_ext.cli.output import finish
from tensorrt_llm_ext.cli.progress import bytes_bar, status
from tensorrt_llm_ext.errors import ConfigError

if TYPE_CHECKING:
    from tensorrt_llm_ext.checkpoints.draft_vocabulary import DraftVocabulary
    from tensorrt_llm_ext.checkpoints.normalize import DraftCheckpoint
    from tensorrt_llm_ext.configs.target import TargetConfig

_EXIT_FINDINGS = 1

EPILOG = (
    "[bold]Receivers[/bold]: trtllm (TensorRT-LLM), vllm, sglang, specforge (TorchSpec reads it "
    "too), modelopt. What a receiver's files cannot say is refused; what its code does not run, or "
    "runs differently, is a warning.\n\n"
    "[bold]Safety[/bold]: weights are copied bit for bit. What was written is read back, compared "
    "tensor by tensor and put through every check before OUT appears.\n\n"
    '[bold]--draft-vocab[/bold] takes token counts of your own traffic: .json with {"id": count}, '
    ".jsonl with one list of token ids per line, text of ids, .npy or .safetensors with a count "
    "per id.\n\n"
    "[bold]Exit codes[/bold]: 0 converted, 1 converted, but the draft fails a check that it failed "
    "before too, 2 bad usage, or nothing was written."
)


Source: TypeAlias = Annotated[
    str, typer.Argument(metavar="IN", help="Folder of the draft, or its name on the hub.")
]
Out: TypeAlias = Annotated[Path, typer.Argument(metavar="OUT", help="New folder.")]
To: TypeAlias = Annotated[
    str, typer.Option("--to", help="trtllm, vllm, sglang, specforge or modelopt.")
]
Target: TypeAlias = Annotated[
    str | None,
    typer.Option(help="Its target, a folder or a name on the hub.", show_default=False),
]
TargetLayers: TypeAlias = Annotated[
    int | None,
    typer.Option(min=1, help="Number of target layers, instead of --target.", show_default=False),
]
DraftVocab: TypeAlias = Annotated[
    Path | None,
    typer.Option(help="Token counts: keep the most frequent tokens only.", show_default=False),
]
DraftVocabSize: TypeAlias = Annotated[
    int | None, typer.Option(min=1, help="How many tokens to keep.", show_default=False)
]
KeepTokens: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help="Token ids to keep however rare they are, as 1,2. End-of-text ids are kept.",
        show_default=False,
    ),
]
DropEmbedding: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--drop-embedding",
        help="Leave out the draft's own embedding; with --target only if it is equal.",
    ),
]


def convert(
    source: Source,
    out: Out,
    to: To,
    target: Target = None,
    target_layers: TargetLayers = None,
    boundaries: options.Boundaries = None,
    draft_vocab: DraftVocab = None,
    draft_vocab_size: DraftVocabSize = None,
    keep_tokens: KeepTokens = None,
    drop_embedding: DropEmbedding = False,
    overwrite: options.Overwrite = False,
    as_json: options.AsJson = False,
) -> None:
    """Rewrite a draft for another program: names, layer ids, config, quantization, vocabulary."""
    if (draft_vocab is None) != (draft_vocab_size is None):
        raise ConfigError("--draft-vocab and --draft-vocab-size belong together. Give both.")
    if keep_tokens is not None and draft_vocab is None:
        raise ConfigError("--keep-tokens is for --draft-vocab, which is missing.")
    if target is not None and target_layers is not None:
        raise ConfigError("--target knows its number of layers. Leave out --target-layers.")

    from tensorrt_llm_ext.checkpoints.convert import ConvertOptions, convert_draft
    from tensorrt_llm_ext.checkpoints.normalize import open_draft, open_target, target_config
    from tensorrt_llm_ext.cli.convert_report import show_report

    with status("reading headers"):
        draft = open_draft(source)
        files = None if target is None else open_target(target)
        config = None if files is None else target_config(files)
    vocabulary = None
    if draft_vocab is not None and draft_vocab_size is not None:
        keep = options.integers(keep_tokens, "--keep-tokens") or ()
        vocabulary = _vocabulary(draft_vocab, draft_vocab_size, keep, draft, config)
    choice = ConvertOptions(
        num_target_layers=target_layers,
        target_checkpoint=files,
        drop_embedding=drop_embedding,
        overwrite=overwrite,
    )
    with bytes_bar("writing and verifying") as progress:
        report = convert_draft(
            draft,
            out,
            to=to,
            target=config,
            boundaries=options.integers(boundaries, "--boundaries"),
            draft_vocab=vocabulary,
            progress=progress,
            options=choice,
        )
    finish(report, show_report, as_json=as_json, exit_code=_EXIT_FINDINGS if report.errors else 0)


def _vocabulary(
    file: Path,
    size: int,
    keep: tuple[int, ...],
    draft: DraftCheckpoint,
    target: TargetConfig | None,
) -> DraftVocabulary:
    from tensorrt_llm_ext.checkpoints.draft_vocabulary import read_draft_vocabulary

    vocab_size = draft.config.get("vocab_size")
    if not isinstance(vocab_size, int):
        raise ConfigError("The draft's config.json has no vocab_size. It cannot be pruned.")
    ends = _end_ids(draft.config.get("eos_token_id")) if target is None else target.eos_token_ids
    ends = tuple(token for token in ends if 0 <= token < vocab_size)
    with status("counting tokens"):
        return read_draft_vocabulary(
            file, size=size, vocab_size=vocab_size, keep=keep, keep_if_present=ends
        )


def _end_ids(value: object) -> tuple[int, ...]:
    items = value if isinstance(value, list) else [value]
    return tuple(item for item in items if isinstance(item, int) and not isinstance(item, bool))


__all__ = ["EPILOG", "convert"]
