-- is_fraction: whether what whole_number made of a number is none that can name a user or a page.
-- macro:  value, column_type
regexp_matches(column_type, '^(DOUBLE|FLOAT|DECIMAL)') and not regexp_full_match(value, '-?\d+')
