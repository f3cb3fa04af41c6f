"""Whether a day's events arrived: the newest day beside what is usual, and days that are missing. Pure.

Usual is the median of the same weekdays before it once there are three, else of all days before it, or of the weekday if that is
lower: the first weekends of a log are then no alarm each. Where a delivery is a day of a local time, it closes one UTC day and
begins the next: what came since the night before is then taken together, or every night would look half delivered.
"""

from collections.abc import Mapping
from datetime import date, timedelta
from statistics import median

MIN_DAYS = 3
MIN_WEEKS = 3

Days = Mapping[date, int]
"""Events of each UTC day that has some."""


def usual_events(days: Days, day: date) -> float | None:
    """What a day like this one has, by the days before it; None when they are too few."""
    first = min(days, default=day)
    before = {day - timedelta(n): days.get(day - timedelta(n), 0) for n in range(1, (day - first).days + 1)}
    same = [events for other, events in before.items() if other.weekday() == day.weekday()]
    if len(same) >= MIN_WEEKS:
        return median(same)
    if len(before) < MIN_DAYS:
        return None
    return min(median(before.values()), median(same)) if same else median(before.values())


def arrived_share(now: Days, then: Days) -> float | None:
    """The events of the newest day over what is usual; None without enough days before it.

    `then`: the days as an earlier night saw them, whose newest day is before the newest of `now`; or none.
    """
    newest = max(now, default=None)
    if newest is None:
        return None
    arrived, wanted = now[newest], [newest]
    last = max(then, default=newest)
    late = now.get(last, 0) - then.get(last, 0)
    if last < newest and late > arrived:  # most of the delivery went to the day on which the last one ended
        arrived += late + sum(events for day, events in now.items() if last < day < newest)
        wanted = [last + timedelta(n) for n in range((newest - last).days)]
    usual = [usual_events(now, day) for day in wanted]
    total = sum(events for events in usual if events is not None)
    return arrived / total if total and None not in usual else None


def missing_days(now: Days, since: date) -> list[date]:
    """The days after `since` and before the newest that have no events, though such days usually have some."""
    newest = max(now, default=since)
    between = [since + timedelta(n) for n in range(1, (newest - since).days)]
    return [day for day in between if not now.get(day) and usual_events(now, day)]
