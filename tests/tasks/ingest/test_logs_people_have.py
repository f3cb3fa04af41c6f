"""Small logs as people have them: 24 visits of 6 people. Requests are also a robot's, a POST, an error, an asset."""

import json
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from surf2vec.trainer.errors import InputError
from tests.roots.ingest import read_rejects, take_in

START = datetime(2026, 11, 2, 9, tzinfo=UTC)
VISITS = [(f"192.0.2.{n % 6 + 1}", f"/p/{n // 6}", START + timedelta(minutes=n)) for n in range(24)]
BROWSER, ROBOT = "Mozilla/5.0 (X11; Linux x86_64) Firefox/140.0", "Googlebot/2.1 (+http://www.google.com/bot.html)"
REQUESTS = [(*visit, "GET", 200, BROWSER) for visit in VISITS] + [
    ("198.51.100.9", "/p/0", START, "GET", 200, ROBOT), ("192.0.2.1", "/form", START, "POST", 200, BROWSER),
    ("192.0.2.2", "/gone", START, "GET", 404, BROWSER), ("192.0.2.3", "/a/style.css", START, "GET", 200, BROWSER),
]  # fmt: skip
NO_VISITS = {"crawler": 1, "not a GET request": 1, "status 400 or above": 1, "static asset": 1}
POSITIONS = {"columns": {"user": "1", "url": "2", "time": "3"}}


def lines(write: Callable[[str, str, datetime], str], head: str = "user_id,url,ts") -> str:
    return (f"{head}\n" if head else "") + "".join(f"{write(*visit)}\n" for visit in VISITS)


def csv(separator: str = ",", head: str = "user_id,url,ts", time: str = "%Y-%m-%dT%H:%M:%SZ") -> str:
    return lines(lambda user, page, at: separator.join((user, page, f"{at:{time}}")), head)


def records(write: Callable[[str, str, datetime], dict[str, Any]]) -> str:
    return lines(lambda *visit: json.dumps(write(*visit)), "")


def take(folder: Path, text: str, name: str = "a.csv", **settings: Any) -> dict[str, Any]:
    (folder / name).write_text(text)
    return take_in(folder / "root", folder / name, **settings)


FIELDS = "#Fields: date time cs-method cs-uri-stem c-ip cs(User-Agent) sc-status"


def w3c(*between: str, requests: Iterable[tuple[str, str, datetime, str, int, str]] = tuple(REQUESTS)) -> str:
    """A log of IIS that is started again after eleven lines."""
    found = [
        f"{at:%Y-%m-%d %H:%M:%S} {method} {page} {user} {agent.replace(' ', '+')} {status}"
        for user, page, at, method, status, agent in requests
    ]
    return "\n".join(["#Software: IIS 10.0", FIELDS, *found[:11], *between, *found[11:], ""])


SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "sep=": ("sep=;\n" + csv(";", "user_id;url;ts"), {}),
    "comments": ("# exported by x\n# at y\n" + csv(), {}),
    "blanks": (csv(", ", "user_id, url, ts"), {}),
    "quotes after blanks": (lines(lambda u, p, at: f'"{u}", "{p}", "{at:%Y-%m-%d %H:%M}"', '"user_id", "url", "ts"'), {}),
    "names of rows, pandas": (lines(lambda u, p, at: f"{at.minute},{u},{p},{at:%Y-%m-%d}", ",user_id,url,ts"), {}),
    "names of rows, R": (
        lines(lambda u, p, at: f'"{at.minute}","{u}","{p}","{at:%Y-%m-%d}"', '"user_id","url","ts"'),
        {},
    ),
    "|": (csv("|", "user_id|url|ts"), {}),
    "::": (csv("::", "user_id::url::ts", "%Y-%m-%d"), {}),
    "positions": (csv(head=""), POSITIONS),
    "byte order mark": ("\ufeff" + csv(), {}),
    "two columns of time": (
        csv(time="%Y-%m-%d,%H:%M:%S", head="user_id,url,date,time"),
        {"columns": {"date": "date", "time": "time"}},
    ),
    "object": (
        records(lambda u, p, at: {"who": {"id": u}, "c": {"page": {"url": p}}, "at": {"ts": at.isoformat()}}),
        {"columns": {"user": "who.id", "url": "c.page.url", "time": "at.ts"}},
    ),
} | {
    time: (csv(time=f'"{time}"', head="user_id,url,ts"), {})
    for time in (
        "%Y%m%d%H%M%S", "%Y-%m-%d %H:%M:%S.123 +0000", "%Y-%m-%d %H:%M:%S,123", "%a, %d %b %Y %H:%M:%S +0000",
        "%a, %d %b %Y %H:%M:%S GMT", "%Y-%m-%d %H:%M:%S.123456 UTC", "%Y-%m-%d %H:%M:%S Europe/Berlin",
        "[%d/%b/%Y:%H:%M:%S +0000]", "%Y-%m-%dT%H:%M:%S+0200", "%Y-%m-%d %H:%M:%S.000000000 -0800",
    )
}  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
def test_shapes_of_tables(tmp_path: Path, shape: str) -> None:
    text, settings = SHAPES[shape]
    record = take(tmp_path, text, "a.jsonl" if shape == "object" else "a.csv", **settings)
    assert (record["lines"], record["events"], record["rejected"], record["left_out"]) == (24, 24, {}, {})


