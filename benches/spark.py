"""Runs the five queries of docs/export.md with Spark on 4 workers; compares with DuckDB's answers.

    memspy export rank-*.bin -f parquet -o tables
    pip install pyspark duckdb    # Spark needs Java: apt-get install default-jre-headless
    python benches/spark.py FOLDER      FOLDER: the one that has tables/

Spark takes the same SQL, with its own name for the files of a table:
read_parquet('tables/T/*.parquet') is parquet.`tables/T`. Ends with an error if an answer differs.
"""
import os
import re
import sys
import time

import duckdb
from pyspark.sql import SparkSession

WORKERS = 4


def answers(rows):
    """Rows without an order: engines order rows of equal bytes differently."""
    return sorted((tuple(row) for row in rows), key=str)


def main():
    page = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../docs/export.md")
    with open(page, encoding="utf-8") as file:
        queries = re.findall(r"```sql\n(.*?)```", file.read(), re.DOTALL)
    os.chdir(sys.argv[1])
    builder = SparkSession.builder.master(f"local[{WORKERS}]").appName("memspy").config("spark.ui.enabled", "false")
    spark = builder.config("spark.sql.shuffle.partitions", WORKERS).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    differ = 0
    for query in queries:
        started = time.monotonic()
        sql = re.sub(r"read_parquet\('([^']*)/\*\.parquet'\)", r"parquet.`\1`", query).rstrip().rstrip(";")
        # Compare all rows: engines may cut a list of 20 between equal rows differently.
        whole = [text.replace("LIMIT 20", "") for text in (query, sql)]
        expected, found = answers(duckdb.sql(whole[0]).fetchall()), answers(spark.sql(whole[1]).collect())
        same = expected == found
        differ += not same
        said = "equal" if same else f"DuckDB {expected[:3]}, Spark {found[:3]}"
        print(f"{len(found):>5} rows in {time.monotonic() - started:.1f} s: {said}", flush=True)
    partitions = spark.read.parquet("tables/events").rdd.getNumPartitions()
    print(f"{spark.version}, {spark.sparkContext.defaultParallelism} workers, {partitions} partitions of events")
    spark.stop()
    sys.exit(differ)


main()
