"""Literal days: what is usual, what arrived, and what is missing."""

from datetime import date, timedelta

import pytest

from surf2vec.tasks.gate.figures import arrived_share, missing_days, usual_events

MONDAY = date(2026, 6, 1)


def days_from(*events: int) -> dict[date, int]:
    """Events of consecutive days from a Monday on; a day with 0 is left out."""
    return {MONDAY + timedelta(n): count for n, count in enumerate(events) if count}


def day(n: int) -> date:
    return MONDAY + timedelta(n)


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ((100, 100), None),  # two days before the third are too few
        ((100, 80, 120), 100),
        ((100, 0, 120), 100),  # a day without events counts as 0
        ((10, 100, 100, 100, 100, 100, 100), 10),  # the only Monday before was a quiet day
        ((200, 100, 100, 100, 100, 100, 100), 100),  # or a busy one, which one alone does not prove
        ((200, *[100] * 6, 220, *[100] * 6, 210, *[100] * 6), 210),  # three Mondays do
    ],
)
def test_what_is_usual(events: tuple[int, ...], expected: float | None) -> None:
    assert usual_events(days_from(*events), day(len(events))) == expected


@pytest.mark.parametrize(
    ("events", "expected"),
    [((100, 100, 100, 100), 1.0), ((100, 100, 100, 50), 0.5), ((100, 100, 50), None), ((), None)],
)
def test_the_newest_day_beside_the_usual(events: tuple[int, ...], expected: float | None) -> None:
    assert arrived_share(days_from(*events), {}) == expected


def test_days_of_a_local_time_are_whole_deliveries() -> None:
    """A file ends at 5 in the morning UTC: the newest UTC day has a fifth of its events, every night."""
    then, now = days_from(80, 100, 100, 100, 20), days_from(80, 100, 100, 100, 100, 20)
    assert arrived_share(now, {}) == 0.2
    assert arrived_share(now, then) == 1.0
    assert arrived_share(days_from(80, 100, 100, 100, 60, 10), then) == 0.5  # half delivered
    assert arrived_share(days_from(80, 100, 100, 100, 100, 100, 20), then) == 1.0  # two days later


def test_late_events_do_not_make_up_for_a_newest_day_that_is_half() -> None:
    then = days_from(100, 100, 100, 97)
    assert arrived_share(days_from(100, 100, 100, 100, 50), then) == 0.5  # stragglers
    assert arrived_share(days_from(100, 100, 100, 100, 50), days_from(100, 100, 100, 50)) == 0.5  # the other half came


def test_days_that_are_missing_since() -> None:
    now = days_from(100, 100, 100, 100, 0, 100)
    assert missing_days(now, day(3)) == [day(4)]
    assert missing_days(now, day(2)) == [day(4)]
    assert missing_days(now, day(4)) == []  # it was missing before, too
    assert missing_days(now, day(5)) == []
    assert missing_days(days_from(100, 100, 100, 100, 0, 0), day(3)) == []  # nothing came after it yet
    assert missing_days({}, day(3)) == []


def test_a_shop_that_is_closed_on_sundays_misses_none() -> None:
    now = days_from(*[100, 100, 100, 100, 100, 100, 0] * 2, 100)
    assert missing_days(now, day(12)) == []
    assert missing_days(days_from(*[100, 100, 100, 100, 100, 100, 100] * 3, 100, 0, 100), day(21)) == [day(22)]
