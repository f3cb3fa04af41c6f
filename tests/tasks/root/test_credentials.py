"""Passwords in URIs are masked wherever they stand; all else stays as it is."""

import pytest

from surf2vec.tasks.root.credentials import mask_credentials, mask_values


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("http://me:hunter2@mlflow:5000/x", "http://***@mlflow:5000/x"),
        ("failed: postgresql://me:p%40ss@db/mlflow (twice: http://a@b)", "failed: postgresql://***@db/mlflow (twice: http://***@b)"),
        ("postgresql://me:one/two@three@db/x and more", "postgresql://***@db/x and more"),
        ("sqlite:////srv/mlflow.db", "sqlite:////srv/mlflow.db"),
        ("models:/surf2vec-users@champion", "models:/surf2vec-users@champion"),
        ("https://shop.example/@handle", "https://shop.example/@handle"),
    ],
)  # fmt: skip
def test_credentials_are_masked(text: str, masked: str) -> None:
    assert mask_credentials(text) == masked
    assert mask_values({"a": [text, 1, None], "b": {"c": text}}) == {"a": [masked, 1, None], "b": {"c": masked}}


def test_the_passwords_of_the_environment_are_masked_wherever_they_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPASSWORD", "hunter2")
    monkeypatch.setenv("QDRANT_API_KEY", "key")  # too short: it would be found in other words
    assert (
        mask_credentials("fe_sendauth: hunter2 was refused, as was the key")
        == "fe_sendauth: *** was refused, as was the key"
    )
