"""The token ids sampled from logits that stay on the device."""

import torch


class SampledIds:
    """The token ids that a model's last step sampled, on the device. `ids`: int32 [most texts of a step]."""

    def __init__(self, device: torch.device, max_texts: int) -> None:
        self.ids = torch.zeros(max_texts, dtype=torch.int32, device=device)

    def fill_in(self, token_ids: torch.Tensor, sources: torch.Tensor) -> None:
        """Set the token ids of the rows whose source is not -1 to the sampled ids there. `sources`: int32 [rows], of
        the first rows of `token_ids`, int32.
        """
        from frameworks.pytorch.device_kernels.unread_tokens import fill_in

        fill_in(token_ids, sources, self.ids)
