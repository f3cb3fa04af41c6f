-- int_rejects: the rejected lines of a log, without their content.
-- grain:  line, or page of a line with several pages
-- reads:  int_refused_lines
-- params: $source_name, $place, $place_bits (a line of the log at a place has the number place << $place_bits | its number there),
--         $left_out (verdicts of valid lines that are not visits), $line_bits (that number the pages of a line)
select
    $source_name::varchar as source,
    (line % (1::bigint << $place_bits)) >> $line_bits as line,
    verdict as reason
from int_refused_lines
where
    line >> $place_bits = $place
    and not list_contains($left_out::varchar[], verdict)
order by int_refused_lines.line
