"""Where the stack's passwords come from, and when it refuses to start without."""

from pathlib import Path

import pytest

from surf2vec.infra.passwords import NAMES, open_passwords, variable
from surf2vec.trainer.errors import ConfigError


def test_a_new_stack_gets_its_own_passwords_and_keeps_them(tmp_path: Path) -> None:
    file = tmp_path / "passwords.json"
    made = open_passwords(file, has_data=False)
    assert set(made) == set(NAMES)
    assert len(set(made.values())) == len(NAMES)
    assert file.stat().st_mode & 0o777 == 0o600
    assert open_passwords(file, has_data=True) == made
    assert open_passwords(tmp_path / "other.json", has_data=False) != made


def test_the_environment_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SURF2VEC_MLFLOW_PASSWORD", "a-long-enough-one")
    assert open_passwords(tmp_path / "passwords.json", has_data=False)["mlflow"] == "a-long-enough-one"


def test_data_without_passwords_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"lacks the passwords of postgres, .* set SURF2VEC_POSTGRES_PASSWORD"):
        open_passwords(tmp_path / "passwords.json", has_data=True)
    assert not (tmp_path / "passwords.json").exists()
    for name in NAMES:
        monkeypatch.setenv(variable(name), f"{name}-from-outside")
    assert open_passwords(tmp_path / "passwords.json", has_data=True)["s3_key"] == "s3_key-from-outside"


@pytest.mark.parametrize("word", ["short", "with a space in it", "slashes/are/not/for/urls", "accentué-et-assez-long"])
def test_what_is_no_password_for_a_url_is_refused_and_not_shown(
    word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SURF2VEC_PREFECT_PASSWORD", word)
    with pytest.raises(ConfigError, match=r"SURF2VEC_PREFECT_PASSWORD has \d+ characters") as caught:
        open_passwords(tmp_path / "passwords.json", has_data=False)
    assert word not in str(caught.value)
