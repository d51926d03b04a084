"""Finds secrets by the names, values and shapes that give them away, and redacts them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

SOUNDS_SECRET = re.compile(r"TOKEN|KEY|SECRET|PASSW|CREDENTIAL|AUTH|COOKIE|JWT", re.IGNORECASE)
"""Part of any name that may hold a secret: what is only kept for the record is redacted if in doubt."""
REDACTED = "(redacted)"

# A whole word of the name, so that TOKENIZERS_PARALLELISM and MAX_TOKENS are none.
_HOLDS_SECRET = re.compile(
    r"(?:^|_)(?:TOKEN|API_?KEY|ACCESS_KEY|SECRET|CREDENTIALS?|COOKIE|JWT|AUTHORIZATION)(?:_|$)"
    r"|(?:PASSWORD|PASSWD|PASSPHRASE)(?:_|$)|(?:_|PG)PASS$|_(?:KEY|PAT)$|_AUTH$|MYSQL_PWD$",
    re.IGNORECASE,
)
_NAMES_FILE = re.compile(r"_(?:FILE|PATH|DIR)$", re.IGNORECASE)
_WORD = re.compile(r"\w+")


def is_secret(name: str) -> bool:
    """True if a variable of this name may hold a secret."""
    return _HOLDS_SECRET.search(name) is not None and not _NAMES_FILE.search(name)


# What begins with $ or ` is read when the line is run, and is not in the text itself.
_LITERAL = re.compile(r"(?<!\w)(\w+)=(?=[\"']?[^\s\"'$`])")
# After an option comes its value; a path there is the name of a file.
_OPTION = re.compile(r"(?<!\S)[\"']?--([\w-]+)(?:=|[\"']?\s+)(?=[\"']?[^\s\"'$`~./-])")


def secrets_in(text: str) -> list[str]:
    """Names of variables and options in shell text, or a command's words, that are given what sounds like a secret.

    Each is named once, an option with its dashes: ``HF_TOKEN`` for ``HF_TOKEN=abc``, ``--token`` for ``--token abc``.
    """
    options = [name for name in _OPTION.findall(text) if is_secret(name.replace("-", "_"))]
    given = [name for name in _LITERAL.findall(text) if is_secret(name) and name not in options]
    return [*given, *(f"--{name}" for name in dict.fromkeys(options))]


class Secret(NamedTuple):
    """A secret in a text: where it stands, and how it is named to people, who must not see it."""

    start: int
    end: int
    shown: str


# Forms that nothing else has: most are of detect-secrets 1.5.0 (Apache-2.0, its plugins), the others of the issuers'
# documentation. The library itself is no dependency: it brings an HTTP client, and does not know Hugging Face.
# Before each form stands a text that is always in it, and is looked for first: that is much faster.
_SHAPES = (
    ("hf_", "a Hugging Face token", r"\bhf_[A-Za-z0-9]{30,}"),
    *((f"gh{kind}_", "a GitHub token", rf"\bgh{kind}_\w{{30,}}") for kind in "pousr"),
    ("github_pat_", "a GitHub token", r"\bgithub_pat_\w{22,}"),
    *((f"gl{kind}-", "a GitLab token", rf"\bgl{kind}-[\w-]{{20,}}") for kind in ("pat", "dt", "ft", "rt", "cbt")),
    *((kind, "an AWS key id", rf"\b{kind}[0-9A-Z]{{16}}\b") for kind in ("AKIA", "ASIA", "ABIA", "ACCA")),
    ("AccountKey=", "an Azure key", r"\bAccountKey=[A-Za-z0-9+/=]{88}"),
    ("AIza", "a Google key", r"\bAIza[\w-]{35}"),
    ("xox", "a Slack token", r"\bxox[a-z]-(?:\w+-)+\w+"),
    ("hooks.slack.com", "a Slack web hook", r"\bhooks\.slack\.com/services/T\w+/B\w+/\w+"),
    ("sk-ant-", "an Anthropic key", r"\bsk-ant-[\w-]{20,}"),
    ("T3BlbkFJ", "an OpenAI key", r"\bsk-[\w-]{0,200}T3BlbkFJ[\w-]{20,}"),
    ("wandb_v1_", "a Weights & Biases key", r"\bwandb_v1_\w{20,}"),
    ("pypi-AgE", "a PyPI token", r"\bpypi-AgE[\w-]{50,}"),
    ("npm_", "an npm token", r"\bnpm_[A-Za-z0-9]{36}"),
    ("k_live_", "a Stripe key", r"\b[rs]k_live_[0-9a-zA-Z]{24}"),
    ("SG.", "a SendGrid key", r"\bSG\.[\w-]{22}\.[\w-]{43}"),
    (".eyJ", "a JSON web token", r"\beyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]*"),
    ("PRIVATE KEY-----", "a private key", r"-----BEGIN [A-Z ]*PRIVATE KEY-----[A-Za-z0-9+/=\s\\]*"),
    ("earer ", "a bearer token", r"(?<=[Bb]earer )[\w.~+/=-]{8,}"),
    ("uthorization: ", "an authorization", r"(?<=[Aa]uthorization: )(?:Basic |token )?[\w.~+/=-]{8,}"),
    ("curl", "a password after curl -u", r"\bcurl\b[^|;&\n]*?\s(?:-u|--user)[\s=]*[\"']?[^\s:\"'$]+:[^\s\"'$`]+"),
    ("://", "a password in an address", r"(?<=://)[^\s/:@\"'<>]*:[^\s/:@\"'<>$`{(][^\s/@\"'<>]*(?=@)"),
)
_SHORTEST = 8
# A single plain word, such as `disabled`, or a path stands in many texts by chance.
_ORDINARY = re.compile(r"[A-Za-z]{1,15}|\d{1,11}|(?:~|\.{1,2})?(?:/[\w.@-]+)+/?")


class SecretFinder:
    """Finds the values of an environment's secret variables, and what has the shape of a known kind of token.

    Args:
        environ: The environment; a variable counts by its name, one with a short or ordinary value not at all.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        """Keep the values."""
        self._values = tuple(
            (value, f"the value of {name}", re.escape(value))
            for name, value in environ.items()
            if is_secret(name) and len(value) >= _SHORTEST and not _ORDINARY.fullmatch(value)
        )

    def find(self, text: str) -> list[Secret]:
        """The secrets in a text, in its order; what overlaps another is one with it."""
        found: list[Secret] = []
        for secret in sorted(
            Secret(*match.span(), shown)
            for hint, shown, shape in (*self._values, *_SHAPES)
            if hint in text
            for match in re.finditer(shape, text)
        ):
            if found and secret.start < found[-1].end:
                found[-1] = found[-1]._replace(end=max(found[-1].end, secret.end))
            else:
                found.append(secret)
        return found

    def redacted(self, text: str) -> str:
        """The text with every secret taken out."""
        for secret in reversed(self.find(text)):
            text = f"{text[: secret.start]}{REDACTED}{text[secret.end :]}"
        return text


_NOTIFY = re.compile(r"\+*notify\b")
_ASSIGNMENT = re.compile(r"^(\+*[\w.@/-]+)=(.+)$", re.DOTALL)


def redacted_text(word: str) -> str:
    """A word of a command line; the value of ``name=value`` is redacted where a name in it sounds like a secret.

    What ``notify`` is set to is always.
    """
    match = _ASSIGNMENT.match(word)
    # Of the user's own command nothing is known: an address may be all that guards a channel.
    is_kept = match is None or not (
        SOUNDS_SECRET.search(match[1])
        or _NOTIFY.match(match[1])
        or is_secret(match[1].replace(".", "_"))
        or any(map(is_secret, _WORD.findall(match[2])))
    )
    if match is None or is_kept:
        return word
    return f"{match[1]}={REDACTED}"
