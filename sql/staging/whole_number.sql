-- whole_number: an id or a page as text. Whole numbers of a fractional type (column_type of DuckDB or JSON) become integers: 1.0
--         is 1, and 1e+17 is 100000000000000000, as data frames with missing values turn integers into floats. NaN becomes null;
--         other numbers stay unchanged.
-- macro:  value, column_type
case
    when not regexp_matches(column_type, '^(DOUBLE|FLOAT|DECIMAL)') then value
    when value = 'nan' then null
    when contains(value, 'e') and try_cast(value as double) = trunc(try_cast(value as double))
        then try_cast(try_cast(value as double) as hugeint)::varchar
    else regexp_replace(value, '\.0+$', '')
end
