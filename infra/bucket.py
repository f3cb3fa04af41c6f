"""Makes the bucket of MLflow's artifacts, unless it is there: `python -m infra.bucket`, with AWS_* and the endpoint set."""

import os
from collections.abc import Mapping

BUCKET = "surf2vec"


def make_bucket(environment: Mapping[str, str]) -> None:
    """Make the bucket at the S3 server that the environment names."""
    import boto3

    client = boto3.client(
        "s3", endpoint_url=environment["MLFLOW_S3_ENDPOINT_URL"], region_name=environment["AWS_DEFAULT_REGION"],
        aws_access_key_id=environment["AWS_ACCESS_KEY_ID"], aws_secret_access_key=environment["AWS_SECRET_ACCESS_KEY"],
    )  # fmt: skip
    if BUCKET not in [bucket["Name"] for bucket in client.list_buckets()["Buckets"]]:
        client.create_bucket(Bucket=BUCKET)


if __name__ == "__main__":
    make_bucket(os.environ)
