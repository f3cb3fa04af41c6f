-- int_rejects: the rejected lines of logs, without their content.
-- grain:  line, or page of a line with several pages
-- reads:  int_refused_lines
-- params: $source_names (by place), $place_bits (a line of the log at a place has the number place << $place_bits | its
--         number there), $left_out (verdicts of valid lines that are not visits), $line_bits (that number the pages of a line)
select
    list_extract($source_names::varchar[], 1 + (line >> $place_bits)) as source,
    (line % (1::bigint << $place_bits)) >> $line_bits as line,
    verdict as reason
from int_refused_lines
where not list_contains($left_out::varchar[], verdict)
order by int_refused_lines.line
