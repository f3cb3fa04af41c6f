-- int_bad_times: the first $most distinct times of a source that could not be read.
-- grain:  time
-- reads:  stg_lines, int_refused_lines
-- params: $most
select stg_lines.time::varchar as time
from int_refused_lines
inner join stg_lines using (line)
where
    int_refused_lines.verdict = 'time not readable'
    and trim(stg_lines.time::varchar) <> ''
group by stg_lines.time::varchar
order by min(line)
limit $most
