"""A single-device Llama-style decoder, without parallelism.

Every layer computes in the number format of its input, whatever the format of its weights, so mixed precision is
applied from outside too. Suffixes of tensor names spell their shapes:

B batch, S sequence, D hidden, H query heads, K key/value heads, E width of a head, F feed-forward width, V vocabulary.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import nn

from sweep.core.cells.model_shape import ModelShape


class Linear(nn.Linear):
    """A projection without bias that computes in its input's format."""

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__(n_in, n_out, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Project the last dimension."""
        return F.linear(x, self.weight.to(x.dtype))


class RMSNorm(nn.Module):
    """Root-mean-square norm with a learned scale (Zhang and Sennrich, arXiv 1910.07467)."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise the last dimension."""
        return F.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), self.eps)


def rope_table(shape: ModelShape, seq_len: int, device: torch.device) -> torch.Tensor:
    """Cosines and signed sines of the rotary positions, float32, shape (2, S, E) (Su et al., arXiv 2104.09864).

    Channels i and i + E/2 are rotated as a pair, the layout of published weights: each becomes its cosine times itself
    plus its sine times the other; the sine of the first half is negative.
    """
    even = torch.arange(0, shape.head_dim, 2, dtype=torch.float32, device=device)
    frequency = shape.rope_theta ** (-even / shape.head_dim)
    angle = torch.outer(torch.arange(seq_len, dtype=torch.float32, device=device), frequency)
    cos, sin = angle.cos(), angle.sin()
    return torch.stack((torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)))


def rotate(x_BSHE: torch.Tensor, rope_2SE: torch.Tensor) -> torch.Tensor:
    """Rotate each pair of channels by the angle of its position; ``rope_2SE`` comes from :func:`rope_table`."""
    turned = _Rotation.apply(x_BSHE, rope_2SE[0].unsqueeze(1), rope_2SE[1].unsqueeze(1))  # type: ignore[no-untyped-call]  # torch does not annotate it
    return cast("torch.Tensor", turned)


