"""`paceline serve`: the web application."""

import inspect
import socket
import tempfile
import threading
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin

import typer
from typer.models import OptionInfo

from paceline.cli.terminal import Db, errors, flag, output
from paceline.errors import user_can_choose
from paceline.store import DEFAULT_PATH, Store
from paceline.user_input.paths import is_file

if TYPE_CHECKING:
    import uvicorn

    from paceline.web import Option, Site

LOCALHOST = "127.0.0.1"
DEFAULT_PORT = 8337
# For pages that are open when the server ends, and for a running study to be stopped and stored.
LAST_SECONDS = 30


def serve(
    db: Db = DEFAULT_PATH,
    host: Annotated[
        str, typer.Option("--host", help="Address to listen on, such as 0.0.0.0 for other machines too.")
    ] = LOCALHOST,
    port: Annotated[int, typer.Option("--port", help="Port to listen on; 0 takes a free one.", min=0, max=65535)] = (
        DEFAULT_PORT
    ),
    open_it: Annotated[bool, flag("--open", "Open it in the browser.")] = False,
) -> None:
    """The web application: live studies, results, figures, two runs side by side, and a form that starts a study."""
    if is_file(db):
        Store.open_existing(db).close()  # what is no results file is refused before anybody waits for a page
    listening = _listen(host, port)
    server, site = _server(db, any_name=not _is_loopback(listening))
    address = _address(listening, site.token)
    output().print(f"Paceline is at {address}", soft_wrap=True, markup=False)
    errors().print("[dim]the link has a token for your browser; nobody else on this machine gets in without it[/]")
    errors().print("[dim]Ctrl-C ends it; a study that runs is then stopped, and what it finished is kept[/]")
    # People take a moment to follow the link, in which thousands of records can be read.
    threading.Thread(target=site.results.prepare, daemon=True).start()
    with _opened(address, open_it):
        try:
            server.run(sockets=[listening])
        except KeyboardInterrupt:
            errors().print("ended")


@contextmanager
def _opened(address: str, wanted: bool) -> Iterator[None]:
    """Opens the address in the browser where that is wanted, by a file that only its owner can read.

    What programs are started with can be read by every account of the machine; the token must not stand there.
    """
    if not wanted:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="paceline-open-") as folder:
        page = Path(folder) / "paceline.html"
        page.touch(mode=0o600)
        page.write_text(f'<!doctype html><meta http-equiv="refresh" content="0; url={escape(address)}">')
        webbrowser.open(page.as_uri())
        yield


def _server(db: Path, any_name: bool) -> tuple["uvicorn.Server", "Site"]:
    """The server, and its application."""
    import uvicorn

    from paceline.cli.recommend import recommend
    from paceline.cli.run import run
    from paceline.web import Connection, Site, make_app

    site = Site(db, options_of(run), options_of(recommend), any_name=any_name)

    class Server(uvicorn.Server):
        """A server that ends event streams first; it would wait for them otherwise."""

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            site.closing = True
            super().handle_exit(sig, frame)

    # What a stranger sends wrong is no news to the user: of the server itself only errors are printed.
    config = uvicorn.Config(
        make_app(site), http=Connection, ws="none", log_level="error", access_log=False,
        timeout_graceful_shutdown=LAST_SECONDS,
    )  # fmt: skip
    return Server(config), site


def _listen(host: str, port: int) -> socket.socket:
    hint = "with --host, or --port (0 takes a free one)"
    with user_can_choose(f"{host}:{port} cannot be listened on", hint):
        family, kind, number, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family, kind, number)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        # From now on whoever comes waits until the application is there, instead of being refused.
        listening.listen()
    return listening


def _is_loopback(listening: socket.socket) -> bool:
    import ipaddress

    return ipaddress.ip_address(listening.getsockname()[0]).is_loopback


def _address(listening: socket.socket, token: str) -> str:
    host, port = listening.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = socket.gethostname()
    name = f"[{host}]" if ":" in host else host
    return f"http://{name}:{port}/?token={token}"


def options_of(function: Callable[..., Any]) -> tuple["Option", ...]:
    """The options of a command as its help describes them, for the form."""
    from paceline.web import Option

    options = []
    for name, parameter in inspect.signature(function).parameters.items():
        kinds = get_args(parameter.annotation) if get_origin(parameter.annotation) is Annotated else ()
        info = next((part for part in kinds if isinstance(part, OptionInfo)), None)
        if info is None:
            continue
        # Inside Annotated, typer takes the first name as what would otherwise be the default.
        declared = [word for word in (info.default, *(info.param_decls or ())) if isinstance(word, str)]
        options.append(
            Option(
                name=name,
                flag=declared[0] if declared else "--" + name.replace("_", "-"),
                about=info.help or "",
                metavar=info.metavar or "",
                switch=kinds[0] is bool,
                several=get_origin(next(iter(get_args(kinds[0])), None)) is list,
                default="" if parameter.default in (None, False) else str(parameter.default),
            )
        )
    return tuple(options)
