"""The mirror: raw record batches from source leaders to target leaders, offset for offset, by compare-and-set.

    settings   how one mirror process behaves
    steps      pure: a fetched partition becomes appends, holes and at most one reason to stop
    reactions  pure: the one table of what is done about every error
    throttle   pure: a link's limit in bytes a second
    lane       pure: one partition's machine: what may be sent now, what an answer means
    mapped     pure: the same where the target's offsets are its own, told by an exact map
    copier     tasks: one reader per source leader, one writer per target leader, around the lanes
    mending    beside them: where a lane stands on the target, its holes, its map
    holes      offsets without records: control markers, or empty transactions
    outlook    what a copy will be like: identical or mapped, holes, bytes
    stops      what stopped, written into the state log
    topics     the target topic: created with the source's shape, relaxed while mirroring
    align      the target's log start, moved by fillers and DeleteRecords
    lease      which process copies a link
    activation what a link needs before its first copy
    engine     all of it, driven by the state log
"""