class _Rotation(torch.autograd.Function):
    """The rotation with its own backward pass, which rotates back: six operations instead of sixteen."""

    @staticmethod
    def forward(context: Any, x_BSHE: torch.Tensor, cos_S1E: torch.Tensor, sin_S1E: torch.Tensor) -> torch.Tensor:
        context.save_for_backward(cos_S1E, sin_S1E)
        return _turned(x_BSHE, cos_S1E, sin_S1E, sign=1)

    @staticmethod
    def backward(context: Any, gradient_BSHE: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        cos_S1E, sin_S1E = context.saved_tensors
        return _turned(gradient_BSHE, cos_S1E, sin_S1E, sign=-1), None, None


def _turned(x_BSHE: torch.Tensor, cos_S1E: torch.Tensor, sin_S1E: torch.Tensor, *, sign: int) -> torch.Tensor:
    out_BSHE = x_BSHE * cos_S1E
    (first, second), (sin_first, sin_second) = x_BSHE.chunk(2, dim=-1), sin_S1E.chunk(2, dim=-1)
    out_first, out_second = out_BSHE.chunk(2, dim=-1)
    out_first.addcmul_(second, sin_first, value=sign)
    out_second.addcmul_(first, sin_second, value=sign)
    return out_BSHE


class CausalAttention(nn.Module):
    """Attention of each position to itself and all earlier ones; context parallelism replaces this module.

    Attributes:
        is_grouped: True if several query heads share a key/value head.
        repeats_heads: True if keys and values are repeated for each query head, for kernels without grouped heads.
    """

    def __init__(self, *, is_grouped: bool) -> None:
        super().__init__()
        self.is_grouped = is_grouped
        self.repeats_heads = False

    def forward(self, q_BHSE: torch.Tensor, k_BKSE: torch.Tensor, v_BKSE: torch.Tensor) -> torch.Tensor:
        """Weighted values, shape (B, H, S, E)."""
        is_grouped = self.is_grouped and not self.repeats_heads
        if self.is_grouped and self.repeats_heads:
            n_sharing = q_BHSE.shape[1] // k_BKSE.shape[1]
            k_BKSE, v_BKSE = k_BKSE.repeat_interleave(n_sharing, dim=1), v_BKSE.repeat_interleave(n_sharing, dim=1)
        return F.scaled_dot_product_attention(q_BHSE, k_BKSE, v_BKSE, is_causal=True, enable_gqa=is_grouped)


class Attention(nn.Module):
    """Causal self-attention in which ``n_heads / n_kv_heads`` query heads share one key/value head."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.head_dim = shape.head_dim
        self.inner: nn.Module = CausalAttention(is_grouped=shape.n_kv_heads != shape.n_heads)
        self.wq = Linear(shape.hidden, shape.hidden)
        self.wk = Linear(shape.hidden, shape.kv_hidden)
        self.wv = Linear(shape.hidden, shape.kv_hidden)
        self.wo = Linear(shape.hidden, shape.hidden)

    def forward(self, x_BSD: torch.Tensor, rope_2SE: torch.Tensor) -> torch.Tensor:
        """Attend to this and all earlier positions."""
        # The numbers of heads and positions come from the projections' output: a tensor-parallel rank has fewer heads,
        # and with sequence parallelism it holds fewer positions outside of the projections.
        q_BSHE = self.wq(x_BSD).unflatten(-1, (-1, self.head_dim))
        k_BSKE = self.wk(x_BSD).unflatten(-1, (-1, self.head_dim))
        v_BSKE = self.wv(x_BSD).unflatten(-1, (-1, self.head_dim))
        rope_2SE = rope_2SE[:, : q_BSHE.shape[1]]
        out_BHSE = self.inner(
            rotate(q_BSHE, rope_2SE).transpose(1, 2),
            rotate(k_BSKE, rope_2SE).transpose(1, 2),
            v_BSKE.transpose(1, 2),
        )
        return cast("torch.Tensor", self.wo(out_BHSE.transpose(1, 2).flatten(2)))


class FeedForward(nn.Module):
    """SwiGLU (Shazeer, arXiv 2002.05202)."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.w_gate = Linear(shape.hidden, shape.ffn_hidden)
        self.w_up = Linear(shape.hidden, shape.ffn_hidden)
        self.w_down = Linear(shape.ffn_hidden, shape.hidden)

    def forward(self, x_BSD: torch.Tensor) -> torch.Tensor:
        """Gate, multiply, project back."""
        return cast("torch.Tensor", self.w_down(F.silu(self.w_gate(x_BSD)) * self.w_up(x_BSD)))


class Block(nn.Module):
    """One pre-norm transformer layer."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(shape.hidden, shape.norm_eps)
        self.attention = Attention(shape)
        self.ffn_norm = RMSNorm(shape.hidden, shape.norm_eps)
        self.ffn = FeedForward(shape)

    def forward(self, x_BSD: torch.Tensor, rope_2SE: torch.Tensor) -> torch.Tensor:
        """Attention, then the feed-forward layer, each added to the residual stream."""
        x_BSD = x_BSD + self.attention(self.attention_norm(x_BSD), rope_2SE)
        return cast("torch.Tensor", x_BSD + self.ffn(self.ffn_norm(x_BSD)))


class Llama(nn.Module):
    """The whole decoder, from embedding to logits.

    Build it on the meta device: :mod:`trainer.model.init` gives the parameters their values. The rotary table is a
    buffer that is not saved; rebuild it after the module has left the meta device.
    """

    rope: torch.Tensor

    def __init__(self, shape: ModelShape, seq_len: int) -> None:
        super().__init__()
        self.shape = shape
        self.seq_len = seq_len
        self.embedding: nn.Module = nn.Embedding(shape.vocab_size, shape.hidden)
        # A mapping by name, so that a pipeline stage can hold some of the layers under the same names.
        self.blocks = nn.ModuleDict({str(layer): Block(shape) for layer in range(shape.n_layers)})
        self.norm: nn.Module = RMSNorm(shape.hidden, shape.norm_eps)
        self.head: nn.Module = Linear(shape.hidden, shape.vocab_size)
        self.register_buffer("rope", torch.empty(2, seq_len, shape.head_dim), persistent=False)

    def rebuild_buffers(self, device: torch.device, positions: torch.Tensor | None = None) -> None:
        """Compute the rotary table of this rank's positions (None: all) on the device of the parameters."""
        table = rope_table(self.shape, self.seq_len, device)
        self.rope = table if positions is None else table[:, positions]

    def forward(self, tokens_BS: torch.Tensor) -> torch.Tensor:
        """Logits of the next token, shape (B, S, V)."""
        x_BSD = self.embedding(tokens_BS)
        rope_2SE = self.rope.to(x_BSD.dtype)
        for block in self.blocks.values():
            x_BSD = block(x_BSD, rope_2SE)
        return cast("torch.Tensor", self.head(self.norm(x_BSD)))


def build_on_meta(shape: ModelShape, seq_len: int) -> Llama:
    """Build the model without memory."""
    with torch.device("meta"):
        return Llama(shape, seq_len)
