"""The controller: one at a time drives promotes and group promotes by writing records.

controller  watches intents in the state log and drives them
keepalive   transactional ids kept alive on the target
metrics     the controller's metrics
"""
