-- int_rejects: the rejected lines of a source, without their content.
-- grain:  line, or page of a line with several pages
-- reads:  int_refused_lines
-- params: $source_name, $left_out (verdicts of valid lines that are not visits), $line_bits (that number the pages of a line)
select
    $source_name::varchar as source,
    line >> $line_bits as line,
    verdict as reason
from int_refused_lines
where not list_contains($left_out::varchar[], verdict)
order by int_refused_lines.line
