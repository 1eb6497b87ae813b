"""Fetches one file from the first mirror that serves it: checked, resumable, and never half-written under its name."""

import hashlib
import urllib.error
import urllib.request
from http.client import HTTPException
from pathlib import Path

from paceline.data.base import FetchProgress

CHUNK_BYTES = 1 << 16
PATIENCE_SECONDS = 20.0
HTTP_PARTIAL_CONTENT = 206
HTTP_RANGE_NOT_SATISFIABLE = 416


def fetch(name: str, mirrors: tuple[str, ...], folder: Path, md5: str, progress: FetchProgress) -> Path:
    """The file in `folder`; raises `OSError` with every mirror's answer when none served it whole."""
    target, part = folder / name, folder / (name + ".part")
    if target.is_file() and _md5(target) == md5:
        return target
    answers = []
    for mirror in mirrors:
        try:
            _continue_download(mirror + name, part, progress)
        except (OSError, HTTPException) as error:
            answers.append(f"{mirror}: {getattr(error, 'reason', error)}")
            continue
        if _md5(part) == md5:
            part.replace(target)
            return target
        part.unlink()
        answers.append(f"{mirror}: sent a file whose MD5 is not {md5}")
    raise OSError("; ".join(answers))


def _continue_download(url: str, part: Path, progress: FetchProgress) -> None:
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        reply = urllib.request.urlopen(request, timeout=PATIENCE_SECONDS)
    except urllib.error.HTTPError as error:
        if error.code == HTTP_RANGE_NOT_SATISFIABLE:
            return  # nothing is left to send: the part is whole, or its checksum will say otherwise
        raise
    with reply:
        resumed = reply.status == HTTP_PARTIAL_CONTENT
        done = have if resumed else 0
        total = done + int(reply.headers.get("Content-Length", 0))
        with part.open("ab" if resumed else "wb") as file:
            while chunk := reply.read(CHUNK_BYTES):
                file.write(chunk)
                done += len(chunk)
                progress(part.name.removesuffix(".part"), done, total)
    if total and done < total:
        raise OSError(f"the connection ended after {done} of {total} bytes")


def _md5(path: Path) -> str:
    return hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()
