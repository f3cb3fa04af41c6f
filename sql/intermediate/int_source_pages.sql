-- int_source_pages: the distinct URLs of a source with their items; the function canonical_item (tasks/urls.py) makes those
--         that are not plainly canonical.
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

page_items as (
    select
        page_key,
        case
            when regexp_full_match(page_key, $canonical_pattern) then page_key
            else canonical_item(page_key)
        end as item
    from pages
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
