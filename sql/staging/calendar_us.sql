-- calendar_us: a time written as text, in microseconds since 1970-01-01 in UTC; null if it cannot be read. Without a zone it is in
--         the session's. Abbreviations of zones are those of RFC 2822 and Central Europe: others have several meanings.
-- macro:  text
coalesce(
    case when text[-1] <= '9' or text[-1] = 'Z' then epoch_us(try_cast(text as timestamptz)) end,
    epoch_us(try_strptime(text, ['%d/%b/%Y:%H:%M:%S %z', '%Y-%m-%d %H:%M:%S %z'])),
    list_transform(list_transform(
        [regexp_replace(
            regexp_replace(trim(text, ' []"'), '(:\d\d),(\d+)', '\1.\2'), ' ?(Z|[+-]\d\d:?\d\d)(?: ?[(\[A-Z].*)?$', '\1'
        )],
        lambda plain: case
            when not regexp_matches(plain, '\d ?[A-Za-z]+$') then regexp_replace(plain, ' ([+-]\d\d)$', '\1')
            else regexp_replace(plain, ' ?[A-Za-z]+$', '') || map {
                'Z': '+00', 'UT': '+00', 'UTC': '+00', 'GMT': '+00', 'EST': '-05', 'EDT': '-04', 'CST': '-06', 'CDT': '-05',
                'MST': '-07', 'MDT': '-06', 'PST': '-08', 'PDT': '-07', 'CET': '+01', 'CEST': '+02'
            }[upper(regexp_extract(plain, '[A-Za-z]+$'))]
        end
    ), lambda zoned: coalesce(epoch_us(try_cast(zoned as timestamptz)), epoch_us(try_strptime(zoned, [
        '%d/%b/%Y:%H:%M:%S%z', '%d/%b/%Y:%H:%M:%S.%f%z', '%d/%b/%Y:%H:%M:%S', '%d/%b/%Y:%H:%M:%S.%f', '%a, %d %b %Y %H:%M:%S%z',
        '%d %b %Y %H:%M:%S%z', '%a %b %d %Y %H:%M:%S GMT%z', '%a %b %d %H:%M:%S %Y', '%a %b %d %H:%M:%S.%f %Y',
        '%a %b %d %H:%M:%S UTC %Y', '%Y%m%dT%H%M%S%z', '%Y%m%dT%H%M%S', '%Y%m%d %H:%M:%S'
    ]))))[1]
)
