"""kmigrate moves a live Kafka estate from one cluster to another with zero downtime."""

__all__ = ["__version__"]

__version__ = "0.1.0"
