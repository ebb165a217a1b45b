"""Collections of the supervisor as its workers see them: a call in a worker is answered in the supervisor."""
