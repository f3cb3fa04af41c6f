-- number_fault: what is wrong with what whole_number made of two numbers, which are to name a user and a page.
-- macro:  user_id, user_type, url, url_type
case
    when regexp_matches(user_type, '^(DOUBLE|FLOAT|DECIMAL)') and not regexp_full_match(user_id, '-?\d+')
        then 'user is no whole number'
    when regexp_matches(url_type, '^(DOUBLE|FLOAT|DECIMAL)') and not regexp_full_match(url, '-?\d+')
        then 'page is no whole number'
end
