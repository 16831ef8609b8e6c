# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""A repository of the hub, read by range requests; nothing is downloaded as a whole or cached.

`huggingface_hub` knows the endpoint, the token, the proxies and the offline switch, and is asked
for each of them. It has changed its HTTP library twice, so what differs between requests and httpx
is kept in `_answer`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from tensorrt_llm_ext.checkpoints.store import check_range, is_plain_name, shorten
from tensorrt_llm_ext.errors import CheckpointError

MAX_READ_BYTES: Final = 64 << 20  # of one call; no header, index or sample of rows is larger
_MAX_SKIPPED_BYTES: Final = 4 << 20  # what is thrown away when a server ignores Range
_CHUNK: Final = 1 << 16
_MAX_SECONDS: Final = 300.0  # of one request, however slowly it drips
_TRIES: Final = 3
_TRANSIENT: Final = (408, 429, 500, 502, 503, 504)
_INSTALL: Final = "`pip install huggingface_hub`"


class _Answer(NamedTuple):
    """One HTTP answer whose body has not been read."""

    status: int
    headers: Mapping[str, str]
    chunks: Iterator[bytes]


class _RetryError(Exception):
    """A request that may succeed when it is sent again."""


class HubStore:
    """A model repository of the hub; every read is one range request for one commit.

    Args:
        repository: "org/name".
        revision: Branch, tag or commit; the default branch when None.
        endpoint: The hub; what HF_ENDPOINT names when None.
        timeout: Seconds without a byte after which a request has failed.
        retry_wait: Seconds before a failed request is sent again; doubles each time.

    Raises:
        CheckpointError: If the repository cannot be listed; the message says what to do.
    """

    folder = None

    def __init__(
        self,
        repository: str,
        *,
        revision: str | None = None,
        endpoint: str | None = None,
        timeout: float = 10.0,
        retry_wait: float = 0.5,
    ) -> None:
        self.repository = repository
        self.label: str = f"{repository}@{revision or 'main'}"
        self._endpoint = endpoint
        self._timeout = timeout
        self._retry_wait = retry_wait
        # Tried once: a machine without network should say so at once.
        info = self._retried(lambda: self._info(revision), tries=1)
        # The commit, so that a push between two reads cannot mix two versions.
        self.commit: str = str(info.sha or revision or "main")
        self._sizes: dict[str, int | None] = {
            str(file.rfilename): file.size if isinstance(file.size, int) else None
            for file in info.siblings or ()
        }

    def __repr__(self) -> str:
        return f"HubStore({self.label!r})"

    def names(self) -> tuple[str, ...]:
        """Every file as a posix path relative to the root, sorted."""
        return tuple(sorted(self._sizes))

    def size(self, name: str) -> int:
        """Size of a file in bytes; CheckpointError when the repository has none of this name."""
        if not all(map(is_plain_name, name.split("/"))):
            raise CheckpointError(f"{shorten(name)} is not a plain file name inside {self.label}.")
        if name not in self._sizes:
            raise CheckpointError(f"{self.label} has no file {name!r}. Is the upload complete?")
        size = self._sizes[name]
        if size is None:
            raise CheckpointError(
                f"The hub does not tell the size of {self.label}/{name}. {self._download_hint()}"
            )
        return size

    def read(self, name: str, begin: int, end: int) -> bytes:
        """Exactly the bytes [begin, end) of a file, by one range request.

        Raises:
            CheckpointError: If the file is absent or shorter, more than `MAX_READ_BYTES` are asked
                for, the server cannot send a part of a file, or does not answer.
        """
        check_range(f"{self.label}/{name}", begin, end, self.size(name))
        if end - begin > MAX_READ_BYTES:
            raise CheckpointError(
                f"{end - begin} bytes of {self.label}/{name} are needed, and at most "
                f"{MAX_READ_BYTES} are read over the network. {self._download_hint()}"
            )
        if begin == end:
            return b""
        data: bytes = self._retried(lambda: self._range(name, begin, end))
        return data

    def _info(self, revision: str | None) -> Any:
        hub = _hub()
        try:
            return hub.HfApi(endpoint=self._endpoint).model_info(
                self.repository, revision=revision, files_metadata=True, timeout=self._timeout
            )
        except hub.errors.HFValidationError as error:
            raise CheckpointError(
                f"{self.repository!r} is no name of a repository ({error})."
            ) from None
        except (AttributeError, KeyError, TypeError, RecursionError, json.JSONDecodeError) as error:
            raise CheckpointError(
                f"What answers for {self.label} is no hub ({type(error).__name__}: {error}). Check "
                f"HF_ENDPOINT and the proxies. {self._download_hint()}"
            ) from None

    def _range(self, name: str, begin: int, end: int) -> bytes:
        hub = _hub()
        url = hub.hf_hub_url(self.repository, name, revision=self.commit, endpoint=self._endpoint)
        headers = {
            **hub.utils.build_hf_headers(library_name="tensorrt_llm_ext"),
            "Range": f"bytes={begin}-{end - 1}",
            "Accept-Encoding": "identity",  # ranges count the file's own bytes
        }
        with _answer(url, headers, self._timeout) as answer:
            self._check_status(answer.status, answer.headers)
            skipped = self._skipped(answer, name, begin)
            return self._body(answer, name, skipped, end - begin)

    def _skipped(self, answer: _Answer, name: str, begin: int) -> int:
        """Bytes of the answer that lie before the range."""
        if answer.headers.get("content-encoding", "identity") != "identity":
            raise CheckpointError(
                f"The server sends {self.label}/{name} compressed although it was told not to, so "
                f"no part of it can be located. {self._download_hint()}"
            )
        if answer.status == 206:
            sent = answer.headers.get("content-range", "")
            if not sent.startswith(f"bytes {begin}-"):
                raise CheckpointError(
                    f"The server sends {sent[:80]!r} of {self.label}/{name} when asked for bytes "
                    f"from {begin} on. {self._download_hint()}"
                )
            return 0
        if begin > _MAX_SKIPPED_BYTES:
            raise CheckpointError(
                f"The server ignores range requests: it sends {self.label}/{name} from the start "
                f"when asked for bytes from {begin} on. {self._download_hint()}"
            )
        return begin

    def _body(self, answer: _Answer, name: str, skipped: int, size: int) -> bytes:
        """Reads the range and not one chunk more; closing the answer cuts the rest off."""
        deadline = time.monotonic() + _MAX_SECONDS
        data = bytearray()
        for chunk in answer.chunks:
            drop = min(skipped, len(chunk))
            skipped -= drop
            data += chunk[drop : drop + size - len(data)]
            if len(data) == size:
                return bytes(data)
            if time.monotonic() > deadline:
                raise CheckpointError(
                    f"{self.label}/{name}: only {len(data)} of {size} bytes came within "
                    f"{_MAX_SECONDS:.0f} s. {self._download_hint()}"
                )
        raise _RetryError(f"the answer ended after {len(data)} of {size} bytes")

    def _retried(self, request: Callable[[], Any], *, tries: int = _TRIES) -> Any:
        """Sends a request, again if that may help; what goes wrong becomes a CheckpointError."""
        errors = _hub().errors
        no_answer: tuple[type[Exception], ...] = (
            _RetryError,
            OSError,
            *_transport_errors(errors.HfHubHTTPError),
        )
        problem = ""
        for attempt in range(tries):
            if attempt:
                time.sleep(self._retry_wait * 2 ** (attempt - 1))
            try:
                return request()
            except errors.OfflineModeIsEnabled:
                raise CheckpointError(
                    f"{self.label} is on the hub, and HF_HUB_OFFLINE forbids to ask it. Unset "
                    f"HF_HUB_OFFLINE. {self._download_hint()}"
                ) from None
            except errors.HfHubHTTPError as error:
                problem = self._refusal(error)
            except no_answer as error:
                problem = f"{type(error).__name__}: {error}"
        raise CheckpointError(
            f"The hub does not answer for {self.label} ({problem[:300]}). Check the network and "
            f"HF_ENDPOINT, and try again. {self._download_hint()}"
        )

    def _refusal(self, error: Any) -> str:
        """Describes an error status that may pass; raises CheckpointError for one that will not."""
        if error.response is not None:
            try:
                self._check_status(error.response.status_code, error.response.headers)
            except _RetryError as temporary:
                return str(temporary)
        return str(error)

    def _check_status(self, status: int, headers: Mapping[str, str]) -> None:
        """Raises CheckpointError for a lasting refusal, _RetryError for one that may pass."""
        if status in (200, 206):
            return
        if status in _TRANSIENT:
            raise _RetryError(f"status {status}")
        code = headers.get("x-error-code") or headers.get("X-Error-Code") or ""
        if code == "GatedRepo":
            raise CheckpointError(
                f"{self.label} is gated. Accept its terms on the hub with your account, then run "
                "`hf auth login` here."
            )
        if code == "RevisionNotFound":
            raise CheckpointError(f"{self.label}: the repository has no such revision.")
        if code == "EntryNotFound":
            raise CheckpointError(f"{self.label}: a listed file is gone. Try again.")
        if code == "RepoNotFound" or status in (401, 404):
            raise CheckpointError(
                f"{self.label} does not exist on the hub, or is private. Check the name; for a "
                f"private repository run `hf auth login`. {self._download_hint()}"
            )
        if status == 403:
            raise CheckpointError(
                f"The hub refuses {self.label} (status 403). Run `hf auth login` with a token that "
                "may read this repository."
            )
        if status == 416:
            raise CheckpointError(f"{self.label}: a file is shorter than the hub says. Try again.")
        raise CheckpointError(
            f"The hub answers status {status} for {self.label}. {self._download_hint()}"
        )

    def _download_hint(self) -> str:
        return (
            f"A copy works as well: `hf download {self.repository} --local-dir <folder>`, then "
            "give the folder."
        )


