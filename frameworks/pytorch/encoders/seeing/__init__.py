"""Models that embed texts and images alike: late interaction with pages (ColPali), and language models that see and
embed conversations (Qwen3-VL-Embedding).

Begin with `loading.py`. `pages.py` and `conversations.py` make tokens and tensors of the contents of requests.
"""
