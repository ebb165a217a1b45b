"""One model: its versions, their traffic, and which of them are in memory."""
