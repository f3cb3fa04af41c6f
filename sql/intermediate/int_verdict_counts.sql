-- int_verdict_counts: how many lines of a source make no event, by verdict.
-- grain:  verdict
-- reads:  int_refused_lines
select
    verdict,
    count(*) as num_lines
from int_refused_lines
group by verdict
order by verdict
