"""Admin requests of one client connection.

`handler` translates node ids and protects mirrored topics. `create_topics` lets a topic come to be only where no
source has a topic of the same name.

    handler        admin requests and responses
    create_topics  topics that clients create, by CreateTopics or by Metadata
"""
