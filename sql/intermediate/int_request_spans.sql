-- int_request_spans: the requests of a group of micro-partitions that have a release, each with its events: those of the user from
--         first_us on and strictly before the time of the request. They are at the places from `start` to before `stop`.
-- grain:  request
-- reads:  int_requests, group_users (user_id, user_ix, first_place), group_events (user_ix, place, us)
-- params: $first_partition, $last_partition
with group_times as (
    select
        user_ix,
        us,
        max(place)::bigint + 1 as next_place
    from group_events
    group by user_ix, us
),

group_requests as (
    select *
    from int_requests
    left join group_users using (user_id)
    where
        micro_partition between $first_partition and $last_partition
        and number is not null
)

select
    request,
    number,
    release_partition,
    user_id,
    coalesce(too_old.next_place, first_place, 0) as start,
    coalesce(before.next_place, start) as stop
from group_requests
asof left join group_times as before on group_requests.user_ix = before.user_ix and group_requests.us > before.us
asof left join group_times as too_old on group_requests.user_ix = too_old.user_ix and group_requests.first_us > too_old.us
order by number, release_partition, user_id, group_requests.us
