"""The parity check of `verify`, `verify --follow` and `promote --verify`: what to compare, the Spark job, the result.

A check waits until the target holds the ranges that the source has now, compares these ranges with Spark, and records
equal ranges in the state log. The next check of the same copy reads only what is new; `--follow` checks in rounds.

ranges        the offsets to compare, by partition
job           the selected topics with their ranges, and the record of equal ranges
compare       Spark's session and options, and the comparison of a job
rounds        `verify --follow`
report_files  the files that a check writes
"""
