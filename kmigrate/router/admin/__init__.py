"""Admin requests of one client connection.

handler  translates node ids, protects mirrored topics, and creates topics only where no source has such a topic
"""
