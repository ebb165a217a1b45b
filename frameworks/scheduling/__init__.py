"""Schedule requests: admit or refuse, queue in fair order, form batches, and choose the instance of the model.

In: requests of `app.inference`. Out: batches for workers, or Overloaded with Retry-After (`admission`).
Begin with `admission`; then `batch` for tensors, and `steps` for language models.
"""
