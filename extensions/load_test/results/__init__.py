"""The results of a load test: counts, latencies in a histogram, and the page with plots."""
