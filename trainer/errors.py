"""The errors for a person to read: each message says what failed, where, and what to do, with the numbers.

    SurfError                 exit  code              raised when
    ├── ConfigError             2   bad_config        a setting is unknown, out of bounds or contradicts another
    ├── InputError              2   bad_input         the logs are missing, or their format cannot be read
    ├── RejectedError           1   too_many_rejects  more lines were unusable than ingest.max_reject_ratio allows
    ├── DamageError             1   damage            a file of the root is missing, truncated or altered
    ├── ResourceError           1   resources         memory, disk or permission do not suffice
    │   └── UnavailableError    1   unavailable       a server did not answer, or failed: a retry may succeed
    ├── TrainingError           1   training          the loss is not finite
    ├── LeftElsewhereError      1   left_elsewhere    forgotten users are still in models that others registered
    └── HeldBackError           3   held_back         the gate kept the release back

The command line prints only the message. A traceback is a bug.
"""


class SurfError(Exception):
    """A failure with an exit code and a machine-readable code."""

    code = "failed"
    exit_code = 1


class ConfigError(SurfError):
    code = "bad_config"
    exit_code = 2


class InputError(SurfError):
    code = "bad_input"
    exit_code = 2


class RejectedError(SurfError):
    code = "too_many_rejects"


class DamageError(SurfError):
    code = "damage"


class ResourceError(SurfError):
    code = "resources"


class UnavailableError(ResourceError):
    code = "unavailable"


class TrainingError(SurfError):
    code = "training"


class LeftElsewhereError(SurfError):
    code = "left_elsewhere"


class HeldBackError(SurfError):
    code = "held_back"
    exit_code = 3
