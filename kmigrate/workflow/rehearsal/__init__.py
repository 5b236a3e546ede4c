"""A rehearsal: shadow topics with a copy of the real traffic go through mirror, roll, promote and comparison.

A rehearsal has a link, topics and a group of its own (`model.rehearsals`). The running mirrors, routers and controllers
take the link up as any other link. The link's record is stored before anything is made, and dropped last.

    plan      guards, the shape of each shadow topic, and the findings that the real topics' promote would meet
    contents  the content of a partition as a fingerprint, read from a cluster or from a producer's acknowledgements
    feed      the copy of the real traffic, and the synthetic traffic of idle topics
    reader    the group that reads the shadow topics
    running   the heartbeat of a rehearsal, and the rehearsals that nobody runs any more
    cleaning  the removal of all that a rehearsal has made
    run       the steps of a rehearsal
    outcome   the report of a rehearsal
"""
