"""The verifier of plans: channels, rendezvous, and the certificate, which a replay of the plan's queues computes anew."""
