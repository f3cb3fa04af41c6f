"""The requests of a Combined log, written as other servers write them."""

import gzip
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

LINE = re.compile(
    r'(\S+) - - \[([^\]]+)\] "(\S+) (.*?)( HTTP/[0-9.]+)?" (\d{3}) \S+ "(?:[^"\\]|\\.)*" "((?:[^"\\]|\\.)*)"'
)


@dataclass(frozen=True)
class Request:
    """A request; the agent is as a Combined log has it, with its escapes."""

    user: str
    at: datetime
    method: str
    url: str
    status: str
    agent: str

    @property
    def line(self) -> str:
        return f"{self.method} {self.url} HTTP/1.1"

    @property
    def full_line(self) -> str:
        """With the URL of a page that is a path."""
        return f"{self.method} {self.full_url} HTTP/1.1"

    @property
    def full_url(self) -> str:
        return f"http://shop.example:80{self.url}" if self.url.startswith("/") else self.url

    @property
    def seconds(self) -> int:
        return int(self.at.timestamp())

    @property
    def clf(self) -> str:
        return f"{self.at:%d/%b/%Y:%H:%M:%S} +0000"

    @property
    def iso(self) -> str:
        return f"{self.at:%Y-%m-%dT%H:%M:%S}"

    @property
    def w3c(self) -> list[str]:
        """date, time, c-ip, cs-method, cs-uri-stem, cs-uri-query, sc-status, cs(User-Agent)."""
        stem, _, query = self.url.replace(" ", "+").partition("?")
        agent = self.agent.replace(" ", "+") or "-"
        return [
            f"{self.at:%Y-%m-%d}",
            f"{self.at:%H:%M:%S}",
            self.user,
            self.method,
            stem,
            query or "-",
            self.status,
            agent,
        ]


def read_requests(path: Path, most: int | None = None) -> list[Request]:
    """The requests of a gzipped Combined log that a plain regular expression finds."""
    lines = gzip.decompress(path.read_bytes()).decode().split("\n")[:most]
    found = [match.groups() for match in map(LINE.match, lines) if match]
    return [
        Request(user, datetime.strptime(at, "%d/%b/%Y:%H:%M:%S %z").astimezone(UTC), method, url, status, agent)
        for user, at, method, url, _, status, agent in found
    ]


def combined(request: Request) -> str:
    return f'{request.user} - - [{request.clf}] "{request.line}" {request.status} 5 "-" "{request.agent}"'


def write_json(make: Callable[[Request], dict[str, object]]) -> Callable[[Request], str]:
    return lambda request: json.dumps(make(request))


def nginx(time: Callable[[Request], dict[str, object]]) -> Callable[[Request], str]:
    return write_json(
        lambda r: {
            "remote_addr": r.user, "request_method": r.method, "request_uri": r.url, "status": r.status,
            "http_user_agent": r.agent, "host": "shop.example",
        } | time(r)
    )  # fmt: skip


HEADS = {
    "iis": "#Software: IIS\n#Fields: date time c-ip cs-method cs-uri-stem cs-uri-query sc-status cs(User-Agent)\n",
    "cloudfront": "#Version: 1.0\n#Fields: date time c-ip cs-method cs-uri-stem cs-uri-query sc-status cs(User-Agent)\n",
}
BALANCED = "10.0.0.1:80 0.0 0.1 0.0 {0} {0} 34 366"
WRITERS: dict[str, Callable[[Request], str]] = {
    "combined": combined,
    "vhost": lambda r: f"shop.example:80 {combined(r)}",
    "syslog": lambda r: f"Nov  2 09:00:00 web nginx[811]: {combined(r)}",
    "iis": lambda r: " ".join(r.w3c),
    "cloudfront": lambda r: "\t".join(r.w3c),
    "alb": lambda r: (
        f"http {r.iso}.123456Z app/x/1 {r.user}:47 {BALANCED.format(r.status)} "
        f'"{r.full_line}" "{r.agent}" - - arn "Root=1" "-" "-" 0 {r.iso}Z "forward" "-" "-" "-" "200" "-" "-"'
    ),
    "elb": lambda r: f'{r.iso}.1Z elb {r.user}:47 {BALANCED.format(r.status)} "{r.full_line}" "{r.agent}" - -',
    "s3": lambda r: (
        f'79a5 bucket [{r.clf}] {r.user} - 3E57 REST.GET.OBJECT key "{r.line}" {r.status} - 26 34 70 10 "-" "{r.agent}" - -'
    ),
    "squid": lambda r: f"{r.seconds}.000     92 {r.user} TCP_MISS/{r.status} 5 {r.method} {r.full_url} - DIRECT/- text/html",
    "haproxy": lambda r: (
        f"Nov  2 09:00:00 lb haproxy[14]: {r.user}:33 [{r.clf.split()[0]}.655] in shop/web 1/0/3/6/9 {r.status} 27 - - ---- "
        f'1/1/1/1/0 0/0 "{r.line}"'
    ),
    "nginx time_iso8601": nginx(lambda r: {"time_iso8601": f"{r.iso}+00:00"}),
    "nginx time_local": nginx(lambda r: {"time_local": r.clf}),
    "nginx msec": nginx(lambda r: {"msec": f"{r.seconds}.000"}),
    "nginx request": write_json(
        lambda r: {
            "time_local": r.clf, "remote_addr": r.user, "request": r.line, "status": r.status, "http_user_agent": r.agent,
        }
    ),
    "traefik": write_json(
        lambda r: {
            "ClientHost": r.user, "ClientAddr": f"{r.user}:51", "RequestMethod": r.method, "RequestPath": r.url,
            "DownstreamStatus": int(r.status), "request_User-Agent": r.agent, "StartUTC": f"{r.iso}.123456789Z", "time": "-",
        }
    ),
    "caddy": write_json(
        lambda r: {
            "ts": r.seconds + 0.25, "status": int(r.status),
            "request": {
                "remote_ip": r.user, "method": r.method, "uri": r.url, "headers": {"User-Agent": [r.agent]},
            },
        }
    ),
    "cloudflare": write_json(
        lambda r: {
            "ClientIP": r.user, "ClientRequestMethod": r.method, "ClientRequestURI": r.url, "ClientRequestUserAgent": r.agent,
            "EdgeResponseStatus": int(r.status), "EdgeStartTimestamp": r.seconds * 10**9,
        }
    ),
}  # fmt: skip
WITHOUT_AGENT = ("squid", "haproxy")


def write_requests(path: Path, name: str, requests: Iterable[Request]) -> Path:
    """Write a log as the server of this name does."""
    path.write_text(HEADS.get(name, "") + "".join(f"{WRITERS[name](request)}\n" for request in requests))
    return path
