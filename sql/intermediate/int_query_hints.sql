-- int_query_hints: the pages of a source with very many different queries, their approximate number, and their most varied keys.
--         Uses a sixteenth of the URLs; ignores tracking parameters, and keys that do not look like names.
-- grain:  path
-- reads:  stg_lines (query: of the sampled URLs)
-- params: $asset_pattern, $least_queries, $most_hints
with queries as (
    select
        split_part(page_key, '?', 1) as path,
        list_filter(
            string_split(query, '&'),
            lambda pair: not regexp_full_match(
                pair, '(?i)((utm_[^=]*|gclid|dclid|gbraid|wbraid|fbclid|msclkid|yclid|mc_[ce]id|_ga|_gl)(=.*)?)?'
            )
        ) as pairs
    from stg_lines
    where
        query is not null
        and verdict is null
),

paths as (
    select
        path,
        16 * count(distinct pairs) as num_queries
    from queries
    where
        len(pairs) > 0
        and not regexp_matches(path, $asset_pattern)
    group by path
    having 16 * count(distinct pairs) >= $least_queries
    order by num_queries desc, path
    limit $most_hints
),

keys as (
    select
        path,
        split_part(pair, '=', 1) as key,
        count(distinct pair) as num_values
    from (select path, unnest(pairs) as pair from queries semi join paths using (path))
    where regexp_full_match(pair, '[A-Za-z_][A-Za-z0-9_.\[\]-]{0,29}=.*')
    group by path, key
)

select
    path,
    num_queries,
    list(key order by num_values desc, key)[:3] as keys
from paths
inner join keys using (path)
group by path, num_queries
order by num_queries desc, path
