"""`feltd worker verify`: any program as a worker, against a daemon and a wire that misbehave."""
