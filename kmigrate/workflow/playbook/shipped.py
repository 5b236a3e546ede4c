"""The playbooks that come with kmigrate, each by a short name: `kmigrate/playbooks/NAME.toml`."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import tomli

from kmigrate.errors import UsageError

__all__ = ["read_playbook", "shipped_playbooks", "title_of"]


def shipped_playbooks() -> dict[str, Path]:
    """Return the file of each shipped playbook by its name."""
    folder = Path(str(files("kmigrate").joinpath("playbooks")))
    return {file.stem: file for file in sorted(folder.glob("*.toml"))}


def title_of(file: Path) -> str:
    return str(tomli.loads(file.read_text(encoding="utf-8")).get("title", ""))


def read_playbook(given: str) -> str:
    """Return the text of a file, or of a shipped playbook by its name; a file of that name comes first."""
    file = Path(given)
    if not file.is_file():
        file = shipped_playbooks().get(given, file)
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            "no-playbook",
            f"{given} cannot be read: {getattr(error, 'strerror', None) or 'not UTF-8 text'}",
            still_true="no step was run",
            next_step=f"expected: a file, or a name of kmigrate playbook list: {', '.join(shipped_playbooks())}",
        ) from error
