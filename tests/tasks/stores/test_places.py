"""What a URL of a store means, and what is said when it cannot be used."""

from pathlib import Path

import psycopg2
import pytest

import surf2vec
from surf2vec.tasks.stores import places
from surf2vec.tasks.stores.places import open_store, parse_place
from surf2vec.trainer.errors import ConfigError, UnavailableError


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("mysql://me@host/db", r"'mysql://\*\*\*@host/db' is not the URL of a store: write postgresql://"),
        ("vectors", "'vectors' is not the URL of a store: write postgresql://USER@HOST/DB, lancedb:///PATH"),
        ("postgresql://me:hunter2@host/db", "has a password.*PGPASSWORD"),
        ("postgresql://me@host/db?password=hunter2", "has a password.*PGPASSWORD"),
        ("postgresql://me:hunter2/x@host/db", "has a password.*PGPASSWORD"),
        ("postgresql://me:1234/hunter2@host/db", "has a password.*PGPASSWORD"),
        ("postgresql://me:1234?hunter2@host/db", "has a password.*PGPASSWORD"),
        ("postgresql://me:1234#hunter2@host/db", "has a password.*PGPASSWORD"),
        ("postgresql://me@host/db?sslpassword=hunter2", "has a password.*PGPASSWORD"),
        ("postgresql://host:hunter2/db", "has a password.*PGPASSWORD"),
        ("mysql://me:one/hunter2@host/db", "is not the URL of a store"),
        ("qdrant://hunter2@host:6333", "has a password.*QDRANT_API_KEY"),
        ("lancedb://vectors", "names no folder: write lancedb:///PATH, with three slashes"),
        ("parquet://", "names no folder: write parquet:///PATH"),
        ("parquet:///data?prefix=Drop;", "prefix='Drop;' cannot begin the name of a table"),
        (
            "qdrant://host:6333?https=yes",
            "the option https .*, or its value, is unknown: write prefix=NAME_, https=true",
        ),
        ("qdrant://host:6333?api_key=hunter2", "the option api_key .* is unknown"),
        ("qdrant:///data?https=true", "the option https .* is unknown: write prefix=NAME_ only"),
        ("parquet:///data?compression=none", "the option compression .* is unknown: write prefix=NAME_ only"),
        ("qdrant://host:6333/shop", r"has a path after the host: write qdrant://HOST:6333\?prefix=NAME_"),
    ],
)
def test_a_wrong_url_is_refused_without_its_password(url: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as raised, open_store(url):
        pass
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me@db.example:5432/shop?sslmode=require&options=-c maintenance_work_mem=2GB",
        "postgresql:///shop?host=/var/run/postgresql&index=none",
        "postgresql://me@one.example:5432,two.example:5433/shop",
        "postgresql://me@[::1]:5432/shop",
        "postgresql://%2Fvar%2Frun/shop",
        "qdrant://qdrant.example:6333?https=true",
        "qdrant:///data/a folder",
    ],
)
def test_a_url_without_a_password_is_understood(url: str) -> None:
    assert parse_place(url).url == url


def test_a_password_in_a_stores_url_ends_a_call_before_anything_is_written(tmp_path: Path) -> None:
    stores = ["postgresql://me:hunter2/x@host/db"]
    with pytest.raises(ConfigError, match="has a password") as raised:
        surf2vec.run("nothing.csv", tmp_path / "root", publish__stores=stores)
    assert "hunter2" not in str(raised.value)
    assert list(tmp_path.iterdir()) == []


def test_a_place_has_names_for_readers_and_for_each_side() -> None:
    place = parse_place("postgresql://me@host/db?sslmode=require&prefix=shop_")
    assert [place.table("users"), place.table("items", "b"), place.log_table] == [
        "shop_user_vectors", "shop_item_vectors_b", "shop_surf2vec_push",
    ]  # fmt: skip
    assert place.options == {"sslmode": "require"}
    assert str(place) == "postgresql://***@host/db?sslmode=require&prefix=shop_"


@pytest.mark.parametrize("url", ["qdrant://host.example:6333", "qdrant://host.example:6333?prefix=a_"])
def test_a_key_is_not_sent_unencrypted_without_a_word(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QDRANT_API_KEY", "hunter2")
    with pytest.raises(ConfigError, match="would travel to host.example:6333 unencrypted: add the option") as raised:
        open_store(url).__enter__()
    assert "hunter2" not in str(raised.value)


def test_a_wrong_key_is_refused_by_the_server(qdrant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QDRANT_API_KEY", "wrong")
    with pytest.raises(ConfigError, match="127.0.0.1.* refuses the key: set QDRANT_API_KEY .*API key"):
        open_store(qdrant).__enter__()


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"needs qdrant_client: pip install -c constraints.txt -e '.\[qdrant\]'"):
        open_store("qdrant://host:6333").__enter__()


@pytest.mark.parametrize("url", ["postgresql://me@localhost:1/db", "qdrant://localhost:1"])
def test_a_server_that_is_away_is_named(url: str) -> None:
    with pytest.raises(UnavailableError, match=f"{url.split(':')[0]}://.*localhost:1.*run the same push again"):
        open_store(url).__enter__()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Qdrant's client leaves the file open
@pytest.mark.parametrize("scheme", ["parquet", "lancedb", "qdrant"])
def test_a_second_push_at_the_same_time_is_refused(scheme: str, tmp_path: Path) -> None:
    url = f"{scheme}://{tmp_path / 'store'}"
    with open_store(url), pytest.raises(UnavailableError, match="another"):
        open_store(url).__enter__()


@pytest.mark.slow
def test_a_password_that_is_wanted_comes_from_the_environment(postgres: str, monkeypatch: pytest.MonkeyPatch) -> None:
    connection = psycopg2.connect(postgres)
    with connection, connection.cursor() as cursor:
        cursor.execute("create role careful login password 'hunter2'; show hba_file")
        rules = Path(cursor.fetchone()[0])  # type: ignore[index]
        rules.write_text(f"local all careful scram-sha-256\n{rules.read_text()}")
        cursor.execute("select pg_reload_conf(), pg_sleep(0.5)")
    connection.close()
    url = f"{postgres.replace('postgres@', 'careful@')}&prefix=careful_"
    monkeypatch.delenv("PGPASSWORD", raising=False)
    with pytest.raises(ConfigError, match="needs a password: set PGPASSWORD"):
        open_store(url).__enter__()
    monkeypatch.setenv("PGPASSWORD", "wrong")
    with pytest.raises(ConfigError, match="refuses the user or the password"):
        open_store(url).__enter__()
    monkeypatch.setenv("PGPASSWORD", "hunter2")
    with open_store(url) as store:
        assert store.read_sides() == []
