"""Tells by its name what holds a secret, and redacts it."""

from __future__ import annotations

import re

SOUNDS_SECRET = re.compile(r"TOKEN|KEY|SECRET|PASSW|CREDENTIAL|AUTH|COOKIE|JWT", re.IGNORECASE)
"""Part of any name that may hold a secret: what is only kept for the record is redacted if in doubt."""
REDACTED = "(redacted)"

# A whole word of the name, so that TOKENIZERS_PARALLELISM and MAX_TOKENS are none.
_HOLDS_SECRET = re.compile(
    r"(?:^|_)(?:TOKEN|API_?KEY|ACCESS_KEY|SECRET|CREDENTIALS?|COOKIE|JWT|AUTHORIZATION)(?:_|$)"
    r"|(?:PASSWORD|PASSWD|PASSPHRASE)(?:_|$)|(?:_|PG)PASS$|_KEY$",
    re.IGNORECASE,
)
_NAMES_FILE = re.compile(r"_(?:FILE|PATH|DIR)$", re.IGNORECASE)
_WORD = re.compile(r"\w+")


def is_secret(name: str) -> bool:
    """True if a variable of this name may hold a secret."""
    return _HOLDS_SECRET.search(name) is not None and not _NAMES_FILE.search(name)


# What begins with $ or ` is read when the line is run, and is not in the text itself.
_LITERAL = re.compile(r"(?<!\w)(\w+)=(?=[\"']?[^\s\"'$`])")


def secrets_in(text: str) -> list[str]:
    """Names of variables in shell text, or a command's words, that are given what sounds like a secret as it is."""
    return [name for name in _LITERAL.findall(text) if is_secret(name)]


_NOTIFY = re.compile(r"\+*notify\b")
_ASSIGNMENT = re.compile(r"^(\+*[\w.@/-]+)=(.+)$", re.DOTALL)


def redacted_text(word: str) -> str:
    """A word of a command line; the value of ``name=value`` is redacted where a name in it sounds like a secret.

    What ``notify`` is set to is always.
    """
    match = _ASSIGNMENT.match(word)
    # Of the user's own command nothing is known: an address may be all that guards a channel.
    is_kept = match is None or not (
        SOUNDS_SECRET.search(match[1]) or _NOTIFY.match(match[1]) or any(map(is_secret, _WORD.findall(match[2])))
    )
    if match is None or is_kept:
        return word
    return f"{match[1]}={REDACTED}"
