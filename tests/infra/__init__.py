"""Tests of infra/: the real servers, natively."""
