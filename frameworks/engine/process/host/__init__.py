"""The side of the engine process: load one model, and run the requests of its clients.

In: messages of the server and of further clients. Out: answers, tokens, counts. Begin with `child`, the command,
then `event_loop`. `session` answers one client; `hosted_model` owns the model that all clients share.
"""
