"""``python -m trainer.tokenize``: makes a token file from text, by a public tokenizer or byte by byte."""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, NoReturn

import numpy as np

from sweep.files import atomic_writer
from trainer.data.tokens_file import DTYPES, HEADER, header

BYTES = "bytes"
# Characters that are encoded at a time, up to the end of their line: memory never holds the whole text.
_PIECE = 1 << 20
# Names of the end-of-text token in public tokenizers.
_END_OF_TEXT = ("</s>", "<|endoftext|>", "<|end_of_text|>", "<eos>", "[SEP]")
_DESCRIPTION = """\
Writes the tokens of all texts, one after the other, into a file for trainer.data=FILE. Each text ends with the
tokenizer's end-of-text token, where it has one. The file is there when it is complete.
"""


class ByteEncoder:
    """Encodes each byte of UTF-8 as a token, and the end of a text as token 256; needs no library."""

    vocab_size = 257
    end = (256,)

    def encode(self, text: str) -> Sequence[int]:
        """The bytes of a text."""
        return text.encode()


class LibraryEncoder:
    """A tokenizer of the `tokenizers` library: a file in its format, or a name on the model hub."""

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
        # Not the number of entries: token numbers may have gaps.
        self.vocab_size = 1 + max(made.get_vocab(with_added_tokens=True).values())
        known = (made.token_to_id(name) for name in _END_OF_TEXT)
        self.end = [token for token in known if token is not None][:1]

    def encode(self, text: str) -> Sequence[int]:
        """Encode a text, without the special tokens that a tokenizer adds around a prompt."""
        found: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return found


Encoder = ByteEncoder | LibraryEncoder


def _refuse(reason: str) -> NoReturn:
    print(f"tokenize: {' '.join(reason.split())}", file=sys.stderr)
    raise SystemExit(2)


def _pieces(path: Path) -> Iterator[str]:
    """Read a text in pieces that end with a line, unless the line is longer than a piece."""
    with path.open(encoding="utf-8") as stream:
        while piece := stream.read(_PIECE):
            yield piece + stream.readline(_PIECE)


def write(texts: Sequence[Path], encoder: Encoder, stream: IO[bytes]) -> tuple[int, int]:
    """Write a token file; return the number of tokens (without those that end a text) and the bytes of a token."""
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
    """Build the argument parser."""
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
    """Make the file; return exit code 0, or 2 on failure."""
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
