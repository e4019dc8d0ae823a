"""Names of tensors as rules write them: patterns as of shells, with captures such as ``{i}``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import translate
from functools import lru_cache

_TOKEN = re.compile(r"\{([A-Za-z_]\w*)\}|(\*)|(\?)|(\[!?\]?[^]]*\])")
_CAPTURE = re.compile(r"\{([A-Za-z_]\w*)\}")
#: The longest name that a pattern with several captures matches: trying them takes time by the square and more.
_MOST_CAPTURED = 1000
#: What captures call the text that the first ``*`` stands for.
STAR = "*"


def captured(pattern: str, name: str) -> dict[str, str] | None:
    """Return what the captures of a pattern stand for in a name, and its ``*`` if there is one; None without a match.

    Examples
    --------
    >>> captured("layers.{i}.experts.*.w", "layers.3.experts.12.w")
    {'i': '3', '*': '12'}
    >>> captured("*.[qk]", "a.v") is None
    True
    """
    count = len(_CAPTURE.findall(pattern)) + pattern.count("*")
    if count > 1 and not captures_of(pattern):
        return None if re.fullmatch(translate(pattern), name) is None else {}
    if count > 1 and len(name) > _MOST_CAPTURED:
        return None
    found = _compiled(pattern).fullmatch(name)
    return None if found is None else {STAR if key == "_star" else key: text for key, text in found.groupdict().items()}


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> re.Pattern[str]:
    made, at, known = "", 0, set[str]()
    for token in _TOKEN.finditer(pattern):
        made += re.escape(pattern[at : token.start()])
        at = token.end()
        capture, star, one, _ = token.groups()
        if capture or (star and "_star" not in known):
            key = capture or "_star"
            made += f"(?P={key})" if key in known else f"(?P<{key}>{'.+' if capture else '.*'})"
            known.add(key)
        else:
            made += (
                ".*"
                if star
                else "."
                if one
                else f"(?:{translate(token.group())})".replace(r"\Z", "").replace(r"\z", "")
            )
    return re.compile(made + re.escape(pattern[at:]), re.DOTALL)


def is_of_one_star(pattern: str) -> bool:
    """Whether a pattern has one ``*``, and no other wildcard."""
    return [token.group() for token in _TOKEN.finditer(pattern) if not token[1]] == ["*"]


def captures_of(text: str) -> set[str]:
    """Return the captures that a text has.

    Examples
    --------
    >>> sorted(captures_of("layers.{i}.{x}.weight"))
    ['i', 'x']
    """
    return set(_CAPTURE.findall(text))


def filled(text: str, captures: Mapping[str, str]) -> str:
    """Return a text with what its captures stand for.

    Examples
    --------
    >>> filled("model.{i}.w", {"i": "3"})
    'model.3.w'
    """
    return _CAPTURE.sub(lambda token: captures[token[1]], text)
