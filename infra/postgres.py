"""A PostgreSQL cluster of our own, by Debian's programs: its folder, its superuser, and no access without a password."""

import os
import pwd
import shutil
import subprocess
from pathlib import Path

from trainer.errors import ResourceError


def find_postgres() -> Path:
    """The folder of PostgreSQL's programs: the newest of Debian's, else the one on the path. Raises ResourceError."""
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parts[4]))
    found = str(debian[-1]) if debian else shutil.which("postgres")
    if not found:
        raise ResourceError("PostgreSQL's programs are not here: on Debian, apt-get install postgresql")
    return Path(found).parent


def make_cluster(binaries: Path, cluster: Path, account: str | None, password: str) -> None:
    """A new PostgreSQL cluster in the folder `cluster`, with one superuser, `surf2vec`, and no access without password.

    Made beside and renamed: one that was cut short is made anew.
    """
    unfinished, word = cluster.with_name(".postgres"), cluster.with_name(".postgres-password")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(mode=0o700)
    try:
        word.touch(mode=0o600)
        word.write_text(password)
        if account:
            user = pwd.getpwnam(account)
            os.chown(unfinished, user.pw_uid, user.pw_gid)
            os.chown(word, user.pw_uid, user.pw_gid)
        run(
            [str(binaries / "initdb"), "-D", str(unfinished), "-U", "surf2vec", "--auth=scram-sha-256",
             f"--pwfile={word}", "--encoding=UTF8", "--locale=C.UTF-8"], dict(os.environ), account,
        )  # fmt: skip
    finally:
        word.unlink(missing_ok=True)
    unfinished.rename(cluster)


def is_ready(binaries: Path, port: int) -> bool:
    """Whether the server at the port takes queries; for a moment after its start, and longer after a crash, it only listens."""
    asked = [str(binaries / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(port)]
    return subprocess.run(asked, check=False).returncode == 0


def run(argv: list[str], environment: dict[str, str], account: str | None = None) -> str:
    """What a program prints. Raises ResourceError with its last words when it fails."""
    done = subprocess.run(
        argv, env=environment, user=account, group=account, cwd="/", capture_output=True, text=True, check=False
    )
    if done.returncode:
        said = " ".join((done.stderr or done.stdout).strip().splitlines()[-3:])
        hint = f"; see that {account} may enter every folder above {argv[2]}" if account else ""
        raise ResourceError(f"{Path(argv[0]).name} failed: {said}{hint}")
    return done.stdout
