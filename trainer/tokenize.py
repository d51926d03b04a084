"""``python -m trainer.tokenize``: a token file out of text, by a public tokenizer or byte by byte."""

from __future__ import annotations

import argparse
import itertools
import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING, NoReturn, Protocol

import numpy as np

from sweep.files import atomic_writer
from trainer.data.tokens_file import DTYPES, HEADER, header

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

BYTES = "bytes"
# Characters that are encoded at a time, up to the end of their line: the text is never in memory as a whole.
_PIECE = 1 << 20
# Names under which public tokenizers know the token that ends a text.
_END_OF_TEXT = ("</s>", "<|endoftext|>", "<|end_of_text|>", "<eos>", "[SEP]")
_DESCRIPTION = """\
Writes the tokens of all texts, one after the other, into a file for trainer.data=FILE. Each text ends with the
tokenizer's end-of-text token, where it has one. The file is there when it is complete.
"""


class Encoder(Protocol):
    """Turns text into numbers."""

    @property
    def vocab_size(self) -> int:
        """One more than the largest token."""
        ...

    @property
    def end(self) -> Sequence[int]:
        """What ends a text; nothing where the tokenizer has no such token."""
        ...

    def encode(self, text: str) -> Sequence[int]:
        """The text's tokens."""
        ...


class ByteEncoder:
    """A token for each byte of UTF-8, and token 256 for the end of a text; needs no library."""

    vocab_size = 257
    end = (256,)

    def encode(self, text: str) -> Sequence[int]:
        """The bytes."""
        return text.encode()


class LibraryEncoder:
    """A tokenizer of the `tokenizers` library: a file of its own format, or a name on the model hub."""

    def __init__(self, name_or_file: str) -> None:
        try:
            from tokenizers import Tokenizer
        except ImportError:
            _refuse(f"--tokenizer {name_or_file} needs the extra `tokenize` (tokenizers). Install it, or use {BYTES}.")
        try:
            is_file = Path(name_or_file).is_file()
            made = Tokenizer.from_file(name_or_file) if is_file else Tokenizer.from_pretrained(name_or_file)
        except Exception as error:  # the library raises plain Exception
            _refuse(f"--tokenizer {name_or_file}: {error}")
        self._tokenizer = made
        # Not the number of entries: numbers may have gaps.
        self.vocab_size = 1 + max(made.get_vocab(with_added_tokens=True).values())
        known = (made.token_to_id(word) for word in _END_OF_TEXT)
        self.end = [token for token in known if token is not None][:1]

    def encode(self, text: str) -> Sequence[int]:
        """The text's tokens, without what a tokenizer adds around a prompt."""
        found: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return found


def _refuse(reason: str) -> NoReturn:
    print(f"tokenize: {' '.join(reason.split())}", file=sys.stderr)
    raise SystemExit(2)


def _pieces(path: Path) -> Iterator[str]:
    """A text in pieces that end at the end of a line, or where a line is too long for that."""
    with path.open(encoding="utf-8") as stream:
        while piece := stream.read(_PIECE):
            yield piece + stream.readline(_PIECE)


def write(texts: Sequence[Path], encoder: Encoder, stream: IO[bytes]) -> tuple[int, int]:
    """Write a token file; returns the number of tokens, those that end a text left out, and the bytes of each."""
    token_bytes = 2 if encoder.vocab_size <= 1 << 16 else 4
    n_tokens = 0
    stream.write(bytes(HEADER.size))
    for path in texts:
        for tokens in itertools.chain(map(encoder.encode, _pieces(path)), (encoder.end,)):
            stream.write(np.array(list(tokens), dtype=DTYPES[token_bytes]).tobytes())
            n_tokens += len(tokens)
    stream.seek(0)
    stream.write(header(token_bytes=token_bytes, n_tokens=n_tokens))
    return n_tokens - len(texts) * len(encoder.end), token_bytes


def parser() -> argparse.ArgumentParser:
    """The arguments."""
    made = argparse.ArgumentParser(
        prog="trainer.tokenize",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.add_argument("texts", nargs="+", type=Path, metavar="TEXT", help="a file of UTF-8 text")
    made.add_argument(
        "--tokenizer", required=True, metavar="NAME_OR_FILE", help=f"tokenizer.json, a model hub's name, or {BYTES}"
    )
    made.add_argument("--out", type=Path, required=True, metavar="FILE", help="a new file that ends in .bin")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Make the file; the exit code is 0, or 2 where it could not be made."""
    arguments = parser().parse_args(argv)
    out: Path = arguments.out
    if out.suffix != ".bin" or not out.parent.is_dir():
        _refuse(f"--out {out}: give a file that ends in .bin, in a folder that exists.")
    encoder: Encoder = ByteEncoder() if arguments.tokenizer == BYTES else LibraryEncoder(arguments.tokenizer)
    try:
        with atomic_writer(out) as stream:
            n_of_texts, token_bytes = write(arguments.texts, encoder, stream)
            if not n_of_texts:
                _refuse("the texts are empty: give some that are not.")
    except UnicodeDecodeError as error:
        _refuse(f"a text is not UTF-8: {error}")
    except OSError as error:
        _refuse(f"{error.filename or out}: {error.strerror or error}")
    n_tokens = n_of_texts + len(arguments.texts) * len(encoder.end)
    print(f"{n_tokens} tokens of {token_bytes} bytes, vocabulary {encoder.vocab_size}: {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
