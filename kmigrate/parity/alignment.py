"""The shared order of two record lists: which source record is which target record.

Two readings compete, and the cheaper reading wins:

in place   same offset, same content: right where records vanished behind a hole or were changed
in order   same content in the same order, at any offset: right where a loss shifted everything after the loss

The second reading is a patience diff. Contents that occur once on both sides are anchors. The longest increasing run of
anchors is kept, and each gap between two anchors is aligned in the same way. The cost stays near n log n for real
topics, whose records are nearly all different. For other topics the cost is never worse than a bounded quadratic.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from difflib import SequenceMatcher
from itertools import pairwise

__all__ = ["Pairs", "align", "in_order", "in_place"]

Pairs = list[tuple[int, int]]  # index on the left, index on the right; both strictly increasing

LARGEST_QUADRATIC = 1_000_000


def align(left: Sequence[int], right: Sequence[int], left_at: Sequence[int], right_at: Sequence[int]) -> Pairs:
    """Return the cheaper reading of two lists of contents; `left_at` and `right_at` are offsets counted alike."""
    placed = in_place(left, right, left_at, right_at)
    if len(placed) == len(left) == len(right):
        return placed
    ordered = in_order(left, right)

    def cost(pairs: Pairs) -> int:
        shifts = [right_at[j] - left_at[i] for i, j in pairs]
        turns = sum(now != before for before, now in zip([0, *shifts], shifts, strict=False))
        return 2 * (len(left) + len(right) - 2 * len(pairs)) + turns

    return min(placed, ordered, key=cost)


def in_place(left: Sequence[int], right: Sequence[int], left_at: Sequence[int], right_at: Sequence[int]) -> Pairs:
    """Return every pair of equal contents at equal offsets. Offsets rise on both sides, so the pairs never cross."""
    where = {offset: index for index, offset in enumerate(right_at)}
    return [(i, j) for i, offset in enumerate(left_at) if (j := where.get(offset)) is not None and left[i] == right[j]]


def in_order(left: Sequence[int], right: Sequence[int]) -> Pairs:
    """Return a long common subsequence, found by patience."""
    pairs: Pairs = []
    gaps = [(0, len(left), 0, len(right))]
    while gaps:
        low, high, right_low, right_high = gaps.pop()
        while low < high and right_low < right_high and left[low] == right[right_low]:
            pairs.append((low, right_low))
            low, right_low = low + 1, right_low + 1
        while low < high and right_low < right_high and left[high - 1] == right[right_high - 1]:
            high, right_high = high - 1, right_high - 1
            pairs.append((high, right_high))
        if low == high or right_low == right_high:
            continue
        anchors = _anchors(left, right, low, high, right_low, right_high)
        if not anchors:
            pairs.extend(_without_anchors(left[low:high], right[right_low:right_high], low, right_low))
            continue
        pairs.extend(anchors)
        edges = [(low - 1, right_low - 1), *anchors, (high, right_high)]
        for (i, j), (next_i, next_j) in pairwise(edges):
            if next_i - i > 1 and next_j - j > 1:
                gaps.append((i + 1, next_i, j + 1, next_j))
    pairs.sort()
    return pairs


def _anchors(left: Sequence[int], right: Sequence[int], low: int, high: int, right_low: int, right_high: int) -> Pairs:
    """Return the longest run without crossings of contents that occur once on each side."""
    on_left = Counter(left[low:high])
    on_right = Counter(right[right_low:right_high])
    where = {right[j]: j for j in range(right_low, right_high) if on_right[right[j]] == 1}
    matches = [(i, where[left[i]]) for i in range(low, high) if on_left[left[i]] == 1 and left[i] in where]
    return _longest_increasing(matches)


def _longest_increasing(matches: Pairs) -> Pairs:
    """Return the longest subsequence whose right index rises, too (patience sorting with back links)."""
    tops: list[int] = []  # right index on top of each pile
    top_match: list[int] = []  # the match of each top
    before: list[int] = []
    for index, (_, j) in enumerate(matches):
        pile = bisect_left(tops, j)
        before.append(top_match[pile - 1] if pile else -1)
        if pile == len(tops):
            tops.append(j)
            top_match.append(index)
        else:
            tops[pile] = j
            top_match[pile] = index
    kept: Pairs = []
    at = top_match[-1] if top_match else -1
    while at >= 0:
        kept.append(matches[at])
        at = before[at]
    kept.reverse()
    return kept


def _without_anchors(left: Sequence[int], right: Sequence[int], low: int, right_low: int) -> Pairs:
    """Return a gap's pairs of repeating contents, by block matching, or by occurrence where matching costs too much."""
    if not set(left) & set(right):
        return []
    if len(left) * len(right) <= LARGEST_QUADRATIC:
        blocks = SequenceMatcher(None, left, right, autojunk=False).get_matching_blocks()
        return [(low + a + k, right_low + b + k) for a, b, size in blocks for k in range(size)]
    seen: Counter[int] = Counter()
    where: dict[tuple[int, int], int] = {}
    for j, content in enumerate(right):
        where[content, seen[content]] = j
        seen[content] += 1
    seen.clear()
    matches: Pairs = []
    for i, content in enumerate(left):
        j_or_none = where.get((content, seen[content]))
        seen[content] += 1
        if j_or_none is not None:
            matches.append((low + i, right_low + j_or_none))
    return _longest_increasing(matches)
