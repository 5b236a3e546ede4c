"""The common base of the workflow: connections, plans, writes, and single questions to the clusters.

connections          connections to the target, its state log, and the source of each link
plan                 the changes and findings of a verb, and its intents, written in order
running              the live processes, and the commands that start a missing process
broker_settings      broker-wide settings of the source, compared with the target's
producer_expiration  the target's `producer.id.expiration.ms`: the cost of raising the setting, and its restoration
bootstraps           the cluster or router that answers at the clients' bootstrap addresses
offset_maps          offset maps for groups, the command line and files outside Kafka
control_markers      control markers in copies, and their effects for readers
open_transactions    routed transactions of a promote: they must have ended
rights               rights of kmigrate's principal, compared with the needed rights
unit                 topics and groups that are promoted together
"""
