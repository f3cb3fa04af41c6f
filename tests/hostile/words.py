"""The pieces of hostile input."""

MARKUP = [
    "<script>alert(1)</script>", "<img src=x onerror=alert(2)>", '"onmouseover="alert(3)', "</td></table><h1>out",
    "</style></svg><b>out", "{{7*7}}", "{% raw %}", "${7*7}", "[click](http://evil.example)", "![x](http://evil.example/x.png)",
    "**bold** `code` | cell |", "# title", "javascript:alert(4)", "<!--", "]]>", "&lt;b&gt;", "'; drop table events; --",
]  # fmt: skip
FORMULAS = ["=1+1", '=HYPERLINK("http://evil.example")', "@SUM(A1:A9)", "+1-1|cmd", "-2+3|calc", "=cmd|'/C calc'!A0"]
CONTROLS = [
    "\x1b[31mred\x1b[0m", "bell\x07", "\u202egnp.exe", "zero\u200bwidth", "\ufeffmark", "del\x7f", "\x85next", "\u2028line",
]  # fmt: skip
ODD = [
    "é", "日本", "🦊", "a,b", 'a"b', "a;b|c", "%s%n", "NaN", "null", "1.0", "1e5", "0x7f", "-", "..", "../../etc/passwd", 
    "~", "*", "(email)", " lead", "trail ",
]  # fmt: skip
WORDS = [*MARKUP, *FORMULAS, *CONTROLS, *ODD]
PLAIN_USERS = [f"u{number}" for number in range(9)]
PLAIN_PAGES = [
    "/",
    "/a",
    "/b",
    "/c/d",
    "/c/e.html",
    "https://x.example/a",
    "https://www.x.example/a/",
    "http://y.example:80/z?q=1#f",
]
HASH = "5f4dcc3b5aa765d61d8327deb882cf99"
NOT_TIMES = ["never", "yesterday", "2020-13-45T00:00:00Z", "=NOW()", "<b>", "2020-07-01T25:00:00Z", " "]
