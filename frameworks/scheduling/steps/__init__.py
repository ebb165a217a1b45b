"""Step scheduling for language models: dispatcher, worker thread and token feed."""
