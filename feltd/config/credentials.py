"""Secrets that a service manager hands to the process: files in $CREDENTIALS_DIRECTORY.

They are there or not, and are read where they lie; nothing here opens them.
"""

import os
from collections.abc import Mapping
from pathlib import Path

#: The signing keys; without this file they lie beside the database.
KEYRING = "signing.keyring"


def credential(name: str, env: Mapping[str, str] = os.environ) -> str | None:
    """The path of a credential that was handed over, None where there is none of this name."""
    folder = env.get("CREDENTIALS_DIRECTORY", "")
    if not folder:
        return None
    path = Path(folder) / name
    return str(path) if path.is_file() else None
