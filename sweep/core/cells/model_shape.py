"""The shape of a Llama-style decoder: its parameter counts and its FLOPs per token under a named convention."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from enum import StrEnum

from sweep.core.encoding.frozen import dataclass


class FlopConvention(StrEnum):
    """How the FLOPs of a training token are counted; a figure without its convention means nothing."""

    PALM_FULL = "palm_full"
    CAUSAL = "causal"
    WITH_EMBEDDING = "with_embedding"


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelShape:
    """A decoder-only transformer with RMSNorm, RoPE, grouped-query attention, SwiGLU and an untied output head.

    Attributes:
        name: What the shape is called in tables and overrides, for example ``llama2_7b``.
        n_layers: Transformer blocks.
        hidden: Width of the residual stream.
        n_heads: Query heads; must divide ``hidden``.
        n_kv_heads: Key/value heads; must divide ``n_heads``.
        ffn_hidden: Width of the SwiGLU feed-forward layer.
        vocab_size: Rows of the embedding and of the head.
        rope_theta: Base of the rotary position frequencies.
        norm_eps: Epsilon of RMSNorm.

    Raises:
        ValueError: If a size is not a positive integer or the heads do not divide.
    """

    name: str
    n_layers: int
    hidden: int
    n_heads: int
    n_kv_heads: int
    ffn_hidden: int
    vocab_size: int
    rope_theta: float = 10000.0
    norm_eps: float = 1e-5

    def __post_init__(self) -> None:
        """Refuse a shape that no trainer could build."""
        for field in ("n_layers", "hidden", "n_heads", "n_kv_heads", "ffn_hidden", "vocab_size"):
            value = getattr(self, field)
            if type(value) is not int or value < 1:
                raise ValueError(
                    f"model {self.name}: {field}={value!r} is not a positive integer. Give a whole number >= 1."
                )
        for field in ("rope_theta", "norm_eps"):
            value = getattr(self, field)
            if type(value) not in (int, float) or not 0 < value < math.inf:
                raise ValueError(f"model {self.name}: {field}={value!r} is not a positive number. Give one above 0.")
        if self.hidden % self.n_heads:
            raise ValueError(
                f"model {self.name}: hidden={self.hidden} does not divide by n_heads={self.n_heads}. "
                "Change one of them so that every head has the same whole width."
            )
        if self.hidden // self.n_heads % 2:
            raise ValueError(
                f"model {self.name}: head_dim={self.hidden // self.n_heads} is odd; rotary positions turn "
                "pairs of channels. Choose hidden and n_heads with an even quotient."
            )
        if self.n_heads % self.n_kv_heads:
            raise ValueError(
                f"model {self.name}: n_heads={self.n_heads} does not divide by n_kv_heads={self.n_kv_heads}. "
                "Every key/value head must serve the same number of query heads."
            )

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.hidden // self.n_heads

    @property
    def kv_hidden(self) -> int:
        """Width of all key (or value) heads together."""
        return self.n_kv_heads * self.head_dim

    @property
    def n_embedding_params(self) -> int:
        """Parameters of the input embedding, which costs a look-up and no matrix multiplication."""
        return self.vocab_size * self.hidden

    @property
    def n_layer_params(self) -> int:
        """Parameters of one block: attention, SwiGLU and two norms."""
        attention = 2 * self.hidden * self.hidden + 2 * self.hidden * self.kv_hidden
        return attention + 3 * self.hidden * self.ffn_hidden + 2 * self.hidden

    @property
    def n_params(self) -> int:
        """All parameters: embedding, blocks, final norm and the untied head."""
        return 2 * self.n_embedding_params + self.n_layers * self.n_layer_params + self.hidden


def _attention_flops(shape: ModelShape, seq_len: int) -> int:
    return 12 * shape.n_layers * shape.n_heads * shape.head_dim * seq_len


_CONVENTIONS: Mapping[FlopConvention, Callable[[ModelShape, int], int]] = {
    FlopConvention.PALM_FULL: lambda m, s: 6 * (m.n_params - m.n_embedding_params) + _attention_flops(m, s),
    FlopConvention.CAUSAL: lambda m, s: 6 * (m.n_params - m.n_embedding_params) + _attention_flops(m, s) // 2,
    FlopConvention.WITH_EMBEDDING: lambda m, s: 6 * m.n_params + _attention_flops(m, s),
}


def flops_per_token(shape: ModelShape, seq_len: int, convention: FlopConvention) -> int:
    """FLOPs of one training token (forward and backward, no recomputation).

    ``palm_full`` is 6(N - N_embedding) + 12 L H D S (Chowdhery et al., PaLM, arXiv 2204.02311, appendix B), the
    count of arXiv 2411.13055 and of torchtitan; ``causal`` halves the attention term, as Megatron-LM does today;
    ``with_embedding`` counts the embedding as well, as llm-foundry does.
    """
    return _CONVENTIONS[convention](shape, seq_len)