def _hub() -> Any:
    try:
        import huggingface_hub
        import huggingface_hub.errors
        import huggingface_hub.utils
    except ImportError as error:
        raise CheckpointError(
            f"Reading from the hub needs huggingface_hub ({error}). Install it ({_INSTALL}), or "
            "give a folder."
        ) from None
    return huggingface_hub


def _transport_errors(error: type) -> tuple[type[Exception], ...]:
    """What the HTTP library behind `huggingface_hub` raises when there is no answer."""
    found: list[type[Exception]] = []
    for base in error.__mro__:
        library = base.__module__.split(".")[0]
        if library in ("requests", "httpx", "httpx2"):
            found += [base, getattr(sys.modules[library], "InvalidURL", base)]
    return tuple(found)


@contextmanager
def _answer(url: str, headers: Mapping[str, str], timeout: float) -> Iterator[_Answer]:
    """Sends a GET and yields its answer before the body; redirects keep Range and drop the token.

    Both libraries drop Authorization when a redirect leads to another host, as those to the CDN do.
    """
    session = _hub().utils.get_session()
    if callable(getattr(session, "stream", None)):  # httpx
        with session.stream(
            "GET", url, headers=headers, timeout=timeout, follow_redirects=True
        ) as response:
            yield _Answer(response.status_code, response.headers, response.iter_raw(_CHUNK))
    else:  # requests
        with session.get(url, headers=headers, timeout=timeout, stream=True) as response:
            yield _Answer(response.status_code, response.headers, response.iter_content(_CHUNK))
