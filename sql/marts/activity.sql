-- activity: how much, how often and when each user was there, not scaled yet; null where nothing is known, as without times.
--         Counts and seconds are logarithms; hours and weekdays points on a circle, in UTC; `late_new_pages` is of the newer half
--         of the events; last_day, _week and _month end with the last event. Sums of integers have the same bits in any order.
-- grain:  user_ix
-- reads:  user_events (user_ix, place: ascending with user and time, us: since 1970 in UTC or null, item, is_late: in the newer
--         half of the user's, gap and day_gap: since the event before, age: until the user's last event, hour_sin, hour_cos,
--         weekday_sin, weekday_cos: points on circles, in millionths)
-- params: $session_seconds: a session begins with an event so long after the one before it
with timed as (
    select
        *,
        (us is not null and coalesce(gap >= 1000000 * $session_seconds, true)) as is_start
    from user_events
),

of_times as (
    select
        user_ix,
        max(us) / 86400e6 as last,
        nullif(count_if(is_start), 0) as num_sessions,
        ln(num_sessions) as sessions,
        ln(nullif(count_if(day_gap > 0 or (us is not null and gap is null)), 0)) as days,
        ln(nullif(count_if(age < 86400000000), 0)) as last_day,
        ln(nullif(count_if(age < 7 * 86400000000), 0)) as last_week,
        ln(nullif(count_if(age < 30 * 86400000000), 0)) as last_month,
        ln(1 + max(age) / 1e6) as span,
        ln(1 + avg(gap) / 1e6) as mean_gap,
        ln(1 + median(gap) / 1e6) as median_gap,
        ln(1 + arg_max(gap, place) / 1e6) as last_gap,
        ln(1 + avg(gap) filter (is_start) / 1e6) as session_gap,
        ln(1 + arg_max(gap, place) filter (is_start) / 1e6) as last_session_gap,
        ln(1 + coalesce(sum(gap) filter (not is_start), 0) / 1e6 / num_sessions) as session_seconds,
        ln(count(us) / num_sessions) as session_events,
        ln(max(place) + 1 - max(place) filter (is_start)) as last_session,
        sum(timed.hour_sin) / 1e6 / nullif(count(us), 0) as hour_sin,
        sum(timed.hour_cos) / 1e6 / nullif(count(us), 0) as hour_cos,
        sum(timed.weekday_sin) / 1e6 / nullif(count(us), 0) as weekday_sin,
        sum(timed.weekday_cos) / 1e6 / nullif(count(us), 0) as weekday_cos,
        arg_max(timed.hour_sin, place) / 1e6 as last_hour_sin,
        arg_max(timed.hour_cos, place) / 1e6 as last_hour_cos,
        arg_max(timed.weekday_sin, place) / 1e6 as last_weekday_sin,
        arg_max(timed.weekday_cos, place) / 1e6 as last_weekday_cos
    from timed
    group by user_ix
),

visited as (
    select
        user_ix,
        count(*) as visits,
        bool_and(is_late) as is_late
    from user_events
    group by user_ix, item
),

of_pages as (
    select
        user_ix,
        sum(visits) as num_events,
        ln(num_events) as events,
        ln(count(*)) as pages,
        round(ln(num_events) - sum(round(1e6 * visits * ln(visits))::bigint) / 1e6 / num_events, 5) as entropy,
        count(*) / num_events as new_pages,
        count_if(is_late) / (num_events - num_events // 2) as late_new_pages
    from visited
    group by user_ix
)

select * exclude (num_events, num_sessions)
from of_pages
inner join of_times using (user_ix)
order by user_ix
