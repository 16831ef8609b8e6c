# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""A hub on 127.0.0.1: repository info, and files with ranges, redirects, refusals and accidents."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Request:
    """What was asked for and how much of it left this side."""

    path: str
    range: str | None
    token: str | None
    sent: int = 0


@dataclass
class HubStub:
    """State of the server; tests change it between requests.

    Attributes:
        repository: "org/name" of the only repository.
        files: Content of each file: a path on disk, which may be sparse, or bytes.
        revisions: Names of its commit.
        refuse: Status, X-Error-Code and X-Error-Message of every answer, or None.
        refuse_files: The same for files only.
        failures: How many file requests still fail with status 503.
        ranges: Whether Range is obeyed.
        cdn: Where files are redirected to, or None.
        truncate: Answers stop this many bytes before their end.
        content_range: Content-Range that is sent instead of the true one.
        extra_headers: Sent with every file.
        info: Answers for the repository instead of the true one.
        requests: What was asked so far.
    """

    repository: str = "org/name"
    files: dict[str, Path | bytes] = field(default_factory=dict)
    revisions: tuple[str, ...] = ("main", "v1", COMMIT)
    refuse: tuple[int, str, str] | None = None
    refuse_files: tuple[int, str, str] | None = None
    failures: int = 0
    ranges: bool = True
    cdn: str | None = None
    truncate: int = 0
    content_range: str | None = None
    extra_headers: dict[str, str] = field(default_factory=dict)
    info: bytes | None = None
    requests: list[Request] = field(default_factory=list)
    endpoint: str = ""

    def add_folder(self, folder: Path) -> None:
        """Publishes every file of a folder."""
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                self.files[path.relative_to(folder).as_posix()] = path

    def size(self, name: str) -> int:
        content = self.files[name]
        return len(content) if isinstance(content, bytes) else content.stat().st_size

    def chunks(self, name: str, begin: int, end: int) -> Iterator[bytes]:
        content = self.files[name]
        if isinstance(content, bytes):
            yield content[begin:end]
            return
        with content.open("rb") as file:
            file.seek(begin)
            while begin < end:
                data = file.read(min(1 << 16, end - begin))
                begin += len(data)
                yield data

    @property
    def sent(self) -> int:
        """Bytes of file content that were sent so far."""
        return sum(request.sent for request in self.requests)

    def file_requests(self) -> list[Request]:
        return [request for request in self.requests if "/resolve/" in request.path]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: HubStub

    def log_message(self, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        request = Request(self.path, self.headers["Range"], self.headers["Authorization"])
        self.hub.requests.append(request)
        path = unquote(urlsplit(self.path).path)
        if self.hub.refuse is not None:
            self._refuse(*self.hub.refuse)
        elif path.startswith("/api/models/"):
            self._info(path.removeprefix("/api/models/"))
        elif "/resolve/" in path:
            self._file(request, path)
        else:
            self._refuse(404, "", "no such page")

    def _refuse(self, status: int, code: str, message: str) -> None:
        self._start(status, {"X-Error-Code": code, "X-Error-Message": message}, 0)

    def _start(self, status: int, headers: dict[str, str], length: int) -> None:
        self.send_response(status)
        for key, value in headers.items():
            if value:
                self.send_header(key, value)
        self.send_header("Content-Length", str(length))
        self.end_headers()

    def _info(self, path: str) -> None:
        repository, _, revision = path.partition("/revision/")
        if repository != self.hub.repository:
            return self._refuse(401, "RepoNotFound", "Repository not found")
        if revision and revision not in self.hub.revisions:
            return self._refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        siblings = [{"rfilename": n, "size": self.hub.size(n)} for n in self.hub.files]
        info = {"id": repository, "sha": COMMIT, "siblings": siblings, "tags": []}
        body = json.dumps(info).encode() if self.hub.info is None else self.hub.info
        self._start(200, {"Content-Type": "application/json"}, len(body))
        self.wfile.write(body)
        return None

    def _file(self, request: Request, path: str) -> None:
        hub = self.hub
        name = path.partition("/resolve/")[2].partition("/")[2]
        if hub.refuse_files is not None:
            return self._refuse(*hub.refuse_files)
        if hub.failures:
            hub.failures -= 1
            return self._refuse(503, "", "busy")
        if hub.cdn is not None:
            return self._start(302, {"Location": hub.cdn + path}, 0)
        if name not in hub.files:
            return self._refuse(404, "EntryNotFound", "Entry not found")
        size = hub.size(name)
        begin, end, status = 0, size, 200
        headers = dict(hub.extra_headers)
        if hub.ranges and request.range:
            first, _, last = request.range.removeprefix("bytes=").partition("-")
            begin, end, status = int(first), min(int(last) + 1, size), 206
            headers["Content-Range"] = hub.content_range or f"bytes {begin}-{end - 1}/{size}"
        self._start(status, headers, end - begin)
        try:
            for chunk in hub.chunks(name, begin, end - hub.truncate):
                # Counted first: the client may have it, and ask, before write returns.
                request.sent += len(chunk)
                self.wfile.write(chunk)
        except OSError:  # the client had enough
            pass
        if hub.truncate:
            self.close_connection = True
        return None


@contextmanager
def serve(hub: HubStub) -> Iterator[HubStub]:
    """Runs the server in threads until the block ends; `hub.endpoint` is its address."""
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    hub.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
