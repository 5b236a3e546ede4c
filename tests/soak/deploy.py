"""The files of deploy/ under the tools that will read them: each file is accepted, and each alert rule fires.

    python -m tests.soak.deploy [--only alerts,units]

| check | tool |
|---|---|
| alerts | promtool: the rules, the example configuration, and alerts.test.yml, which fires each rule |
| dashboard | Grafana's SDK reads the dashboard and writes the same dashboard |
| manifests | kubectl kustomize, then Kubernetes' JSON schemas of three versions, with no unknown field |
| units | systemd-analyze verify, and the exposure level of systemd-analyze security |
| dockerfile | BuildKit's parser, and no word that the parser does not know |
| image | the build steps of the Dockerfile in a folder: wheel, download, hashes, installation, first call |

Tools of Python come into a virtual environment of their own. promtool is the one of the PATH, else of Debian's package
`prometheus`, unpacked into build/. A missing tool is a failed check. The soak writes build/soak/deploy.json; its exit
code is 1 if a check failed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.figures import save

__all__ = ["CHECKS"]

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
TOOLS = ROOT / "build" / "deploy-tools"
_PACKAGES = ("kubernetes-validate==1.37.0", "grafana-foundation-sdk==1769699998!10.1.0", "dockerfile==3.4.0")
_KUBERNETES = ("1.28.0", "1.32.0", "1.37.0")
_MOST_EXPOSED = 2.0
"""Highest exposure level of a unit: systemd calls 10 unsafe, and 2.0 and less fine."""
_INSTRUCTIONS = {
    "ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "HEALTHCHECK", "RUN", "STOPSIGNAL", "USER", "WORKDIR",
}  # fmt: skip


class Failed(Exception):
    """A tool did not accept a file, or is missing."""


def _run(*command: str | Path, environment: Mapping[str, str] | None = None) -> str:
    """Run a tool; return stdout and stderr, or raise Failed with both."""
    try:
        done = subprocess.run(
            [str(word) for word in command],
            capture_output=True,
            text=True,
            check=False,
            cwd=ROOT,
            env={**os.environ, **(environment or {})},
        )
    except FileNotFoundError as error:
        raise Failed(f"{command[0]} is not on the PATH") from error
    output = done.stdout + done.stderr
    if done.returncode:
        raise Failed(f"{' '.join(map(str, command))}: exit code {done.returncode}\n{output}")
    return output


def _python() -> Path:
    """Return the interpreter of the environment with the tools that are packages of Python."""
    python = TOOLS / "venv" / "bin" / "python"
    if not python.exists():
        _run(sys.executable, "-m", "venv", TOOLS / "venv")
    _run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *_PACKAGES)
    return python


def _promtool() -> Path:
    found = shutil.which("promtool")
    if found:
        return Path(found)
    unpacked = TOOLS / "prometheus"
    if not unpacked.exists():
        unpacked.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as folder:
            try:
                subprocess.run(["apt-get", "download", "prometheus"], cwd=folder, check=True, capture_output=True)
            except (OSError, subprocess.CalledProcessError) as error:
                raise Failed(f"install promtool, of Prometheus: {error}") from error
            _run("dpkg-deb", "--extract", next(Path(folder).glob("*.deb")), unpacked)
    return unpacked / "usr" / "bin" / "promtool"


def alerts() -> str:
    promtool, folder = _promtool(), DEPLOY / "prometheus"
    checked = _run(promtool, "check", "rules", folder / "alerts.yml")
    _run(promtool, "check", "config", folder / "prometheus.yml")
    _run(promtool, "test", "rules", folder / "alerts.test.yml")
    number = re.search(r"(\d+) rules found", checked)
    return f"{number[1] if number else 0} rules, each fired by promtool's test"


_READ_DASHBOARD = """
import json, sys
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

def lost(given, kept, path):
    if isinstance(given, dict):
        return [each for key, value in given.items() for each in lost(value, kept.get(key), f"{path}/{key}")]
    if isinstance(given, list) and isinstance(kept, list) and len(given) == len(kept):
        return [each for number, pair in enumerate(zip(given, kept)) for each in lost(*pair, f"{path}/{number}")]
    return [] if given == kept else [f"{path}: {given!r} became {kept!r}"]

register_default_plugins()
given = json.load(open(sys.argv[1]))
kept = json.loads(JSONEncoder().encode(Dashboard.from_json(given)))
if found := lost(given, kept, ""):
    sys.exit("\\n".join(found))
