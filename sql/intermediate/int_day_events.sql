-- int_day_events: the events of a source on one day, as they are kept; user_rank is the order of (micro_partition, user_id).
-- grain:  (source, line)
-- reads:  int_judged_lines
-- params: $source_number, $day (days from 1970-01-01, or null for a log without dates)
select
    micro_partition,
    user_id,
    ts,
    $source_number::ubigint as source,
    line,
    item as url
from int_judged_lines
where
    verdict is null
    and day is not distinct from $day::integer
order by
    user_rank,
    ts,
    line
