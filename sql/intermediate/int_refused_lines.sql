-- int_refused_lines: the lines of a source that make no event for a reason found in the line alone; lines refused for their
--         user, page or time are added later.
-- grain:  line
-- reads:  stg_lines
select
    line,
    verdict
from stg_lines
where verdict is not null
