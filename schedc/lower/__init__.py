"""Schedule → Plan: communication queues, receives posted early, collectives."""
