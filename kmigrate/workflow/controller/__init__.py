"""The controller: drives promotes of topics and groups by writing records, one controller at a time.

controller     the watch on intents in the state log, and the tasks that carry them out
auto_promote   promotes of groups whose last direct member has left
scheduled      promotes at their time, and again until their deadline
keepalive      transactional ids kept alive on the target
hooks          commands of the configuration at points of promotes and rollbacks
report_writer  the report of each promote and rollback that has ended
metrics        the controller's metrics
"""
