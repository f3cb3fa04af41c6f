"""The night as a Prefect flow."""

from prefect import flow

from surf2vec.flows.night import make_night

nightly = flow(name="nightly", validate_parameters=True)(make_night)
