"""Inner optimizers beside PyTorch's own. Each is a ``torch.optim.Optimizer`` with a state dict."""

from syncline.optim.agd import AGD
from syncline.optim.several import Several, muon
from syncline.optim.wsam import WSAM

__all__ = ["AGD", "WSAM", "Several", "muon"]
