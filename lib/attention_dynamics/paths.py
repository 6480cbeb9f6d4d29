"""Where things lie in a checkout of the project, and writing them whole."""

import os
from pathlib import Path


def root() -> Path:
    """The project's top folder. Raises FileNotFoundError if the library is installed apart from its checkout."""
    top = Path(__file__).resolve().parents[2]
    if not (top / "notebooks").is_dir():
        raise FileNotFoundError(f"no notebooks/ in {top}: install the library from a checkout with 'pip install -e .'")
    return top


def notebooks() -> Path:
    """The folder of the paired notebooks."""
    return root() / "notebooks"


def figures() -> Path:
    """The folder of the figures, their data and the ledger."""
    return root() / "figures"


def write_whole(path: Path, content: bytes) -> None:
    """Write aside, then rename: a reader finds the old file or the new one, never a part."""
    aside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        aside.write_bytes(content)
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)
