"""The steps of a migration: verbs write intents, the controller orders the steps, status shows facts."""
