"""One snapshot of a migration, computed from offsets of both clusters.

snapshot   the whole snapshot
lags       how far the copies are behind
remaining  what is left of copies that have begun
"""
