"""One request, for every protocol: context, pipeline, service, generation and response cache."""
