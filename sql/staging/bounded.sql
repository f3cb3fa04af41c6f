-- bounded: a text, or its beginning where it is longer than may be: what is too long stays so, but takes no memory.
-- macro:  value, max_bytes
case when strlen(value) > max_bytes then left(value, max_bytes + 1) else value end
