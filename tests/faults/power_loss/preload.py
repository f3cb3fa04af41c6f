"""What processes that try a disk have loaded from the beginning: modules, and compiled kernels. No thread is begun."""

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import tests.faults.power_loss.commands
    import tests.faults.power_loss.trial
    import tests.roots.serving  # noqa: F401
