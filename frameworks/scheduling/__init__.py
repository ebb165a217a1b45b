"""Steps 2 and 3 of a request's way: who is let in, who is next, with whom, and on which instance."""
