"""Keys, filter, sizes and screens of `status --watch`, driven by Textual's pilot on snapshots without a cluster."""

from __future__ import annotations

import asyncio
import unicodedata
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from time import monotonic

import pytest
from textual.pilot import Pilot

from kmigrate.cli.base.exits import Exit
from kmigrate.cli.watch.app import Watch
from kmigrate.cli.watch.details import Look
from kmigrate.errors import Unreachable
from kmigrate.workflow.status.group_detail import GroupDetail
from kmigrate.workflow.status.progress import ProgressTracker
from kmigrate.workflow.status.snapshot import Snapshot
from tests.captures.status import screen_lines
from tests.fakes.snapshots import billing, estate, many

_HOSTILE = ("[bold]x[/bold]", "[/]", "a\nb", "\x1b[31mred", "\u202egnp", "\x9b31m", ":smile:")


async def _billing(link: str, group: str) -> GroupDetail | None:
    return billing()


@asynccontextmanager
async def screen(
    shot: Snapshot,
    size: tuple[int, int] = (80, 24),
    detail: Callable[[str, str], Awaitable[GroupDetail | None]] = _billing,
) -> AsyncIterator[tuple[Watch, Pilot[Exit]]]:
    async def once() -> Snapshot:
        if looked:
            await asyncio.Event().wait()
        looked.append(shot)
        return shot

    looked: list[Snapshot] = []
    app = Watch(once, detail, 0.1)
    async with app.run_test(size=size) as pilot:
        await until(app, pilot, lambda: any(line.split()[:1] == ["group"] for line in screen_lines(app)))
        yield app, pilot


async def until(app: Watch, pilot: Pilot[Exit], holds: Callable[[], bool]) -> None:
    """Wait until a condition holds, however busy the machine is."""
    deadline = monotonic() + 30
    await pilot.pause()
    while not holds():
        assert monotonic() < deadline, text(app)
        await pilot.pause(0.02)


async def shows(app: Watch, pilot: Pilot[Exit], *words: str) -> None:
    """Wait until the screen shows all these words."""
    await until(app, pilot, lambda: all(each in text(app) for each in words))


def text(app: Watch) -> str:
    return "\n".join(screen_lines(app))


@pytest.mark.parametrize(
    ("size", "heads"),
    [
        ((80, 24), ["topic", "state", "copied", "lag", "left", "age", "in/s", "copy/s"]),
        ((40, 20), ["topic", "copied", "lag", "left", "in/s"]),
        ((120, 40), ["topic", "state", "copied", "lag", "left", "age", "in/s", "copy/s", "bytes/s", "parts", "why"]),
    ],
)
def test_each_size_shows_whole_columns_and_both_tables(size: tuple[int, int], heads: list[str]) -> None:
    async def scenario() -> None:
        async with screen(estate(), size) as (app, _):
            lines = screen_lines(app)
            assert (len(lines), {len(line) for line in lines}) == (size[1], {size[0]})
            head = next(line for line in lines if line.split()[:1] == ["topic"])
            assert head.split() == heads
            groups = next(line for line in lines if line.split()[:1] == ["group"])
            assert "direct" in groups
            assert "target" in groups
            first = lines[lines.index(head) + 1]
            assert first.startswith("✗ audit"), "what needs a person comes first"
            assert "--accept-loss 70..99" in text(app).replace("\n", " "), "with the command that helps"

    asyncio.run(scenario())


def test_a_filter_narrows_while_it_is_typed_and_escape_shows_all_again() -> None:
    async def scenario() -> None:
        async with screen(estate()) as (app, pilot):
            await pilot.press("slash", *"orders", "enter")
            await shows(app, pilot, "2 of 10 hold: orders", "● orders")
            assert "clicks" not in text(app)
            assert "billing" not in text(app)
            await pilot.press("escape")
            await shows(app, pilot, "clicks", "billing")

    asyncio.run(scenario())


def test_the_cursor_stays_on_its_topic_when_the_order_changes() -> None:
    async def scenario() -> None:
        async with screen(estate()) as (app, pilot):
            await pilot.press("down", "down", "down")
            assert app._topics.chosen is not None
            name = app._topics.chosen.name
            await pilot.press("s")
            await shows(app, pilot, "sorted by name")
            assert app._topics.chosen.name == name

    asyncio.run(scenario())


def test_the_cursor_stays_on_its_topic_when_columns_and_order_change_at_once() -> None:
    async def scenario() -> None:
        async with screen(estate(), (120, 40)) as (app, pilot):
            await pilot.press("down", "down", "down")
            chosen = app._topics.chosen
            assert chosen is not None
            shot = estate(1)
            stopped = replace(shot.topics[0], topic="a-stopped-topic-with-more-room")
            wider = replace(shot, topics=(stopped, *shot.topics))
            app.show(Look(wider, ProgressTracker().add(wider)))
            await shows(app, pilot, stopped.topic)
            assert app._topics.chosen is not None
            assert (app._topics.chosen.name, app._topics.cursor_row) == (chosen.name, 4)
            await pilot.resize_terminal(40, 20)
            await until(app, pilot, lambda: "copy/s" not in text(app))
            assert app._topics.chosen.name == chosen.name

    asyncio.run(scenario())


def test_enter_opens_a_topic_and_escape_goes_back() -> None:
    async def scenario() -> None:
        async with screen(estate()) as (app, pilot):
            await pilot.press("enter")
            await shows(app, pilot, "leaders", "2 → 12")
            await pilot.press("s")
            assert "sorted" not in text(app), "the keys of the main screen do nothing here"
            gone = replace(estate(), topics=())
            app.show(Look(gone, ProgressTracker().add(gone)))
            await shows(app, pilot, "topic audit is not mirrored any more")
            await pilot.press("escape")
            await shows(app, pilot, "Filter")

    asyncio.run(scenario())


