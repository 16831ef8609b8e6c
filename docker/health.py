# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0

"""Whether the server of this container answers on /health; a container without one is healthy."""

from __future__ import annotations

import os
import sys
import tempfile
import urllib.request
from pathlib import Path

_TIMEOUT_S = 4


def main() -> int:
    """Returns 0 when healthy, else 1 with the reason on standard error."""
    # Written by entrypoint.sh.
    port_file = Path(os.environ.get("TMPDIR") or tempfile.gettempdir()) / "trtllm_ext_port"
    if not port_file.is_file():
        return 0
    url = f"http://localhost:{port_file.read_text(encoding='utf-8').strip()}/health"
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S):
            return 0
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{url}: {error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
