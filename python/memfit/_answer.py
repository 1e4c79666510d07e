"""An answer of the program as an object: every key of its JSON is an attribute, print shows what the terminal would."""

from __future__ import annotations

import html
import re
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional

from .errors import Error


def wrap(value: Any) -> Any:
    """Objects inside an answer have attributes too."""
    if isinstance(value, dict):
        return Record(value)
    if isinstance(value, list):
        return [wrap(v) for v in value]
    return value


class Record(Mapping[str, Any]):
    """A JSON object: `r.key` and `r["key"]` are the same. Otherwise it is a mapping like any other."""

    def __init__(self, data: Dict[str, Any]) -> None:
        self._data = data

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return wrap(self._data[name])
        except KeyError:
            raise AttributeError("%s; there are: %s" % (name, ", ".join(sorted(self._data)))) from None

    def __getitem__(self, name: str) -> Any:
        return wrap(self._data[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._data)

    def __len__(self) -> int:
        return len(self._data)

    def __dir__(self) -> List[str]:
        return sorted({*super().__dir__(), *self._data})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Record) and self._data == other._data

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(self._data)

    def to_dict(self) -> Dict[str, Any]:
        """The program's JSON object, unchanged."""
        return self._data


class Answer(Record):
    """A whole answer. It asks the program for its text when it is first shown; a pickled answer takes its text
    along."""

    def __init__(self, data: Dict[str, Any], text: Callable[[], str], page: Optional[str] = None) -> None:
        super().__init__(data)
        self._ask_text: Optional[Callable[[], str]] = text
        self._text: Optional[str] = None
        self._page = page

    def __str__(self) -> str:
        if self._text is None and self._ask_text is not None:
            try:
                self._text = self._ask_text().rstrip("\n")
            except Error as e:  # the file it was about has gone: what was answered stands
                return "%s (its text cannot be had any more: %s)" % (super().__repr__(), e.message)
        return super().__repr__() if self._text is None else self._text

    def __repr__(self) -> str:
        return str(self)

    def __getstate__(self) -> Dict[str, Any]:
        str(self)
        return {**self.__dict__, "_ask_text": None}

    def _repr_html_(self) -> str:
        return fragment(self._page) if self._page else "<pre>%s</pre>" % html.escape(str(self))


def fragment(page: str) -> str:
    """A page of the program as a part of a notebook: its body, with its styles kept inside."""
    style = "".join(re.findall(r"<style>(.*?)</style>", page, re.S))
    body = re.search(r"<body>(.*)</body>", page, re.S)
    style = re.sub(r"(?<![\w.-])(:root|body)(?=\{)", ":scope", style)
    inner = body.group(1) if body else html.escape(page)
    return '<div class="memfit-page"><style>@scope (.memfit-page){%s}</style>%s</div>' % (style, inner)
