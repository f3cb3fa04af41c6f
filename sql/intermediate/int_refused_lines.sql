-- int_refused_lines: the lines of a source that alone tell why they make no event; those that their user, page or time keep
--         from it are added as they are found.
-- grain:  line
-- reads:  stg_lines
select
    line,
    verdict
from stg_lines
where verdict is not null
