-- number_fault: the fault of a user or page id that is a number but not a whole one, after whole_number; or no value at all.
-- macro:  user_id, user_type, url, url_type
case
    when user_type in ('OBJECT', 'ARRAY') then 'user is a list or an object'
    when url_type in ('OBJECT', 'ARRAY') then 'page is a list or an object'
    when regexp_matches(user_type, '^(DOUBLE|FLOAT|DECIMAL)') and not regexp_full_match(user_id, '-?\d+')
        then 'user is no whole number'
    when regexp_matches(url_type, '^(DOUBLE|FLOAT|DECIMAL)') and not regexp_full_match(url, '-?\d+')
        then 'page is no whole number'
end
