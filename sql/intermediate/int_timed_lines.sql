-- int_timed_lines: a range of a source's lines that may be events, with their time in microseconds since 1970-01-01 in UTC
--         (in the session's zone if it has none), or their position if there is only an order; and the fault of the time.
-- grain:  line
-- reads:  stg_lines
-- params: $time_kind (calendar, format, seconds, milliseconds, microseconds, nanoseconds, order, line), $time_formats, $is_dated, $earliest, $latest,
--         $first_row, $end_row (of stg_lines)
with timed_lines as (
    select
        line,
        user_id,
        page_key,
        case $time_kind
            when 'calendar' then coalesce(
                epoch_us(try_cast(time as timestamptz)),
                epoch_us(try_strptime(time::varchar, ['%d/%b/%Y:%H:%M:%S %z', '%Y-%m-%d %H:%M:%S %z']))
            )
            when 'format' then epoch_us(try_strptime(time::varchar, $time_formats::varchar[])::timestamptz)
            when 'seconds' then (try_cast(time::varchar as decimal(18, 6))::decimal(31, 6) * 1000000)::bigint
            when 'milliseconds' then (try_cast(time::varchar as decimal(18, 3))::decimal(31, 3) * 1000)::bigint
            when 'microseconds' then try_cast(time::varchar as bigint)
            when 'nanoseconds' then try_cast(time::varchar as bigint) // 1000
            when 'order' then nullif(greatest(try_cast(time::varchar as bigint), -1), -1)
            when 'line' then line
        end as us
    from stg_lines
    where
        verdict is null
        and rowid >= $first_row
        and rowid < $end_row
)

select
    line,
    user_id,
    page_key,
    us,
    case
        when us is null then 'time not readable'
        when $is_dated and us < epoch_us($earliest::timestamp) then 'time out of scale'
        when $is_dated and us > epoch_us($latest::timestamp) then 'time in the future'
    end as time_verdict
from timed_lines
