-- whole_number: an id or a page as text. One that is a number with a fraction by its type (column_type of DuckDB, or of JSON) and
--         whole is written as the integer that it is: 1.0 is 1, and 1e+17 is 100000000000000000, as frames with gaps make floats
--         of integers. Not a number is null; what is not whole stays as it is.
-- macro:  value, column_type
case
    when not regexp_matches(column_type, '^(DOUBLE|FLOAT|DECIMAL)') then value
    when value = 'nan' then null
    when contains(value, 'e') and try_cast(value as double) = trunc(try_cast(value as double))
        then try_cast(try_cast(value as double) as hugeint)::varchar
    else regexp_replace(value, '\.0+$', '')
end
