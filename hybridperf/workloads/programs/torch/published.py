"""A training step of any architecture of Hugging Face by its own code: a `config.json` whose sizes
say too little (encoders of sound, hybrids, images in many resolutions) is what Transformers builds
of it, on tensors without memory.

It is given what its main input is called: words, the pixels of an image, sound. It learns from its
own words or from classes; where its head takes no labels that are as easily made, the sum of its
results stands for a loss, and a note says so.
"""

from __future__ import annotations

import os
from types import ModuleType
from typing import Any

from hybridperf.engine.workload import Workload
from hybridperf.io import InputError, first_line
from hybridperf.workloads.programs.torch.fakes import without_memory
from hybridperf.workloads.programs.torch.program import from_torch

# heads by what Transformers calls them, the first that an architecture has where its config says
# nothing; all but the last two learn from words or classes
_HEADS = (
    "SpeechSeq2Seq", "Seq2SeqLM", "MaskedLM", "CausalLM", "ImageClassification", "CTC",
    "ImageTextToText",
)  # fmt: skip
_UNLABELLED = ("CTC", "ImageTextToText", "")
# what some models draw numbers for as they train: masks of sound, layers that are left out
_DRAWN = {"apply_spec_augment": False, "layerdrop": 0.0, "encoder_layerdrop": 0.0,
          "decoder_layerdrop": 0.0}  # fmt: skip
# whose scans are kernels of other packages; without those Transformers goes token by token
_OTHERS_KERNELS = ("mamba", "falcon_mamba", "jamba", "zamba", "rwkv", "xlstm")
_IMAGE, _SAMPLES, _FRAMES, _MEL = 224, 16_000, 3000, 80
_TOKENS = 512  # of a sequence, where neither config nor caller says
_LONGEST = ("max_position_embeddings", "n_positions", "max_seq_len", "max_target_positions")


def published_program(
    config: str | os.PathLike, *, batch: int = 1, seq: int | None = None, **options: Any
) -> Workload:
    """A training step with AdamW, in the number format of the config or else bf16.

    Args:
        config: the path of a `config.json`.
        batch: sequences, images or recordings.
        seq: tokens of a sequence; None: 512, or as many as the model has.
        options: of `from_torch`.

    Raises:
        InputError: Transformers is not installed or cannot build the model; as `from_torch`.
    """
    with without_memory():
        try:
            import torch
            import transformers
        except ImportError as error:
            raise InputError(
                f"{config}: its sizes alone say too little, and Transformers, whose code would, is"
                " not installed (`pip install transformers`)"
            ) from error
        transformers.logging.set_verbosity_error()
        try:
            # of the file alone: nothing is downloaded, no code of the model's publisher is run
            read = transformers.AutoConfig.from_pretrained(os.fspath(config), local_files_only=True)
            if read.model_type in _OTHERS_KERNELS:
                raise InputError(
                    f"{config}: the scan of a {read.model_type} is a kernel of a package of its own"
                    " and not followed; expected an architecture that PyTorch's ops make up"
                )
            for name in _DRAWN.keys() & vars(read).keys():
                setattr(read, name, _DRAWN[name])
            head, net = _built(transformers, read, torch.bfloat16)
        except InputError:
            raise
        except Exception as error:
            raise InputError(
                f"{config}: Transformers {transformers.__version__} cannot build this model"
                f" ({first_line(error)}); give its sizes in a .toml file, or its program by --torch"
            ) from error
        given = _given(torch, net, read, batch, seq)
        if head not in _UNLABELLED:
            given["labels"] = given.pop("decoder_input_ids", None)
            if given["labels"] is None:
                images = head == "ImageClassification"
                given["labels"] = (
                    torch.zeros(batch, dtype=torch.long) if images else given[net.main_input_name]
                )
        kind, updates = type(net).__name__, torch.optim.AdamW(net.parameters())
        try:
            return from_torch(
                lambda: net(**given), optimizer=updates, name=f"{kind} of Transformers", **options
            )
        except InputError as error:  # whose line is none of the user's
            said = str(error).partition(": ")[2] or str(error)
            raise InputError(f"{config}: {kind} of Transformers is not followed: {said}") from error


def _built(transformers: Any, config: Any, dtype: Any) -> tuple[str, Any]:
    """(the head, the model with it): that of the config, else the first known."""
    named = (config.architectures or ("",))[0]
    for head in (*(one for one in _HEADS if named.endswith(f"For{one}")), *_HEADS):
        kind = getattr(transformers, f"AutoModelFor{head}", None)
        if kind is not None and type(config) in kind._model_mapping:
            return head, kind.from_config(config, dtype=dtype).train()
    return "", transformers.AutoModel.from_config(config, dtype=dtype).train()


def _given(torch: ModuleType, net: Any, config: Any, batch: int, seq: int | None) -> dict[str, Any]:
    """What it takes, by name."""
    vision = getattr(config, "vision_config", config)
    text = config.get_text_config()
    longest = next((one for key in _LONGEST if (one := getattr(text, key, None))), _TOKENS)
    words = torch.zeros(batch, seq or min(_TOKENS, longest), dtype=torch.long)
    main = net.main_input_name
    if main == "pixel_values":
        side = getattr(vision, "image_size", None) or _IMAGE
        high, wide = side if isinstance(side, list | tuple) else (side, side)
        channels = getattr(vision, "num_channels", 3)
        given = {main: torch.zeros(batch, channels, high, wide, dtype=net.dtype)}
        if hasattr(config, "text_config"):
            given["input_ids"] = words
        return given
    if main == "input_values":  # a second of sound
        return {main: torch.zeros(batch, seq or _SAMPLES, dtype=net.dtype)}
    if main == "input_features":
        bins = getattr(config, "num_mel_bins", _MEL)
        frames = 2 * getattr(config, "max_source_positions", _FRAMES // 2)
        sound = torch.zeros(batch, bins, frames, dtype=net.dtype)
        return {main: sound, "decoder_input_ids": words[:, :longest]}
    return {main: words}
