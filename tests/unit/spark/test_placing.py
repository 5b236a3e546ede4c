"""Target offsets placed at source offsets: every offset of a stretch once, as the map itself translates."""

from hypothesis import given
from hypothesis import strategies as st

from kmigrate.model.offset_map import OffsetMap, Run
from kmigrate.parity.plan import Stretch, TopicRange
from kmigrate.spark.placing import Entry, entries

steps = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 3), st.integers(1, 60)), min_size=1, max_size=30)


def map_of(moves: list[tuple[int, int, int]]) -> OffsetMap:
    """Return a map of runs of some length, each run after a hole on the source and, rarely, a hole on the target."""
    made = OffsetMap()
    source, target = 5, 100
    for hole, gap, length in moves:
        source, target = source + hole, target + gap
        made.append(source, target, length)
        source, target = source + length, target + length
    return made


def at(table: list[Entry], size: int, offset: int) -> int:
    """Return the offset that the join gives a row."""
    (entry,) = [each for each in table if each.chunk == offset // size and each.first <= offset < each.until]
    return min(offset - entry.first + entry.source, entry.last)


@given(steps, st.data())
def test_every_offset_of_a_stretch_is_in_one_entry_of_its_chunk_and_stands_where_the_map_says(
    moves: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    made = map_of(moves)
    start = data.draw(st.integers(5, made.covered))
    end = data.draw(st.integers(start, made.covered))
    stretch = TopicRange("t", 0, start, end, made).at_target
    size, table = entries([(stretch, made)])
    for offset in range(stretch.start, stretch.end):
        place = made.to_source(offset)
        assert place is not None
        found = at(table, size, offset)
        assert start <= found < end
        assert found == place.offset if place.is_record else found < place.offset


def test_the_table_stays_small_whatever_the_lengths_of_the_runs() -> None:
    long_one = OffsetMap([Run(0, 0, 10**12)])
    short_ones = OffsetMap([Run(10 * n, 5 * n, 5) for n in range(20_000)])
    _, table = entries([(Stretch("a", 0, 0, 10**12), long_one), (Stretch("b", 0, 0, 100_000), short_ones)])
    assert len(table) <= 2 * 20_001 + 2


def test_a_stretch_before_any_run_needs_no_table() -> None:
    assert entries([(Stretch("a", 0, 7, 7), OffsetMap())]) == (1, [])
