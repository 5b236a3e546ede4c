"""A snapshot of a migration, computed from offsets of both clusters.

snapshot   the whole snapshot
lags       the lags of copies and groups, and the offsets that are left to copy
"""
