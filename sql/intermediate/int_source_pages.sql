-- int_source_pages: the distinct URLs of a source with their items. Most are canonical but for `www.` and slashes at the
--         end: those are made here, the others by the function canonical_item (tasks/urls.py), which would make the same of all.
-- grain:  page_key
-- reads:  stg_lines
-- params: $canonical_pattern, $drops_assets, $asset_pattern
with pages as (
    select distinct page_key
    from stg_lines
    where
        verdict is null
        and page_key is not null
),

bare_pages as (
    select
        page_key,
        case
            when starts_with(page_key, 'https://www.') then 'https://' || right(page_key, -12)
            when starts_with(page_key, 'http://www.') then 'http://' || right(page_key, -11)
            else page_key
        end as bare_key
    from pages
),

page_items as (
    select
        page_key,
        case
            when regexp_full_match(bare_key, $canonical_pattern) then bare_key
            when
                (starts_with(bare_key, 'https://') or starts_with(bare_key, 'http://'))
                and regexp_full_match(rtrim(bare_key, '/'), $canonical_pattern)
                then rtrim(bare_key, '/')
            else canonical_item(page_key)
        end as item
    from bare_pages
)

select
    page_key,
    item,
    case
        when trim(page_key) = '' then 'no URL'
        when $drops_assets and regexp_matches(split_part(split_part(page_key, '?', 1), '#', 1), $asset_pattern)
            then 'static asset'
        when item is null then 'not a page'
    end as verdict
from page_items
