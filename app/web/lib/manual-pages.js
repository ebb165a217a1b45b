// Generated from mkdocs.yml by tests/manual/reference.py: the pages of the manual as [name, title].
export const SECTIONS = [
  {"title": "", "pages": [["index", "Overview"], ["getting-started", "Getting started"]]},
  {"title": "Protocols", "pages": [["native-api", "Native API"], ["openai-api", "OpenAI API"], ["responses-api", "Responses API"], ["messages-api", "Messages API"], ["ollama", "Ollama"], ["text-clients", "Clients of embeddings and rankers"], ["client-fields", "Fields of clients"], ["collections", "Search"], ["tools", "Tool calls"], ["open-inference-protocol", "Open Inference Protocol"], ["errors", "Errors"]]},
  {"title": "Models", "pages": [["models-and-versions", "Models and versions"], ["model-files", "Files of a model"], ["sources", "Models from hubs and buckets"], ["memory", "Memory"], ["scheduling", "Scheduling"], ["isolation", "Isolation"], ["pipelines", "Pipelines"], ["text-generation", "Text generation"], ["images", "Images"], ["weight-formats", "Weight formats"], ["cpu-formats", "Formats on a CPU"], ["adapters", "Adapters"], ["offline", "Offline runs"]]},
  {"title": "Operation", "pages": [["page", "The page"], ["playground", "Playground"], ["configuration", "Configuration"], ["workers", "Workers"], ["ray", "Ray"], ["security", "Security"], ["docker", "Docker"], ["kubernetes", "Kubernetes"], ["metrics", "Metrics and alerts"], ["bench", "Load tests"], ["tracing", "Tracing"]]},
  {"title": "Project", "pages": [["benchmarks", "Benchmarks"], ["architecture", "Architecture"], ["glossary", "Glossary"], ["contributing", "Contributing"]]},
];
