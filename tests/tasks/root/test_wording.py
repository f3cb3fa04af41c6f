"""Numbers as words."""

import pytest

from surf2vec.tasks.root.wording import (
    as_markdown,
    brief,
    compact,
    count,
    duration,
    score,
    several,
    share,
    shown,
    times,
)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (count(1234567), "1,234,567"),
        (count(None), "–"),
        (several(1, "commit"), "1 commit"),
        (several(3000, "commit"), "3,000 commits"),
        (compact(9_999_999), "9,999,999"),
        (compact(20_000_000), "20.0 M"),
        (compact(1_250_000_000), "1.25 bn"),
        (brief(0), "0"),
        (brief(912_400), "912 k"),
        (brief(1_250_000), "1.25 M"),
        (brief(999_950), "1 M"),
        (duration(0), "0.0 s"),
        (duration(0.42), "0.42 s"),
        (duration(12.34), "12.3 s"),
        (duration(59.96), "1 min 00 s"),
        (duration(200), "3 min 20 s"),
        (duration(7500), "2 h 05 min"),
        (duration(97200), "1 d 3 h"),
        (duration(None), "–"),
        (share(0), "0.0 %"),
        (share(0.00001), "< 0.01 %"),
        (share(0.0003), "0.03 %"),
        (share(0.1234), "12.3 %"),
        (score(0.1234), "0.123"),
        (score(0.00123), "0.0012"),
        (times(2.44), "2.4 ×"),
        (times(0.456), "0.46 ×"),
        (times(1234.5), "1,234 ×"),
        (
            shown("\x1b[31mred\x07\u202e\x9b\x7f\nok \ud800 \\ Ärger 🐄"),
            r"\x1b[31mred\x07\u202e\x9b\x7f\nok \ud800 \ Ärger 🐄",
        ),
        (as_markdown("a|b\n[x](y) <b>*&amp;`"), r"a\|b\\n\[x\]\(y\) &lt;b&gt;\*\&amp;\`"),
    ],
)
def test_words(said: str, expected: str) -> None:
    assert said == expected
