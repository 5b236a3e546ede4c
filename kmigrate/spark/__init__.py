"""The only home of Spark: the parity check and the bulk copy.

The parity check is an independent witness: Spark's own Kafka source reads both clusters, and `kmigrate.parity` judges
the result. The bulk copy runs the mirror's own copier in Spark tasks, round after round, until little is left.

    session    a Spark session that keeps quiet
    options    settings of Spark's Kafka client
    source     ranges of a cluster's logs as rows with hashes
    admin      Kafka's own admin client, in Spark's JVM
    bounds     the present start and end of each log
    placing    target records of mapped topics at their source offsets
    parity     the steps of a check, and its findings as Parquet
    compacted  the newest record of each key, for compacted topics
    bulk       the copy of ranges as a Spark job
    rounds     a bulk copy from the first round to the hand-over
"""
