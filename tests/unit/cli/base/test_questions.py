"""Questions to a person, on a terminal of the test's own: verbs ask within an event loop, playbooks without a loop."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest

from kmigrate.cli.base.exits import Exit

_ASKING = """
import asyncio
import sys
from rich.text import Text
from kmigrate.cli.base.call import Call, run_to_end
from kmigrate.cli.base.output import Answer

call = Call()

async def confirm():
    heard = []
    asyncio.get_running_loop().call_later(0.01, heard.append, "the log")
    await call.confirm(False, "Promote orders?", ["a group loses its place"])
    return Answer({}, Text(f"it is done, having heard {heard}"))

def name():
    return Answer({}, Text("called " + call.required(None, "NAME", "name of the link")))

def names():
    return Answer({}, Text("called " + "+".join(call.required_list(None, "TOPIC", "topics"))))

def cluster():
    return Answer({}, Text("called " + call.required(None, "--source", "the cluster", iter(["one", "two"]))))

async def within(ask):
    return ask()

ask = globals()[sys.argv[1]]
sys.exit(run_to_end(call, (lambda: within(ask)) if sys.argv[2] == "blocks" else ask))
"""


@pytest.mark.parametrize(
    ("ask", "where", "keys", "code", "told"),
    [
        ("confirm", "loop", b"y", Exit.OK, "it is done, having heard ['the log']"),
        ("confirm", "loop", b"n", Exit.REFUSED, "not-confirmed"),
        ("confirm", "loop", b"\x03", Exit.INTERRUPTED, "Promote orders?"),
        ("name", "blocks", b"\x04", Exit.INTERRUPTED, "Name of the link?"),
        ("names", "blocks", b"one two\r", Exit.OK, "called one+two"),
        ("cluster", "blocks", b"\x1b[B\r", Exit.OK, "called two"),
        ("name", "none", b"\x03", Exit.INTERRUPTED, "Name of the link?"),
    ],
)
def test_a_question_has_its_answer_also_within_a_running_loop(
    ask: str, where: str, keys: bytes, code: Exit, told: str
) -> None:
    ours, theirs = pty.openpty()
    asking = subprocess.Popen([sys.executable, "-c", _ASKING, ask, where], stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    seen, answered = b"", False
    try:
        while True:
            try:
                seen += os.read(ours, 4096)
            except OSError:  # Linux raises after the other side has closed
                break
            if not answered and b"?" in seen and b"\x1b[6n" in seen:  # the prompt now listens
                os.write(ours, b"\x1b[1;1R" + keys)
                answered = True
    finally:
        os.close(ours)
        ended = asking.wait(30)
    assert (ended, told in seen.decode()) == (code, True)
