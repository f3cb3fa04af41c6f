"""The containers: the file is one that docker compose takes, nothing floats, nothing has a default password."""

import os
import re
import shutil
import subprocess
import tomllib
from importlib import import_module

import pytest
import yaml
from packaging.version import Version

from surf2vec.infra.stack import CODE, LEASES

FILES = ("infra/compose.yaml", "infra/compose.gpu.yaml")
SERVICES = yaml.safe_load((CODE / FILES[0]).read_text())["services"]
NEEDED = sorted(set(re.findall(r"\$\{(\w+):\?", (CODE / FILES[0]).read_text())))


def find_compose() -> list[str] | None:
    """The command of docker compose: the plugin, else the program of its own that Debian has."""
    if shutil.which("docker") and subprocess.run(["docker", "compose", "version"], capture_output=True).returncode == 0:
        return ["docker", "compose"]
    return ["docker-compose"] if shutil.which("docker-compose") else None


def check(command: list[str], files: tuple[str, ...], given: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    environment = {name: value for name, value in os.environ.items() if name not in NEEDED} | given
    options = [option for file in files for option in ("-f", file)]
    return subprocess.run(
        [*command, *options, "config"], cwd=CODE, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.slow
def test_docker_compose_takes_it_and_only_with_passwords() -> None:
    command = find_compose()
    if command is None:
        pytest.skip("neither docker compose nor docker-compose is installed")
    given = {name: f"given-{name.lower()}" for name in NEEDED} | {"SURF2VEC_LOGS_FOLDER": "/var/log/pages"}
    for files in (FILES[:1], FILES):
        done = check(command, files, given)
        assert done.returncode == 0, done.stderr
        assert "given-surf2vec_postgres_password" in done.stdout
    for name in NEEDED:
        done = check(command, FILES, given | {name: ""})
        assert done.returncode != 0, name


def test_images_are_pinned_and_servers_have_health_checks() -> None:
    images = {service["image"] for service in SERVICES.values()}
    first = re.findall(r"^FROM (\S+)", (CODE / "infra" / "Dockerfile").read_text(), re.MULTILINE)
    for image in [*images, *first]:
        assert re.search(r":[\w.-]*\d+\.\d+|:RELEASE\.20", image), image
    no_servers = {"bucket", "deploy", "watcher"}
    assert [name for name, one in SERVICES.items() if name not in no_servers and "healthcheck" not in one] == []


def find_old(versions: dict[str, str]) -> list[str]:
    """What is older than an advisory of advisories.txt says, or has ended."""
    lines = [line.split(None, 2) for line in (CODE / "tests/infra/advisories.txt").read_text().splitlines()]
    return [
        f"{name} {versions[name]}: {why}"
        for name, oldest, why in lines
        if name in versions and (oldest == "ended" or Version(versions[name]) < Version(oldest))
    ]


def test_no_image_and_no_package_is_older_than_a_known_advisory() -> None:
    assert [one.split(":")[0] for one in find_old({"postgres": "15.14", "minio/minio": "2025", "torch": "2.6.0"})] == [
        "postgres 15.14", "minio/minio 2025",
    ]  # fmt: skip
    dockerfile = (CODE / "infra" / "Dockerfile").read_text()
    images = [service["image"] for service in SERVICES.values()] + re.findall(r"^FROM (\S+)", dockerfile, re.MULTILINE)
    versions = {name: tag.split("-")[0] for name, _, tag in (image.partition(":") for image in images)}
    assert find_old(versions) == []
    pins = re.findall(r"^([\w.-]+)==([\w.]+)", (CODE / "constraints.txt").read_text(), re.MULTILINE)
    assert len(pins) > 200
    assert [old for name, version in pins for old in find_old({name.lower(): version})] == []


def test_what_the_image_installs_is_pinned_with_digests() -> None:
    """`make hashes` was called since constraints.txt and the dependencies changed."""
    blocks = re.split(r"\n(?=\S)", (CODE / "infra" / "requirements.txt").read_text())
    pins = {found[2]: (found[1], block) for block in blocks if (found := re.match(r"(([\w.-]+)==[\w.]+)", block))}
    assert all("--hash=sha256:" in block for _, block in pins.values())
    constraints = (CODE / "constraints.txt").read_text()
    assert [pin for pin, _ in pins.values() if not re.search(rf"^{re.escape(pin)}\b", constraints, re.MULTILINE)] == []
    project = tomllib.loads((CODE / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["stack"]]
    assert {re.split(r"[^\w.-]", one)[0] for one in wanted} <= pins.keys()


def test_ports_are_loopbacks_unless_told() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert len(ports) == 2
    assert all(port.startswith("${SURF2VEC_BIND:-127.0.0.1}:") for port in ports)
    secrets = re.findall(r"\$\{SURF2VEC_\w*PASSWORD[^}]*\}", (CODE / FILES[0]).read_text())
    assert secrets
    assert all(":?" in secret for secret in secrets)


def test_old_runs_leave_prefects_database() -> None:
    assert SERVICES["prefect"]["environment"]["PREFECT_SERVER_SERVICES_DB_VACUUM_ENABLED"] == "events,flow_runs"
    assert (
        '"PREFECT_SERVER_SERVICES_DB_VACUUM_ENABLED": "events,flow_runs"' in (CODE / "infra" / "stack.py").read_text()
    )


def test_a_slot_outlasts_the_container_of_the_server() -> None:
    """Prefect keeps the leases in its home, which is a volume."""
    from prefect.server.concurrency.lease_storage import ConcurrencyLeaseStorageModule

    server = SERVICES["prefect"]
    assert server["environment"]["PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE"] == LEASES
    assert isinstance(import_module(LEASES), ConcurrencyLeaseStorageModule)
    assert "prefect:/home/surf2vec/.prefect" in server["volumes"]
