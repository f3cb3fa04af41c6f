-- int_time_profile: statistics of the times in every $stride-th line of each log. Numbers: how many there are, how many have a
--         fraction, an exponent and few digits, or are a day or a second written as 8 or 14 digits; their second, fiftieth and
--         ninety-eighth percentile. The same percentiles of times in calendars, in microseconds since 1970-01-01 in UTC.
-- grain:  place (of a log that has times in these lines)
-- reads:  stg_lines
-- params: $stride, $place_bits (a line of the log at a place has the number place << $place_bits | its number there), $oldest,
--         $latest (of digits that are taken as a date)
with sampled_lines as materialized (
    select
        line >> $place_bits as place,
        time::varchar as text,
        verdict
    from stg_lines
    where line % $stride = 0
),

sampled_times as (
    select
        place,
        text,
        try_cast(replace(text, ',', '.') as double) as value,
        case when isfinite(value) then value end as number,
        case when value is null then calendar_us(text) end as us,
        try_strptime(try_cast(number as bigint)::varchar, ['%Y%m%d', '%Y%m%d%H%M%S']) as written
    from sampled_lines
    where
        verdict is null
        and trim(text) <> ''
)

select
    place,
    count(*) as num_times,
    count(*) filter (regexp_matches(text, ':\d\d([.,]\d+)? ?[A-Z+-]')) as num_zoned,
    count(number) as num_numbers,
    count(*) filter (number <> trunc(number)) as num_fractions,
    count(*) filter (regexp_matches(text, '^\d([.,]\d{1,5})?[eE]')) as num_rounded,
    count(*) filter (written between $oldest::timestamp and $latest::timestamp) as num_written,
    count(distinct number) as num_distinct,
    quantile_disc(number, [0.02, 0.5, 0.98]) as numbers,
    quantile_disc(us, [0.02, 0.5, 0.98]) as calendar_times,
    list(distinct text order by hash(text))[:50] as examples
from sampled_times
group by place
