"""Pure domain model: records of the state log, lifecycles of topics and groups, and the routes that follow."""
