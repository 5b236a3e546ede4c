"""The demo's reaction to a refused `link finish`: the tests use the texts that the verb really prints."""

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from kmigrate.cli.base.output import Output
from kmigrate.cli.commands.demo import Demo, DemoPlan
from kmigrate.errors import Failed, KmigrateError, Refused


class Finishing(Demo):
    """A demo in which `link finish` ends with an error."""

    def __init__(self, error: KmigrateError, capsys: pytest.CaptureFixture[str]) -> None:
        super().__init__(DemoPlan(Path("demo"), "quickstart"), Output(json=True))
        capsys.readouterr()
        self.out.error(error)
        self._ended = subprocess.CompletedProcess([], error.exit_code, capsys.readouterr().out)

    def _kmigrate(self, environment: Mapping[str, str], *verb: str) -> subprocess.CompletedProcess[str]:
        return self._ended


@pytest.mark.parametrize("ref", ["topic-not-promoted", "group-not-promoted"])
def test_a_demo_whose_playbook_left_something_unpromoted_goes_on_to_its_report(
    ref: str, capsys: pytest.CaptureFixture[str]
) -> None:
    demo = Finishing(Refused(ref, "topic audit is mirroring"), capsys)
    assert demo._leave({}) is False
    assert "refused: topic audit is mirroring" in capsys.readouterr().err


def test_a_demo_whose_clients_did_not_leave_says_what_the_verb_said(capsys: pytest.CaptureFixture[str]) -> None:
    demo = Finishing(Refused("no-such-link", "there is no link demo"), capsys)
    with pytest.raises(Failed, match="did not leave the router") as caught:
        demo._leave({})
    assert json.loads(caught.value.what.partition(": ")[2])["error"] == "no-such-link"
