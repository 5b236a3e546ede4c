"""What several rooms of the workflow need: connections, plans, writes, and single questions to the clusters.

connections          open handles to the target, its state log, and the source of each link
plan                 what a verb would change, and what its guards found
writes               a verb's intents, written one after the other
running              the processes that are alive, and the commands that start a missing one
broker_settings      broker-wide settings of source and target, compared
producer_expiration  the target's `producer.id.expiration.ms`: the cost of raising it, and its end
bootstraps           who answers at the bootstrap addresses that clients hold
offset_maps          offset maps for groups, the command line and files outside Kafka
control_markers      control markers in copies, and what they change for readers
open_transactions    transactions that routers carry: whether they have ended
unit                 topics and groups that are promoted together
"""