print(len(given["panels"]))
"""


def dashboard() -> str:
    number = _run(_python(), "-c", _READ_DASHBOARD, DEPLOY / "grafana" / "kmigrate.json")
    return f"{number.strip()} panels, read and written by Grafana's SDK without a loss"


def manifests() -> str:
    python = _python()
    with tempfile.TemporaryDirectory() as folder:
        for kustomization in sorted((DEPLOY / "kubernetes").iterdir()):
            made = Path(folder) / f"{kustomization.name}.yaml"
            made.write_text(_run("kubectl", "kustomize", kustomization), encoding="utf-8")
        files = sorted(Path(folder).iterdir())
        for version in _KUBERNETES:
            answer = _run(python, "-m", "kubernetes_validate", "--strict", "-k", version, *files)
            if "ERROR" in answer or "WARN" in answer:
                raise Failed(answer)
        resources = answer.count("passed for resource")
    return f"{resources} resources valid in Kubernetes {', '.join(_KUBERNETES)}"


def units() -> str:
    with tempfile.TemporaryDirectory() as folder:
        # verify asks for the executable; kmigrate is not installed in /opt here.
        for unit in sorted((DEPLOY / "systemd").glob("*.service")):
            text = unit.read_text(encoding="utf-8").replace("/opt/kmigrate/bin/kmigrate", "/bin/true")
            (Path(folder) / unit.name.replace("@.", "@edge-1.")).write_text(text, encoding="utf-8")
        files = sorted(Path(folder).iterdir())
        complaints = _run("systemd-analyze", "verify", *files)
        if complaints.strip():
            raise Failed(complaints)
        security = _run("systemd-analyze", "security", "--offline=yes", "--no-pager", *files)
    levels = [float(level) for level in re.findall(r"Overall exposure level for \S+: ([\d.]+)", security)]
    if len(levels) != len(files) or max(levels) > _MOST_EXPOSED:
        raise Failed(f"exposure levels {levels}, at most {_MOST_EXPOSED} allowed\n{security}")
    return f"{len(files)} units, exposure level {max(levels)} of 10"


def dockerfile() -> str:
    parse = "import dockerfile, json, sys; print(json.dumps([c.cmd for c in dockerfile.parse_file(sys.argv[1])]))"
    words = json.loads(_run(_python(), "-c", parse, DEPLOY / "docker" / "Dockerfile"))
    unknown = {word.upper() for word in words} - _INSTRUCTIONS
    if unknown:
        raise Failed(f"not expected in the Dockerfile: {', '.join(sorted(unknown))}")
    return f"{len(words)} instructions"


def image() -> str:
    """Carry out the steps of the stages `wheel`, `installed` and `installed-verify`, in a folder."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder / "dist", ".")
        places = {
            "DIST": str(folder / "dist"),
            "INTO": str(folder / "kmigrate"),
            "LOCK": str(ROOT / "requirements.lock"),
        }
        sizes: dict[str, int] = {}
        for extra in ("", "verify"):
            _run(DEPLOY / "docker" / "install.sh", *filter(None, [extra]), environment=places)
            used = _run("du", "--summarize", "--block-size=1M", folder / "kmigrate")
            sizes[extra or "kmigrate"] = int(used.split()[0])
            _run(folder / "kmigrate" / "bin" / "kmigrate", "--help", environment={"PYTHONPATH": ""})
    return ", ".join(f"{name}: {size} MB installed" for name, size in sizes.items())


CHECKS: Mapping[str, Callable[[], str]] = {
    "alerts": alerts,
    "dashboard": dashboard,
    "manifests": manifests,
    "units": units,
    "dockerfile": dockerfile,
    "image": image,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--only", default=",".join(CHECKS), help="checks, separated by commas")
    wanted = parser.parse_args().only.split(",")
    found: dict[str, dict[str, object]] = {}
    for name in wanted:
        began = time.monotonic()
        try:
            result, passed = CHECKS[name](), True
        except Failed as failed:
            result, passed = str(failed), False
        found[name] = {"passed": passed, "result": result, "seconds": round(time.monotonic() - began, 1)}
        print(f"{name}: {'ok' if passed else 'FAILED'}: {result}", flush=True)
    path = save("soak/deploy", found)
    print(f"written: {path}")
    return 0 if all(check["passed"] for check in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
