"""TensorBoard, on rank 0, where the job names a folder; curves are drawn over the run's tokens."""

from __future__ import annotations

from pathlib import Path

from syncline.train.progress import Snapshot


class Board:
    """Scalars of one replica."""

    def __init__(self, folder: Path | None) -> None:
        """Without a folder everything is a no-op, and TensorBoard is not even imported."""
        self._writer = None
        if folder is not None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(folder))

    def snapshot(self, now: Snapshot) -> None:
        """Draw what a snapshot tells of training."""
        self._add(
            now.tokens,
            {
                "train/loss": now.loss,
                "train/bits_per_byte": now.bits_per_byte,
                "train/grad_norm": now.grad_norm,
                "train/lr": now.lr,
                "speed/tokens_per_second": now.tokens_per_second,
                "sync/revision": now.revision,
                "sync/exposed_share": now.exposed_sync_share,
                "sync/exposed_seconds": now.exposed_sync_s,
                "sync/bytes_up": now.bytes_up,
                "sync/bytes_down": now.bytes_down,
                "sync/stale_pushes": now.stale,
                **({} if now.mfu is None else {"speed/mfu": now.mfu}),
            },
        )

    def held_out(self, kind: str, tokens: int, loss: float, bits_per_byte: float) -> None:
        """Draw an evaluation; ``kind`` is ``held-out`` (own parameters) or ``merged``."""
        self._add(tokens, {f"{kind}/loss": loss, f"{kind}/bits_per_byte": bits_per_byte})

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def _add(self, tokens: int, values: dict[str, float]) -> None:
        if self._writer is not None:
            for name, value in values.items():
                self._writer.add_scalar(name, value, tokens)
