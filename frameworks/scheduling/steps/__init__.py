"""Schedule the steps of language models: sequences in, tokens in a feed for each request out.

Begin with `scheduler.py`.

- `scheduler.py` decides the batch of a step, which sequences start and which are preempted. It is pure. `step_cost.py`
  bounds the prefill beside decodes, `blocks.py` and `running.py` allocate the KV cache.
- `tenant_queues.py` and `fair_step.py` divide the steps of a model among tenants, and choose whom to preempt;
  `tenant_accounting.py` divides a device.
- `dispatcher.py` chooses the instance of a sequence. `worker.py` runs the steps of an instance on a thread.
"""
