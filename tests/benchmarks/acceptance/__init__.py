"""The steps of `tests.benchmarks.gpu_acceptance`, a process each. They need numpy, torch and triton; some more, as they say."""
