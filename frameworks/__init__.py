"""The machine: models, the devices they stand on, and the time at which each of them runs."""
