"""Whether a server answers: `python -m infra.health URL`, for the health checks of containers, which have no curl."""

import sys

from infra.services import answers

if __name__ == "__main__":
    sys.exit(0 if answers(sys.argv[1]) else 1)
