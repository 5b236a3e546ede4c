"""The assignment of partitions is balanced and sticky, and no partition has two live owners (rules A to D)."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from kmigrate.mirror.sharing.assignment import Releases, balanced, next_assignment
from kmigrate.model.presences import MirrorPresence, PartitionProgress
from kmigrate.model.records import AssignmentRecord
from kmigrate.model.sharing import assigned

Key = tuple[str, int]

NAMES = "abcde"
TOPICS = st.dictionaries(st.sampled_from(["t", "u", "v", "w"]), st.integers(1, 9), min_size=1)
MEMBERS = st.sets(st.sampled_from(NAMES), min_size=1)


def keys_of(topics: Mapping[str, int]) -> list[Key]:
    return [(topic, partition) for topic, count in topics.items() for partition in range(count)]


def counts(owners: Mapping[Key, str], members: set[str]) -> list[int]:
    return [sum(owner == member for owner in owners.values()) for member in sorted(members)]


def owners_of(made: AssignmentRecord) -> dict[Key, str]:
    return {(t, p): assigned(made, t, p) for t, owners in made.owners.items() for p in range(len(owners))}


def word(
    instance: str, made: AssignmentRecord | None, *, holding: Mapping[str, list[int]] | None = None, shares: bool = True
) -> MirrorPresence:
    """Return the presence of a member that has acted on an assignment.

    `holding` says which partitions the member copies; by default the partitions that the assignment gives the member.
    """
    if holding is None:
        holding = {}
        for (topic, partition), owner in (owners_of(made) if made else {}).items():
            if owner == instance:
                holding = {**holding, topic: [*holding.get(topic, []), partition]}
    topics = {topic: dict.fromkeys(parts, PartitionProgress(5)) for topic, parts in holding.items()}
    generation = made.generation if made is not None else -1
    return MirrorPresence(instance, "l", 1, False, 500, topics, shares=shares, generation=generation)


def settled(before: AssignmentRecord | None, members: set[str], topics: Mapping[str, int]) -> AssignmentRecord:
    """Return the final assignment of members that obey each assignment at once."""
    made = before
    while True:
        words = [word(member, made) for member in members]
        after = next_assignment("l", made, members, topics, words, term=1)
        if after is made:
            return after
        made = after


@given(TOPICS, MEMBERS, st.data())
def test_members_own_equally_many_partitions_and_nothing_moves_without_need(
    topics: dict[str, int], members: set[str], data: st.DataObject
) -> None:
    keys = keys_of(topics)
    now = data.draw(st.dictionaries(st.sampled_from(keys), st.sampled_from(sorted(members))))
    owners = balanced(sorted(members), keys, now)
    assert owners.keys() == set(keys)
    after = counts(owners, members)
    assert max(after) - min(after) <= 1
    least, more = divmod(len(keys), len(members))
    had = sorted(counts(now, members), reverse=True)
    goal = [least + 1] * more + [least] * (len(members) - more)
    moved = sum(owners[key] != owner for key, owner in now.items())
    assert moved == sum(max(0, have - want) for have, want in zip(had, goal, strict=True))


@given(TOPICS, MEMBERS)
def test_a_topic_is_dealt_out_as_evenly_as_all_of_them_together(topics: dict[str, int], members: set[str]) -> None:
    owners = balanced(sorted(members), keys_of(topics), {})
    for topic in topics:
        each = counts({key: owner for key, owner in owners.items() if key[0] == topic}, members)
        assert max(each) - min(each) <= 1


@given(TOPICS, st.lists(MEMBERS, min_size=2, max_size=5))
def test_whoever_comes_and_goes_every_partition_ends_with_one_owner_that_lives(
    topics: dict[str, int], fleets: list[set[str]]
) -> None:
    made = None
    for members in fleets:
        made = settled(made, members, topics)
        owners = owners_of(made)
        assert owners.keys() == set(keys_of(topics))
        assert set(owners.values()) <= members
        each = counts(owners, members)
        assert max(each) - min(each) <= 1


@given(TOPICS, MEMBERS, MEMBERS, st.data())
def test_no_partition_goes_from_a_member_that_lives_to_another_in_one_step(
    topics: dict[str, int], first: set[str], second: set[str], data: st.DataObject
) -> None:
    before = settled(None, first, topics)
    told = data.draw(st.sets(st.sampled_from(sorted(first))))
    words = [word(member, before) for member in told]
    after = next_assignment("l", before, second, topics, words, term=1)
    for key, owner in owners_of(before).items():
        assert owner not in second or owners_of(after)[key] in (owner, "")
    assert after is before or after.generation > before.generation


def test_one_that_joins_is_given_its_share_once_the_owner_has_let_go() -> None:
    alone = settled(None, {"a"}, {"t": 4})
    assert alone.owners == {"t": (0, 0, 0, 0)}
    asked = next_assignment("l", alone, {"a", "b"}, {"t": 4}, [word("a", alone), word("b", None)], term=1)
    assert sorted(asked.owners["t"]) == [~0, ~0, 0, 0]
    left = [p for p, place in enumerate(asked.owners["t"]) if place == 0]
    for holding, generation_of in (({"t": [0, 1, 2, 3]}, asked), ({"t": left}, alone)):
        words = [word("a", generation_of, holding=holding), word("b", asked, holding={})]
        assert next_assignment("l", asked, {"a", "b"}, {"t": 4}, words, term=1) is asked
    words = [word("a", asked, holding={"t": left}), word("b", asked, holding={})]
    given_out = next_assignment("l", asked, {"a", "b"}, {"t": 4}, words, term=1)
    assert sorted(given_out.owners["t"]) == [0, 0, 1, 1]
    assert [given_out.owners["t"][p] for p in left] == [0, 0]


def test_what_a_member_that_is_gone_owned_is_given_out_at_once_under_a_higher_generation() -> None:
    before = settled(None, {"a", "b"}, {"t": 4})
    after = next_assignment("l", before, {"b"}, {"t": 4}, [word("b", before)], term=1)
    assert after.owners == {"t": (0, 0, 0, 0)}
    assert after.members == ("b",)
    assert after.generation == before.generation + 1


def test_one_that_holds_a_moving_partition_and_falls_silent_does_not_hold_it_back() -> None:
    before = settled(None, {"a"}, {"t": 2})
    asked = next_assignment("l", before, {"a", "b"}, {"t": 2}, [], term=1)
    assert sorted(asked.owners["t"]) == [~0, 0]
    after = next_assignment("l", asked, {"b"}, {"t": 2}, [word("b", asked)], term=1)
    assert set(owners_of(after).values()) == {"b"}


def test_a_member_that_is_slow_to_act_holds_back_what_it_was_asked_for_and_nothing_else() -> None:
    before = settled(None, {"a", "b"}, {"t": 6})
    asked = next_assignment("l", before, {"a", "b", "c"}, {"t": 6}, [], term=1)
    words = [word("a", asked, holding={}), word("b", before), word("c", asked)]
    after = next_assignment("l", asked, {"a", "b", "c"}, {"t": 6}, words, term=1)
    assert sorted(after.owners["t"]) == [~1, 0, 0, 1, 1, 2]


def test_what_is_being_promoted_stays_where_it_is() -> None:
    before = settled(None, {"a"}, {"t": 4, "u": 4})
    asked = next_assignment("l", before, {"a", "b"}, {"t": 4, "u": 4}, [word("a", before)], term=1, pinned={"t"})
    assert asked.owners == {"t": (0, 0, 0, 0), "u": (~0,) * 4}


def test_partitions_that_are_added_have_an_owner_at_once() -> None:
    before = settled(None, {"a", "b"}, {"t": 2})
    after = next_assignment("l", before, {"a", "b"}, {"t": 4}, [], term=1)
    assert after.owners["t"][:2] == before.owners["t"]
    assert sorted(after.owners["t"]) == [0, 0, 1, 1]


def test_the_generation_is_above_every_term_before_it() -> None:
    first = next_assignment("l", None, {"a"}, {"t": 1}, term=9)
    assert first.generation == 10
    assert next_assignment("l", first, {"b"}, {"t": 1}, term=14).generation == 15


def test_nothing_is_written_where_nothing_changes() -> None:
    before = settled(None, {"a", "b"}, {"t": 3})
    assert next_assignment("l", before, {"b", "a"}, {"t": 3}, [word("a", before)], term=99) is before


def test_what_was_let_go_of_is_given_out_while_one_topic_after_another_comes_up() -> None:
    """A released partition is given out although new topics keep making newer assignments.

    The presence of the former owner always speaks of the assignment before the newest.
    """
    topics, releases, rests = {"t": 4}, Releases(), 0
    before = made = settled(None, {"a"}, topics)
    for number in range(20):
        topics[f"new-{number}"] = 1
        words = [word("a", before), word("b", before)]
        before, made = (
            made,
            next_assignment("l", made, {"a", "b"}, topics, words, term=1, since=releases.since(1, made)),
        )
        rests += "" in owners_of(made).values()
    assert rests == 2


@given(
    st.lists(
        st.tuples(st.sampled_from(["topic", "act", "speak", "assign", "assign", "leader"]), st.sampled_from("abc")),
        max_size=60,
    )
)
def test_whatever_is_heard_late_no_partition_is_given_away_that_its_owner_may_still_hold(
    acts: list[tuple[str, str]],
) -> None:
    topics, term, releases = {"t": 5, "u": 2}, 1, Releases()
    alone = settled(None, {"a"}, topics)
    written = [settled(alone, {"a", "b"}, topics)]
    acted = dict.fromkeys("abc", 0)
    words = {name: word(name, alone) for name in "abc"}
    for what, name in acts:
        if what == "topic":
            topics = {**topics, f"new-{len(topics)}": 1}
        elif what == "act":
            acted[name] = min(acted[name] + 1, len(written) - 1)
        elif what == "speak":
            words[name] = word(name, written[acted[name]])
        elif what == "leader":
            term, releases = term + 1, Releases()
        else:
            newest = written[-1]
            members = {*newest.members, name}  # no member ends in this test
            since = releases.since(term, newest)
            made = next_assignment("l", newest, members, topics, words.values(), term=term, since=since)
            if made is not newest:
                written.append(made)
        for key, owner in owners_of(written[-1]).items():
            for other in set("abc") - {owner} if owner else ():
                ahead = written[acted[other] :]
                assert all(assigned(each, *key) != other for each in ahead), f"{other} holds {key}, or still will"
