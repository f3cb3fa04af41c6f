"""Makes the bucket of MLflow's artifacts unless it exists: `python -m surf2vec.infra.bucket`, with AWS_* and the endpoint set."""

import os

BUCKET = "surf2vec"

if __name__ == "__main__":
    import boto3

    client = boto3.client("s3", endpoint_url=os.environ["MLFLOW_S3_ENDPOINT_URL"])
    if BUCKET not in [bucket["Name"] for bucket in client.list_buckets()["Buckets"]]:
        client.create_bucket(Bucket=BUCKET)
