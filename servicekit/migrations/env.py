"""What Alembic runs for each schema: the connection is ours, the history the schema's own."""

from alembic import context
from sqlalchemy import text

config = context.config
connection = config.attributes["connection"]
schema = config.attributes["schema"]

connection.execute(text(f"CREATE SCHEMA IF NOT EXISTS {schema}"))
connection.commit()
context.configure(connection=connection, version_table_schema=schema)
with context.begin_transaction():
    connection.execute(text("SET LOCAL lock_timeout = '5s'"))
    context.run_migrations()
