-- int_time_profile: statistics of the times in every $stride-th line of a source: how many are numbers, their
--         median, and how many have a time zone.
-- grain:  one row
-- reads:  stg_lines
-- params: $stride
with sampled_lines as materialized (
    select
        time::varchar as text,
        verdict
    from stg_lines
    where line % $stride = 0
),

sampled_times as (
    select
        text,
        try_cast(text as double) as number
    from sampled_lines
    where
        verdict is null
        and trim(text) <> ''
)

select
    count(*) as num_times,
    count(*) filter (regexp_matches(text, '\d(Z| ?[+-]\d\d:?(\d\d)?)$')) as num_zoned,
    count(*) filter (isfinite(number)) as num_numbers,
    quantile_disc(abs(number), 0.5) filter (isfinite(number)) as median
from sampled_times
