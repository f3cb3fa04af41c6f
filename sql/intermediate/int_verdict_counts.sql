-- int_verdict_counts: how many lines of a source have each verdict; those that make events (null) by day.
-- grain:  verdict, day
-- reads:  int_judged_lines
select
    verdict,
    case when verdict is null then day end as day,
    count(*) as num_lines
from int_judged_lines
group by all
order by all
