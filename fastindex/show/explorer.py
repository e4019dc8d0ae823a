"""The live page for typed shapes: a small server on the loopback address, whose work per request is bounded.

A page of another site can make a browser send requests here (cross-site requests), or resolve its own name to the
loopback address (DNS rebinding). So the ``Host`` of every request must be the loopback address, and its ``Origin``, if
any, this server.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from fastindex.core.shape import Shape
from fastindex.errors import FastIndexError, ParseError, UnsupportedError
from fastindex.show.padding import cheapest_change
from fastindex.show.page import page_of
from fastindex.show.sentences import info
from fastindex.show.tpu_layouts import suggest_tiles

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp, Receive, Scope, Send

#: Length limit; no user types a longer shape.
MOST_CHARACTERS = 2000
#: Advice tries orders of the dimensions, and pictures nest one box per dimension.
MOST_DIMENSIONS = 12
#: The work per request grows with each tile.
MOST_TILES = 8


def read_shape(text: str) -> Shape:
    """Parse the typed shape, within the limits of a request.

    Raises
    ------
    FastIndexError
        The text is not an array shape, or exceeds a limit.

    Examples
    --------
    >>> str(read_shape("f32[3, 5]"))
    'f32[3,5]{1,0}'
    """
    if len(text) > MOST_CHARACTERS:
        raise FastIndexError(f"the text has {len(text)} characters; this page takes at most {MOST_CHARACTERS}")
    shape = Shape.parse(text)
    if not shape.is_array:
        raise FastIndexError(f"{shape.cut_text()} is a {shape.element_type}; type one of its arrays")
    if shape.rank > MOST_DIMENSIONS or len(shape.layout.tiles) > MOST_TILES:
        raise FastIndexError(
            f"{shape.cut_text()} has {shape.rank} dimensions and {len(shape.layout.tiles)} tiles; "
            f"this page takes at most {MOST_DIMENSIONS} and {MOST_TILES}"
        )
    return shape


@lru_cache(maxsize=64)
def description(source: str, destination: str) -> dict[str, Any]:
    """Return the text around the picture, as JSON-compatible data.

    Parameters
    ----------
    source : str
        The typed shape.
    destination : str
        The typed destination shape; empty for none.

    Returns
    -------
    dict
        ``text`` and ``numbers`` of the shape, its ``change`` and ``suggestion``; or the ``error``, the ``field`` it is
        in and, for a syntax error, its ``position``.

    Examples
    --------
    >>> description("f32[3,5]{1,0:T(2,2)}", "")["numbers"]["slot_count"]
    24
    >>> description("f32[3,", "")["position"]
    6
    """
    try:
        shape = read_shape(source)
        numbers = info(shape)
        change = cheapest_change(shape)
        suggestion = _suggestion(shape)
    except FastIndexError as error:
        return _wrong(error, "shape")
    try:
        other = read_shape(destination) if destination else None
        page_of(shape, other)
    except FastIndexError as error:
        return _wrong(error, "to")
    return {
        "text": str(shape),
        "to": "" if other is None else str(other),
        "numbers": numbers,
        "change": None
        if change is None
        else {"description": change.description, "shape": str(change.shape), "saved_nbytes": change.saved_nbytes},
        "suggestion": suggestion,
    }


def _suggestion(shape: Shape) -> str:
    try:
        return str(suggest_tiles(shape))
    except UnsupportedError as error:
        # The page still shows the other numbers of such an array.
        return str(error)


def _wrong(error: FastIndexError, field: str) -> dict[str, Any]:
    if isinstance(error, ParseError):
        return {"error": error.rule, "hint": error.hint, "position": error.position, "field": field}
    return {"error": str(error), "field": field}


#: Host names of this machine that a browser may use.
LOCAL_NAMES = ("127.0.0.1", "localhost", "[::1]")

#: The pages run inline scripts and load no external resources; other sites may not frame them.
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "connect-src 'self'; frame-src 'self'; frame-ancestors 'self'; base-uri 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
#: Both texts with every byte percent-encoded.
_MOST_QUERY_BYTES = 6 * MOST_CHARACTERS + 100


class LocalOnly:
    """Middleware that rejects requests from pages of other servers, or with another host name."""

    def __init__(self, app: ASGIApp, port: int) -> None:
        self._app = app
        self._hosts = {f"{name}:{port}" for name in LOCAL_NAMES}
        self._origins = {f"http://{host}" for host in self._hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a request, or answer 403, or 414 if the query is too long."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name.lower(): value.decode("latin-1") for name, value in scope["headers"]}
        host, origin = headers.get(b"host", ""), headers.get(b"origin")
        # A sandboxed page has the origin "null", which is rejected; it has no need to send requests.
        if host not in self._hosts or (origin is not None and origin not in self._origins):
            await _refusal("This page is for the machine it runs on.", 403)(scope, receive, send)
            return
        if len(scope["query_string"]) > _MOST_QUERY_BYTES:
            await _refusal("The text is too long.", 414)(scope, receive, send)
            return
        await self._app(scope, receive, send)


def _refusal(text: str, status: int) -> ASGIApp:
    from starlette.responses import PlainTextResponse

    return PlainTextResponse(text, status)


def application(port: int) -> ASGIApp:
    """Return the web application for a port of the loopback address.

    Parameters
    ----------
    port : int
        The port that the ``Host`` of requests must have.

    Raises
    ------
    ImportError
        Starlette is not installed; it is part of the extra ``explore``.
    """
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
    from starlette.routing import Route

    explorer = resources.files("fastindex.show").joinpath("explorer.html").read_text(encoding="utf-8")

    async def front(request: Request) -> Response:
        return HTMLResponse(explorer, headers=_HEADERS)

    async def describe(request: Request) -> Response:
        source, destination = _typed(request)
        return JSONResponse(await run_in_threadpool(description, source, destination), headers=_HEADERS)

    async def page(request: Request) -> Response:
        try:
            document = await run_in_threadpool(_page, *_typed(request))
        except FastIndexError as error:
            return PlainTextResponse(str(error), 400, _HEADERS)
        return HTMLResponse(document, headers=_HEADERS)

    routes = [Route("/", front), Route("/describe", describe), Route("/page", page)]
    return LocalOnly(Starlette(routes=routes), port)


def _typed(request: Request) -> tuple[str, str]:
    return request.query_params.get("shape", "").strip(), request.query_params.get("to", "").strip()


def _page(source: str, destination: str) -> str:
    return page_of(read_shape(source), read_shape(destination) if destination else None)


# Connections: idle ones must never block a browser's request.

#: Maximum number of open connections; above it, uvicorn answers 503.
MOST_CONNECTIONS = 32
#: How long a connection may be open without a complete request.
_IDLE_SECONDS = 10.0


def _bounded_protocol() -> type:
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class BoundedProtocol(H11Protocol):  # type: ignore[misc]
        """HTTP protocol that closes a connection if it sends no request in time, or if there are too many."""

        def connection_made(self, transport: Any) -> None:
            """Accept a connection, and close the oldest idle ones above the limit."""
            super().connection_made(transport)
            self._since = self.loop.time()
            self._timer = self.loop.call_later(_IDLE_SECONDS, self._close_if_idle)
            idle = sorted(
                (one for one in self.connections if one.is_idle and one is not self), key=lambda one: one._since
            )
            for one in idle[: max(len(self.connections) - MOST_CONNECTIONS + 1, 0)]:
                # Discarded now, because the event loop reports the close only later.
                self.connections.discard(one)
                one.transport.close()

        def connection_lost(self, exc: Exception | None) -> None:
            """Cancel the idle timer."""
            self._timer.cancel()
            super().connection_lost(exc)

        def on_response_complete(self) -> None:
            """Restart the idle time."""
            self._since = self.loop.time()
            super().on_response_complete()

        @property
        def is_idle(self) -> bool:
            """Whether no request is in progress."""
            return self.cycle is None or bool(self.cycle.response_complete)

        def _close_if_idle(self) -> None:
            left = self._since + _IDLE_SECONDS - self.loop.time()
            if self.is_idle and left <= 0:
                self.transport.close()
                return
            self._timer = self.loop.call_later(left if left > 0 else _IDLE_SECONDS, self._close_if_idle)

    return BoundedProtocol


def serve(port: int, announce: Callable[[str], Any]) -> None:
    """Serve until interrupted.

    Parameters
    ----------
    port : int
        0 for any free port.
    announce : callable
        Called with the URL once the port is bound.

    Raises
    ------
    OSError
        The port is in use.
    """
    import socket

    import uvicorn

    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind(("127.0.0.1", port))
        except OSError as error:
            raise OSError(error.errno, error.strerror, f"port {port}") from None
        listening.listen()
        taken = listening.getsockname()[1]
        config = uvicorn.Config(
            application(taken),
            http=_bounded_protocol(),
            log_level="warning",
            lifespan="off",
            limit_concurrency=MOST_CONNECTIONS,
        )
        announce(f"http://127.0.0.1:{taken}/")
        uvicorn.Server(config).run(sockets=[listening])
