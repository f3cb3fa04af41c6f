-- The databases of the servers, made when the volume of PostgreSQL is new.
create database prefect;
create database mlflow;
create database mlflow_auth;
