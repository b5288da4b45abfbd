"""Dropout as PyTorch has it on GPUs: one kernel, inside attention none.

`aten::native_dropout` is what a GPU runs (aten/src/ATen/native/Dropout.cpp), where a CPU draws a
mask, scales it and multiplies; fused attention of GPUs drops as it goes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock


@contextlib.contextmanager
def fused_drops() -> Iterator[None]:
    """`dropout` as one op, also where modules of PyTorch call it."""
    import torch

    functional = torch.nn.functional
    apart, attend = torch.dropout, functional.scaled_dot_product_attention

    def dropped(input: Any, p: float, train: bool) -> Any:
        if train and 0.0 < p < 1.0:
            return torch.native_dropout(input, p, True)[0]
        return apart(input, p, train)

    def attended(
        query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0,
        *args: Any, **kwargs: Any,
    ) -> Any:  # fmt: skip
        del dropout_p
        return attend(query, key, value, attn_mask, 0.0, *args, **kwargs)

    with (
        mock.patch.object(torch, "dropout", dropped),
        mock.patch.object(torch._VF, "dropout", dropped, create=True),
        mock.patch.object(functional, "scaled_dot_product_attention", attended),
    ):
        yield
