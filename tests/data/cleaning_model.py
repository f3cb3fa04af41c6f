"""A model of cleaning in plain Python, a user at a time, and the comparison of a corpus with it."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from surf2vec.tasks.config import IngestConfig
from surf2vec.trainer.store.tokens import Corpus, held_out_keys
from surf2vec.trainer.system.files import verify_file
from tests.data.corpora import held_out_position, user_hash
from tests.data.event_files import Event


def read_vocabulary(corpus: Corpus) -> list[dict[str, Any]]:
    return pq.read_table(corpus.folder / "vocabulary.parquet").to_pylist()


def read_urls(corpus: Corpus) -> dict[str | None, list[str]]:
    """What each user saw, in the order of the tokens; the users in the order of the rows."""
    urls = [item["url"] for item in read_vocabulary(corpus)]
    seen = {}
    for partition in range(corpus.num_partitions):
        histories = corpus.read(partition)
        for row, user_id in enumerate(corpus.read_ids(partition).to_pylist()):
            tokens = histories.tokens[histories.offsets[row] : histories.offsets[row + 1]]
            seen[user_id] = [urls[token] for token in tokens]
    return seen


@dataclass
class Model:
    """The rules of cleaning in plain Python, a user at a time."""

    vocabulary: list[dict[str, Any]] = field(default_factory=list)
    users: dict[str, list[str]] = field(default_factory=dict)
    funnel: list[int] = field(default_factory=list)


def clean_plainly(events: list[Event], config: IngestConfig, base_items: Sequence[str] = ()) -> Model:
    """What the rules make of these events; the items of a base come first."""
    by_user: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        by_user[event.user_id].append(event)
    by_user = {user: sorted(by_user[user], key=lambda event: event.order) for user in by_user}
    days = {user: Counter(event.day for event in mine if event.day != "undated") for user, mine in by_user.items()}
    people = {
        user: mine for user, mine in by_user.items() if max(days[user].values(), default=0) <= config.max_day_events
    }
    urls = {user: [event.url for event in mine] for user, mine in people.items()}
    num_people = sum(map(len, urls.values()))
    urls = {u: [url for i, url in enumerate(mine) if i == 0 or mine[i - 1] != url] for u, mine in urls.items()}
    counts = Counter(url for mine in urls.values() for url in mine)
    readers = Counter(url for mine in urls.values() for url in set(mine))
    new = [u for u in counts if counts[u] >= config.min_item_events and readers[u] >= config.min_item_users]
    kept = [*base_items, *sorted(set(new) - set(base_items), key=lambda url: (-counts[url], url.encode()))]
    is_kept = set(kept)
    known = {user: [url for url in mine if url in is_kept] for user, mine in urls.items()}
    enough = {user: mine for user, mine in known.items() if len(mine) >= config.min_user_events}
    newest = {user: mine[-config.max_user_events :] for user, mine in enough.items()}
    stages = [events, num_people, urls, known, enough, newest]
    numbers = [s if isinstance(s, int) else len(s) if s is events else sum(map(len, s.values())) for s in stages]
    numbers += [len({event.url for event in events}), len(kept), len(by_user), len(newest)]
    items = [{"item_ix": i, "url": u, "count": counts[u], "users": readers[u]} for i, u in enumerate(kept)]
    return Model(items, newest, numbers)


def check_against(corpus: Corpus, model: Model, partitions: int, max_users: int) -> None:
    assert read_vocabulary(corpus) == model.vocabulary
    assert read_urls(corpus) == model.users
    ix = {item["url"]: item["item_ix"] for item in model.vocabulary}
    keys, chosen = [], 0
    for partition in range(partitions):
        ids = sorted((user for user in model.users if user_hash(user) % partitions == partition), key=str.encode)
        assert corpus.read_ids(partition).to_pylist() == ids
        histories = corpus.read(partition)
        assert histories.hashes.tolist() == [user_hash(user) for user in ids]
        places = np.load(corpus.folder / f"p{partition:05d}.held_out.npy", mmap_mode="r", allow_pickle=False)
        assert places.tolist() == [held_out_position([ix[url] for url in model.users[user]]) for user in ids]
        assert (places.dtype, histories.tokens.dtype, histories.offsets.dtype) == (np.int32, np.int32, np.int64)
        keys += held_out_keys(histories.hashes[places >= 0]).tolist()
        chosen += int(histories.is_held_out.sum())
    manifest = corpus.manifest
    assert manifest["num_held_out"] == chosen == min(max_users, len(keys))
    assert sum(key <= manifest["held_out_key_max"] for key in keys) == chosen
    assert [number for _, number in manifest["funnel"]] == model.funnel
    assert manifest["num_users"] == sum(manifest["users"]) == len(model.users)
    assert (manifest["base"], manifest["holes"]) == (None, [0] * partitions)
    assert manifest["num_tokens"] == sum(manifest["tokens"]) == sum(map(len, model.users.values()))
    assert manifest["num_items"] == len(model.vocabulary)
    for name, about in manifest["files"].items():
        verify_file(corpus.folder / name, about)
    assert {path.name for path in corpus.folder.iterdir()} == {"manifest.json", *manifest["files"]}
