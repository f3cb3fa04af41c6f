"""Numbers as words."""

import pytest

from surf2vec.tasks.root.wording import (
    as_markdown,
    format_compact,
    format_count,
    format_counted,
    format_duration,
    format_percent,
    format_ratio,
    format_score,
    format_short,
    format_value,
    shown,
)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (format_count(1234567), "1,234,567"),
        (format_count(None), "–"),
        (format_counted(1, "commit"), "1 commit"),
        (format_counted(3000, "commit"), "3,000 commits"),
        (format_compact(9_999_999), "9,999,999"),
        (format_compact(20_000_000), "20.0 M"),
        (format_compact(1_250_000_000), "1.25 bn"),
        (format_short(0), "0"),
        (format_short(912_400), "912 k"),
        (format_short(1_250_000), "1.25 M"),
        (format_short(999_950), "1 M"),
        (format_duration(0), "0.0 s"),
        (format_duration(0.42), "0.42 s"),
        (format_duration(12.34), "12.3 s"),
        (format_duration(59.96), "1 min 00 s"),
        (format_duration(200), "3 min 20 s"),
        (format_duration(7500), "2 h 05 min"),
        (format_duration(97200), "1 d 3 h"),
        (format_duration(None), "–"),
        (format_percent(0), "0.0 %"),
        (format_percent(0.00001), "< 0.01 %"),
        (format_percent(0.0003), "0.03 %"),
        (format_percent(0.1234), "12.3 %"),
        (format_score(0.1234), "0.123"),
        (format_score(0.00123), "0.0012"),
        (format_value("size_bytes", 2_500), "2.5 kB"),
        (format_value("epochs", 12_000), "12,000"),
        (format_value("alpha", 0.025), "0.025"),
        (format_value("is_on", True), "yes"),
        (format_value("stores", ("a", "https://me:hunter2@b.example")), "a, https://***@b.example"),
        (format_value("none", None), "–"),
        (format_ratio(2.44), "2.4 ×"),
        (format_ratio(0.456), "0.46 ×"),
        (format_ratio(1234.5), "1,234 ×"),
        (
            shown("\x1b[31mred\x07\u202e\x9b\x7f\nok \ud800 \\ Ärger 🐄"),
            r"\x1b[31mred\x07\u202e\x9b\x7f\nok \ud800 \ Ärger 🐄",
        ),
        (as_markdown("a|b\n[x](y) <b>*&amp;`"), r"a\|b\\n\[x\]\(y\) &lt;b&gt;\*\&amp;\`"),
    ],
)
def test_words(said: str, expected: str) -> None:
    assert said == expected
