"""The key of pseudonyms: where it comes from, and that another one, or none, is refused."""

import hashlib
import hmac
from pathlib import Path

import pytest

from surf2vec.tasks.config import IngestConfig
from surf2vec.tasks.ingest.user_key import read_user_key
from surf2vec.tasks.root.run import Root
from surf2vec.tasks.users.pseudonyms import fingerprint, keyed_digest, pseudonym
from surf2vec.trainer.errors import ConfigError
from surf2vec.trainer.system.files import read_json
from tests.roots.ingest import read_events, take_in, write_log

KEYED = IngestConfig(user_key_env="USER_KEY")


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USER_KEY", "open sesame, open")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return write_log(tmp_path / "a.csv", "Jane Doe,/a,2020-07-01", "Jane Doe,/b,2020-07-01", "John,/a,2020-07-01")


@pytest.mark.parametrize("key", [b"k", b"longer than a block of SHA-256, " * 3])
@pytest.mark.parametrize("user_id", ["ann", "", "Ω 名前"])
def test_pseudonyms_are_hmac(user_id: str, key: bytes) -> None:
    digest = hmac.new(key, user_id.encode(), hashlib.sha256)
    assert keyed_digest(user_id, key) == digest.digest()
    assert pseudonym(user_id, key) == digest.hexdigest()


def test_users_are_pseudonyms_from_the_first_step_on(tmp_path: Path, log: Path) -> None:
    take_in(tmp_path / "root", log, user_key_env="USER_KEY")
    key = read_user_key(Root(tmp_path / "root"), KEYED)
    assert key == b"open sesame, open"
    names = {pseudonym(user, key) for user in ("Jane Doe", "John")}
    assert {user for (user,) in read_events(tmp_path / "root", "user_id")} == names
    assert read_json(tmp_path / "root" / "sources.json")["user_key_fingerprint"] == fingerprint(key)


def test_neither_key_nor_ids_are_in_any_file(tmp_path: Path, log: Path) -> None:
    messages: list[str] = []
    broken = write_log(tmp_path / "b.csv", "Jane Doe,/a,whenever", "John,/b,2020-07-01")
    take_in(
        tmp_path / "root", log, broken, user_key_env="USER_KEY", max_reject_ratio=1,
        on_event=lambda name, values: messages.append(str(values)),
    )  # fmt: skip
    written = [path.read_bytes() for path in (tmp_path / "root").rglob("*") if path.is_file()]
    for secret in ("open sesame, open", "Jane Doe", "John"):
        assert not any(secret.encode() in data for data in written)
        assert not any(secret in message for message in messages)


@pytest.mark.parametrize("value", [None, ""])
def test_the_variable_must_be_there(
    tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    monkeypatch.delenv("USER_KEY") if value is None else monkeypatch.setenv("USER_KEY", value)
    with pytest.raises(ConfigError, match="environment variable USER_KEY, which is not set or empty"):
        take_in(tmp_path / "root", log, user_key_env="USER_KEY")


def test_another_key_and_none_are_refused(tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    take_in(tmp_path / "root", log, user_key_env="USER_KEY")
    with pytest.raises(ConfigError, match=r"has pseudonyms.*--set ingest\.user_key_env=NAME"):
        take_in(tmp_path / "root", log)
    take_in(tmp_path / "raw", log)
    with pytest.raises(ConfigError, match="has raw user ids"):
        take_in(tmp_path / "raw", log, user_key_env="USER_KEY")
    monkeypatch.setenv("USER_KEY", "another key, no less")
    for call in (
        lambda: take_in(tmp_path / "root", log, user_key_env="USER_KEY"),
        lambda: read_user_key(Root(tmp_path / "root"), KEYED),
    ):
        with pytest.raises(ConfigError, match="is not the one that .* was made with") as caught:
            call()
        assert "another key, no less" not in str(caught.value)


def test_a_key_that_could_be_guessed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USER_KEY", "15 bytes of key")
    with pytest.raises(
        ConfigError, match=r"the key in USER_KEY has 15 bytes, fewer than 16: .* `openssl rand -hex 32`"
    ):
        read_user_key(Root(tmp_path), KEYED)
