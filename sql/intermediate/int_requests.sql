-- int_requests: the rows of a file of requests: the user as the root stores it, the time in microseconds since 1970-01-01 in UTC
--         (null if it cannot be read), the release in force, and from when on it takes events. Numbers are seconds to
--         nanoseconds, by their size, as in a log.
-- grain:  request (place in the file)
-- reads:  request_rows (user_id, ts), served_releases (number, since, until: days of its window, window_days: if it moves, partitions)
-- params: $partitions
with timed_requests as (
    select
        rowid as request,
        if(typeof(user_id) in ('FLOAT', 'DOUBLE'), regexp_replace(user_id::varchar, '\.0$', ''), user_id::varchar) as given,
        try_cast(ts::varchar as double) as value,
        case when value < 1e11 then 1e6 when value < 1e14 then 1e3 when value < 1e17 then 1 else 1e-3 end as unit,
        if(value is null, calendar_us(ts::varchar), try_cast(if(value >= 1e8, round(value * unit), null) as bigint)) as us
    from request_rows
),

named_users as (
    select
        given,
        stored_name(given) as stored,
        md5_number_lower(coalesce(stored, '')) as user_hash
    from (select distinct given from timed_requests)
)

select
    request,
    stored as user_id,
    us,
    (user_hash % $partitions)::integer as micro_partition,
    (user_hash % partitions)::integer as release_partition,
    served_releases.number,
    coalesce(((us - 1) // 86400000000 + 1 - window_days) * 86400000000, epoch_us(since::timestamp)) as first_us
from timed_requests
inner join named_users on timed_requests.given is not distinct from named_users.given
asof left join served_releases on us >= epoch_us(until::timestamp + interval 1 day)
