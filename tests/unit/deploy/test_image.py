"""Tests of the Dockerfile. `make soak-deploy` parses the file with BuildKit's own parser, and carries out its steps."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import tomli

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "deploy" / "docker"
DOCKERFILE = (FOLDER / "Dockerfile").read_text(encoding="utf-8")
CONTEXT = {
    line[1:]
    for line in (FOLDER / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    if line.startswith("!")
}


def test_the_context_has_what_the_steps_copy_and_what_the_wheel_needs() -> None:
    copied = re.findall(r"^COPY (?!--from)(\S+) ", DOCKERFILE, flags=re.MULTILINE)
    assert {name for name in copied if name != "."} <= CONTEXT
    project = tomli.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert {"pyproject.toml", "kmigrate", project["readme"], *project["license-files"]} <= CONTEXT
    assert all((ROOT / name).exists() for name in CONTEXT)


def test_a_stage_copies_from_stages_that_exist() -> None:
    stages = set(re.findall(r"^FROM \S+ AS (\S+)$", DOCKERFILE, flags=re.MULTILINE))
    assert set(re.findall(r"--from=(\S+)", DOCKERFILE)) <= stages
    assert {"kmigrate", "verify"} <= stages


def test_both_images_run_as_a_user_without_rights() -> None:
    stages = re.split(r"^FROM ", DOCKERFILE, flags=re.MULTILINE)
    images = {stage.split("\n", 1)[0].split(" AS ")[1]: stage for stage in stages[1:]}
    for name in ("kmigrate", "verify"):
        assert re.findall(r"^USER (.+)$", images[name], flags=re.MULTILINE)[-1:] == ["10001:10001"]


def test_the_version_of_python_is_one_that_the_package_takes() -> None:
    project = tomli.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    version = re.search(r"^ARG PYTHON=(\d+)\.(\d+)$", DOCKERFILE, flags=re.MULTILINE)
    least = re.fullmatch(r">=(\d+)\.(\d+)", project["requires-python"])
    assert version and least
    assert tuple(map(int, version.groups())) >= tuple(map(int, least.groups()))


class _Probed(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/healthz" else 404)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None: ...  # noqa: A002


@pytest.mark.parametrize("listen", ["0.0.0.0:{}", "{}"])
def test_the_health_check_asks_the_port_at_which_the_process_listens(listen: str) -> None:
    """Two containers on the host's network need two ports."""
    check = re.search(r"^HEALTHCHECK .*\n +CMD (\[.+\])$", DOCKERFILE, flags=re.MULTILINE)
    assert check
    python, *words = json.loads(check[1])
    assert python == "python"
    with HTTPServer(("127.0.0.1", 0), _Probed) as server:
        answering = threading.Thread(target=server.handle_request, daemon=True)
        answering.start()
        environment = {**os.environ, "KMIGRATE_METRICS__LISTEN": listen.format(server.server_port), "no_proxy": "*"}
        subprocess.run([sys.executable, *words], env=environment, check=True)
        answering.join()