@pytest.mark.parametrize(
    ("text", "settings", "left_out"),
    [
        (w3c(), {}, NO_VISITS),
        (w3c("#Software: IIS 10.0", "#Date: 2026-11-02", FIELDS), {}, NO_VISITS),
        (
            "user_id,url,ts,status,user_agent\n" + "".join(
                f"{u},{m} {p} HTTP/1.1,{at:%Y-%m-%d %H:%M},{s},{a}\n" for u, p, at, m, s, a in REQUESTS),
            {},
            NO_VISITS,
        ),
        (
            "user_id,url,ts\n" + "".join(f"{'N/A' if n % 2 else u},{p},{at:%Y-%m-%d %H:%M}\n" for n, (u, p, at) in enumerate(
                [visit for visit in VISITS for _ in "ab"])),
            {"max_reject_ratio": 1},
            {"no user": 24},
        ),
        (
            "user_id,url,ts\n" + "".join(f"{u},{page},{at:%Y-%m-%d %H:%M}\n" for u, p, at in VISITS for page in (p, "")),
            {},
            {"no page": 24},
        ),
    ],
    ids=["w3c", "w3c started again", "request lines", "placeholders", "without a page"],
)  # fmt: skip
def test_lines_that_are_no_visits_are_left_out(
    tmp_path: Path, text: str, settings: dict[str, Any], left_out: dict[str, int]
) -> None:
    record = take(tmp_path, text, "a.log", **settings)
    assert (record["events"], record["left_out"], record["rejected"]) == (24, left_out, {})


def test_other_fields_later_are_refused_with_their_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"\b14\b"):
        take(tmp_path, w3c(FIELDS + " time-taken"), "a.log")


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        (csv(head=""), "a.csv", r"ingest\.columns\.user=1"),
        (records(lambda u, p, at: {"user_id": {"id": u}, "url": p, "ts": at.isoformat()}), "a.jsonl", r"'user_id\.id'"),
        (
            records(lambda u, p, at: {"user_id": u, "url": p, "ts": {"$date": at.isoformat()}}),
            "a.jsonl",
            r"'ts\.\$date'",
        ),
        (csv(head="session_id,product_url,visited"), "a.csv", "name them with"),
        (csv(head="userid,page,timestamp"), "a.csv", r"perhaps --set ingest\.columns\.user=userid"),
    ],
)
def test_what_is_refused_says_what_to_do(tmp_path: Path, text: str, name: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        take(tmp_path, text, name)
    assert "192.0.2.1" not in str(caught.value)


@pytest.mark.parametrize(
    "write",
    [
        lambda event, u, p, at: {
            "event_timestamp": str(int(at.timestamp() * 1e6)), "event_name": event, "user_pseudo_id": f"{u}.17",
            "event_params": [
                {"key": "ga_session_id", "value": {"int_value": "1793610000"}},
                {"key": "page_location", "value": {"string_value": f"https://shop.example{p}"}},
            ],
        },
        lambda event, u, p, at: {
            "type": event.removesuffix("_view"), "anonymousId": u, "userId": None, "timestamp": at.isoformat(),
            "context": {"page": {"url": p}}, "properties": {"url": p},
        },
        lambda event, u, p, at: {
            "event": event.replace("page_view", "$pageview"), "distinct_id": u, "properties": {"$current_url": p},
            "timestamp": at.isoformat(),
        },
        lambda event, u, p, at: {
            "event": event, "domain_userid": u, "page_url": p, "collector_tstamp": f"{at:%Y-%m-%d %H:%M:%S.123}",
        },
    ],
    ids=["GA4", "Segment", "PostHog", "Snowplow"],
)  # fmt: skip
def test_other_events_than_page_views_are_left_out(tmp_path: Path, write: Callable[..., dict[str, Any]]) -> None:
    text = "".join(records(lambda *visit, event=event: write(event, *visit)) for event in ("page_view", "scroll"))
    record = take(tmp_path, text, "a.json")
    assert (record["events"], record["left_out"], record["rejected"]) == (24, {"not a page view": 24}, {})
    assert read_rejects(tmp_path / "root") == []
