"""CUDA's flash attention in plain operations on a CPU, so that torch's ring runs over gloo (no test by itself).

Suffixes as in :mod:`trainer.model.decoder`; S queries, T keys.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, _cur_sdpa_kernel_backends

from trainer.parallel import context_parallel as context

_NOTHING = torch.zeros((), dtype=torch.long)


def _scores(q_BHSE: torch.Tensor, k_BKTE: torch.Tensor, *, is_causal: bool) -> torch.Tensor:
    k_BHTE = k_BKTE.repeat_interleave(q_BHSE.shape[1] // k_BKTE.shape[1], 1)
    scores_BHST = q_BHSE @ k_BHTE.mT / math.sqrt(q_BHSE.shape[-1])
    if not is_causal:
        return scores_BHST
    future = torch.ones(scores_BHST.shape[-2:], dtype=torch.bool).triu(1)
    return scores_BHST.masked_fill(future, -math.inf)


def _forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dropout: float = 0.0, causal: bool = False, *_: Any, **__: Any
) -> tuple[Any, ...]:
    scores_BHST = _scores(q, k, is_causal=causal)
    lse_BHS = scores_BHST.logsumexp(-1)
    out = (scores_BHST - lse_BHS[..., None]).exp() @ v.repeat_interleave(q.shape[1] // v.shape[1], 1)
    # In memory it lies as the queries do; compiled code relies on it.
    return (
        torch.empty_like(q).copy_(out),
        lse_BHS,
        _NOTHING,
        _NOTHING,
        q.shape[2],
        k.shape[2],
        _NOTHING,
        _NOTHING,
        torch.zeros(()),
    )


def _backward(
    grad: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse_BHS: torch.Tensor,
    cum_q: object,
    cum_k: object,
    max_q: int,
    max_k: int,
    dropout: float,
    causal: bool,
    *_: Any,
    **__: Any,
) -> tuple[torch.Tensor, ...]:
    n_sharing = q.shape[1] // k.shape[1]
    weights_BHST = (_scores(q, k, is_causal=causal) - lse_BHS[..., None]).exp()
    of_weights_BHST = grad @ v.repeat_interleave(n_sharing, 1).mT
    of_scores_BHST = weights_BHST * (of_weights_BHST - (grad * out).sum(-1, keepdim=True)) / math.sqrt(q.shape[-1])

    def summed(of_every_head: torch.Tensor) -> torch.Tensor:
        return of_every_head.unflatten(1, (-1, n_sharing)).sum(2)

    grad_q = of_scores_BHST @ k.repeat_interleave(n_sharing, 1)
    return grad_q, summed(of_scores_BHST.mT @ q), summed(weights_BHST.mT @ grad)


@functools.cache
def _register() -> torch.library.Library:
    library = torch.library.Library("aten", "IMPL")
    library.impl("_scaled_dot_product_flash_attention", _forward, "CPU")
    library.impl("_scaled_dot_product_flash_attention_backward", _backward, "CPU")
    return library


@contextlib.contextmanager
def ring_on_cpu() -> Iterator[None]:
    """Let cp go around torch's ring, as on a GPU that has flash attention."""
    _register()

    def always_ring(*_: object) -> context.AttentionForm:
        return context.AttentionForm.RING

    original = F.scaled_dot_product_attention

    def chosen(q: Any, k: Any, v: Any, *, attn_mask: Any = None, is_causal: bool = False, enable_gqa: bool) -> Any:
        assert attn_mask is None
        assert is_causal
        # What CUDA may choose from.
        assert set(_cur_sdpa_kernel_backends()) == {SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION}
        return torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, is_causal, False)[0]

    with (
        mock.patch.object(context, "choose_attention", always_ring),
        mock.patch.object(F, original.__name__, chosen),
    ):
        yield
