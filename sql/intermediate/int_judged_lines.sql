-- int_judged_lines: every line of a source as the event it makes, or with the verdict that says why it makes none.
--         A time without zone is of the session's time zone; day counts from 1970-01-01 in UTC, null where there is no date.
-- grain:  line
-- reads:  stg_lines, int_ranked_users, int_source_pages
-- params: $time_kind (calendar, seconds, milliseconds, microseconds, nanoseconds, order, line), $is_dated, $earliest, $latest
with timed_lines as (
    select
        line,
        user_id,
        page_key,
        verdict,
        case $time_kind
            when 'calendar' then coalesce(
                epoch_us(try_cast(time as timestamptz)),
                epoch_us(try_strptime(time::varchar, ['%d/%b/%Y:%H:%M:%S %z', '%Y-%m-%d %H:%M:%S %z']))
            )
            when 'seconds' then (try_cast(time::varchar as decimal(18, 6))::decimal(31, 6) * 1000000)::bigint
            when 'milliseconds' then (try_cast(time::varchar as decimal(18, 3))::decimal(31, 3) * 1000)::bigint
            when 'microseconds' then try_cast(time::varchar as bigint)
            when 'nanoseconds' then try_cast(time::varchar as bigint) // 1000
            when 'order' then nullif(greatest(try_cast(time::varchar as bigint), -1), -1)
            when 'line' then line
        end as us
    from stg_lines
)

select
    timed_lines.line,
    users.user_rank,
    users.micro_partition,
    users.user_id,
    pages.item,
    make_timestamp(timed_lines.us) as ts,
    case when $is_dated then (timed_lines.us // 86400000000)::integer end as day,
    case
        when timed_lines.verdict is not null then timed_lines.verdict
        when users.raw_id is null then 'no user'
        when users.verdict is not null then users.verdict
        when pages.page_key is null then 'no URL'
        when timed_lines.us is null then 'time not readable'
        when $is_dated and timed_lines.us < epoch_us($earliest::timestamp) then 'time out of scale'
        when $is_dated and timed_lines.us > epoch_us($latest::timestamp) then 'time in the future'
        else pages.verdict
    end as verdict
from timed_lines
left join int_ranked_users as users on timed_lines.user_id = users.raw_id
left join int_source_pages as pages on timed_lines.page_key = pages.page_key
