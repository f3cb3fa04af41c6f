-- int_rejects: the lines of a source that could not be used, without a word of what is in them.
-- grain:  line
-- reads:  int_refused_lines
-- params: $source_name, $left_out (verdicts of lines that are in order, but no visits)
select
    $source_name::varchar as source,
    line,
    verdict as reason
from int_refused_lines
where not list_contains($left_out::varchar[], verdict)
order by line