def test_enter_on_a_group_shows_members_and_partitions() -> None:
    async def scenario() -> None:
        async with screen(estate()) as (app, pilot):
            await pilot.press("tab", "enter")
            await shows(app, pilot, "its promote waits: 1 member has not joined at a router", "read by")
            await shows(app, pilot, "source billing-2 /10.0.7.12", "invoices 2, orders 2,5")

    asyncio.run(scenario())


def test_a_group_that_cannot_be_asked_says_why() -> None:
    async def away(link: str, group: str) -> GroupDetail | None:
        raise Unreachable("cluster-unreachable", "no broker of the source answers")

    async def scenario() -> None:
        async with screen(estate(), detail=away) as (app, pilot):
            await pilot.press("tab", "enter")
            await shows(app, pilot, "no broker of the source answers")

    asyncio.run(scenario())


def test_an_unexpected_error_of_a_group_ends_it_and_is_kept() -> None:
    async def broken(link: str, group: str) -> GroupDetail | None:
        raise ZeroDivisionError

    async def scenario() -> None:
        async with screen(estate(), detail=broken) as (app, pilot):
            await pilot.press("tab", "enter")
            await until(app, pilot, lambda: app.failure is not None)
            assert isinstance(app.failure, ZeroDivisionError)
            assert app.return_value == Exit.FAILED

    asyncio.run(scenario())


def test_all_shows_what_has_no_room_above_the_tables() -> None:
    async def scenario() -> None:
        noisy = replace(estate(), warnings=tuple(f"warning number {n}" for n in range(5)))
        async with screen(noisy) as (app, pilot):
            assert "and 4 more: key a" in text(app)
            await pilot.press("a")
            await shows(app, pilot, "warning number 4")

    asyncio.run(scenario())


def test_all_shows_a_link_whose_topics_nobody_copies() -> None:
    async def scenario() -> None:
        async with screen(replace(estate(), mirrors=()), (120, 40)) as (app, pilot):
            await pilot.press("a")
            await shows(app, pilot, "nothing is copied: no mirror of it runs")

    asyncio.run(scenario())


def test_a_thousand_topics_scroll_sort_and_filter() -> None:
    async def scenario() -> None:
        async with screen(many(1_000)) as (app, pilot):
            assert "↓ 10 copying" in text(app)
            await pilot.press("s", "end")
            await shows(app, pilot, "team-39.e…nts.0999")
            await pilot.press("slash", *"0777", "enter")
            await shows(app, pilot, "1 of 1040 hold: 0777", "team-17.e…nts.0777")

    asyncio.run(scenario())


def test_a_terminal_that_changes_its_size_gets_other_columns() -> None:
    async def scenario() -> None:
        async with screen(estate(), (120, 40)) as (app, pilot):
            await pilot.resize_terminal(40, 20)
            await until(app, pilot, lambda: "bytes/s" not in text(app))
            await pilot.resize_terminal(120, 40)
            await shows(app, pilot, "bytes/s")

    asyncio.run(scenario())


def test_hostile_names_are_shown_and_obeyed_nowhere() -> None:
    async def scenario() -> None:
        shot = estate()
        names = tuple(replace(shot.topics[0], topic=name, upkeep=name) for name in _HOSTILE)
        odd = replace(shot, topics=names, groups=tuple(replace(shot.groups[0], group=name) for name in _HOSTILE))
        async with screen(odd, (120, 40)) as (app, pilot):
            shown = text(app)
            assert "[bold]x[/bold]" in shown
            assert ":smile:" in shown
            assert not [each for each in shown if each != "\n" and unicodedata.category(each) in ("Cc", "Cf")]
            for keys, head in ((("enter",), "leaders"), (("escape", "tab", "enter"), "read by")):
                await pilot.press(*keys)
                await shows(app, pilot, head)
                assert not [each for each in text(app) if each != "\n" and unicodedata.category(each) in ("Cc", "Cf")]

    asyncio.run(scenario())


@pytest.mark.parametrize(("key", "code"), [("q", Exit.OK), ("ctrl+c", Exit.INTERRUPTED)])
def test_q_and_ctrl_c_end_it_with_their_codes(key: str, code: Exit) -> None:
    async def scenario() -> None:
        async with screen(estate()) as (app, pilot):
            await pilot.press(key)
            await until(app, pilot, lambda: app.return_value is not None)
            assert app.return_value == code

    asyncio.run(scenario())


def test_a_failed_look_is_named_and_the_last_snapshot_stays() -> None:
    answers: list[Snapshot | Exception] = [estate(), Unreachable("cluster-unreachable", "no broker answers"), estate(1)]
    going_on = asyncio.Event()

    async def look() -> Snapshot:
        if len(answers) == 1:
            await going_on.wait()
        if not answers:
            await asyncio.Event().wait()
        found = answers.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    async def scenario() -> None:
        app = Watch(look, _billing, 0.1)
        async with app.run_test(size=(80, 24)) as pilot:
            await shows(app, pilot, "✗ not asked: cluster-unreachable: no broker answers", "orders")
            going_on.set()
            await until(app, pilot, lambda: "not asked" not in text(app))
            assert (app.failure, app.return_value) == (None, None)

    asyncio.run(scenario())


def test_an_error_of_the_first_look_ends_it_and_is_kept() -> None:
    async def broken() -> Snapshot:
        raise Unreachable("cluster-unreachable", "no broker of the target answers")

    async def scenario() -> None:
        app = Watch(broken, _billing, 0.1)
        async with app.run_test() as pilot:
            await until(app, pilot, lambda: app.failure is not None)
            assert app.return_value == Exit.FAILED
            assert isinstance(app.failure, Unreachable)

    asyncio.run(scenario())
