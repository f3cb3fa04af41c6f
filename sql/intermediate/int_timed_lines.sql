-- int_timed_lines: a range of a source's lines that may be events, with their time in microseconds since 1970-01-01 in UTC
--         (in the session's zone if it has none), or their position if there is only an order; and the fault of the time.
-- grain:  line
-- reads:  stg_lines
-- params: $time_kind (timestamp, calendar, format, digits, number, order, line), $time_formats, $unit, $divisor, $origin (a number
--         counts $unit / $divisor microseconds since $origin / $divisor), $is_days (of Excel, as a clock on the wall shows them),
--         $place_bits (a line of the log at a place has the number place << $place_bits | its number there), $is_dated, $earliest,
--         $latest, $first_row, $end_row (of stg_lines)
with timed_lines as (
    select
        line,
        user_id,
        page_key,
        case
            when not contains(time::varchar, '.') or try_cast(time::varchar as double) % 1 = 0 then try_cast(time::varchar as bigint)
        end as whole,
        case $time_kind
            when 'timestamp' then epoch_us(try_cast(time as timestamptz))
            when 'calendar' then calendar_us(time::varchar)
            when 'format' then epoch_us(try_strptime(time::varchar, $time_formats::varchar[])::timestamptz)
            when 'digits' then epoch_us(try_strptime(whole::varchar, $time_formats::varchar[])::timestamptz)
            when 'number' then try_cast(
                $origin::hugeint + coalesce(
                    whole::hugeint * $unit::bigint,
                    round(
                        try_cast(replace(time::varchar, ',', '.') as decimal(27, 10)) * $unit::decimal(11, 0),
                        if($is_days, -3, 0)
                    )::hugeint
                ) as bigint
            ) // $divisor::bigint
            when 'order' then nullif(greatest(whole, -1), -1)
            when 'line' then line % (1::bigint << $place_bits)
        end as clock_us,
        if($is_days, epoch_us(make_timestamp(clock_us)::timestamptz), clock_us) as us
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
