-- int_rejects: the rejected lines of a source, without their content.
-- grain:  line
-- reads:  int_refused_lines
-- params: $source_name, $left_out (verdicts of valid lines that are not visits)
select
    $source_name::varchar as source,
    line,
    verdict as reason
from int_refused_lines
where not list_contains($left_out::varchar[], verdict)
order by line
