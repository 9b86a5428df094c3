"""`turnpoint draft`: draft heads for a model, from rollouts of its own or from texts; the model stays frozen.

It does not resume: what was learnt is saved whatever ends it, and heads of kind `folder` learn on from there.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from turnpoint.assemble import open_model
from turnpoint.commands.draft_texts import Texts, read_texts
from turnpoint.config import CheckpointHeads, DraftConfig, FolderHeads, FreshHeads
from turnpoint.drafting.measure import Measured, measure_drafts
from turnpoint.drafting.texts import DraftHeads, DraftText, split_held_out
from turnpoint.drafting.train import LossPlan, fitting_text, train_drafts
from turnpoint.errors import DataError, ModelError
from turnpoint.models.loading import LoadedModel
from turnpoint.models.mtp_folder import load_checkpoint_heads, load_heads, save_heads
from turnpoint.models.mtp_fresh import fit_projection, fresh_heads
from turnpoint.reports.drafts import DraftFolder, comparison_lines, draft_step_fields, measured_json
from turnpoint.reports.terminal import Terminal
from turnpoint.reports.text import number, plural
from turnpoint.training.optimizer import MasterAdamW

_FITTED_ON = 4096  # tokens of the texts, for new heads
_DRIFT = 0.1  # nats between recorded log-probabilities and the model's, from which texts are not its own
_LINES = 50  # of steps, about; draft.jsonl has all


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftResult:
    """Where the heads are, and what held-out texts say; None without `held_out`."""

    folder: Path
    heads: Path
    before: Measured | None
    after: Measured | None


def draft(config: DraftConfig) -> DraftResult:
    """Trains heads as `config` says.

    Raises UserError in one line before anything is spent when the recipe cannot work. Ctrl-C ends it
    between two steps, with the heads saved as they are.
    """
    terminal = Terminal()
    with terminal.phase("loading the model"):
        model = open_model(config.model, seed=config.seed)
    with terminal.phase("reading texts"):
        texts = read_texts(config, model)
    train, held_out = split_held_out(texts.texts, share=config.held_out, seed=config.seed)
    with terminal.phase("opening heads"):
        heads = _open_heads(config, model, train)
    run = _Draft(config=config, model=model, heads=heads, texts=texts, terminal=terminal)
    return run.train(train, held_out)


def _open_heads(config: DraftConfig, model: LoadedModel, train: Sequence[DraftText]) -> DraftHeads:
    decoder = model.decoder
    match config.heads:
        case FreshHeads(layers=layers):
            heads = fresh_heads(decoder, layers=layers)
            text = fitting_text(train, tokens=_FITTED_ON, decoder=decoder)
            fit_projection(
                heads, decoder, token_ids=text.token_ids, positions=text.positions, lengths=text.lengths
            )
            return heads
        case FolderHeads(path=path, retrained=retrained):
            heads = load_heads(decoder, path, retrained=retrained)
            if config.depth > heads.max_depth:
                raise ModelError(
                    f"draft heads {path}: draft {heads.max_depth} tokens at most, and depth = {config.depth}"
                )
            return heads
        case CheckpointHeads(family=family, path=path):
            return load_checkpoint_heads(decoder, family, folder=path or model.folder)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Draft:
    config: DraftConfig
    model: LoadedModel
    heads: DraftHeads
    texts: Texts
    terminal: Terminal

    def train(self, train: Sequence[DraftText], held_out: Sequence[DraftText]) -> DraftResult:
        """Measures, trains, measures; saves what was learnt whatever ends it."""
        foreign = self._foreign(train)
        folder, started = DraftFolder.create(self.config), time.perf_counter()
        self._plan(train, held_out)
        if foreign:
            self.terminal.line(f"  ! {foreign}", "yellow")
        before = self._measure(held_out)
        tokens = list[int]()
        try:
            asyncio.run(self._steps(train, folder, tokens))
        finally:
            if tokens:
                save_heads(self.heads, folder.heads)
        after = self._measure(held_out)
        seconds = time.perf_counter() - started
        folder.write_summary(
            {
                "before": before and measured_json(before),
                "after": after and measured_json(after),
                "steps": len(tokens),
                "tokens": sum(tokens),
                "seconds": seconds,
                "temperature": self.texts.temperature,
            }
        )
        self._tell(before, after, tokens=sum(tokens), seconds=seconds)
        self.terminal.line(f"heads in {folder.heads}; in rollouts: engine.draft.heads={folder.heads}")
        return DraftResult(folder=folder.path, heads=folder.heads, before=before, after=after)

    def _foreign(self, train: Sequence[DraftText]) -> str:
        """Says that texts are not of the model's own law, or refuses them where the loss needs it."""
        measured = self._measure([it for it in train if it.logprobs is not None][-16:], "recorded texts")
        drift = measured.mean_drift if measured else None
        if drift is None or drift <= _DRIFT:
            return ""
        words = (
            f"the latest texts were sampled by another policy: recorded log-probabilities differ by "
            f"{drift:.2f} nats on average from those of {self.model.source} at temperature "
            f"{self.texts.temperature:g}"
        )
        first = self.config.first.loss if self.config.first else None
        if "pathwise_tv" in (self.config.loss, first):
            raise DataError(f"{words}; loss = pathwise_tv needs its own, take loss=end_to_end_tv")
        return words

    def _measure(self, texts: Sequence[DraftText], what: str = "held-out texts") -> Measured | None:
        if not texts:
            return None
        with self.terminal.phase(what, len(texts)) as phase:
            return measure_drafts(
                self.heads,
                self.model.decoder,
                texts,
                depth=self.config.depth,
                temperature=self.texts.temperature,
                batch_tokens=self.config.training.batch_tokens,
                progress=phase.advance,
            )

    def _plan(self, train: Sequence[DraftText], held_out: Sequence[DraftText]) -> None:
        config, say = self.config, self.terminal.line
        weights = sum(it.numel() for it in self.heads.parameters())
        say(f"turnpoint: {config.name}", "bold")
        say(f"  model      {self.model.source}, frozen; temperature {self.texts.temperature:g}")
        say(f"  heads      {config.heads.kind}, {self.heads.layout.name}: {number(weights)} weights train")
        for note in self.texts.notes:
            say(f"  data       {note}")
        say(f"             {number(len(train))} to train on, {number(len(held_out))} held out")
        first = f", before it {config.first.loss} for {config.first.share:.0%}" if config.first else ""
        steps, tokens = config.training.steps, config.training.batch_tokens
        say(
            f"  objective  {config.loss} to depth {config.depth}{first}; {plural(steps, 'step')} of about "
            f"{number(tokens)} tokens; does not resume"
        )

    async def _steps(self, train: Sequence[DraftText], folder: DraftFolder, tokens: list[int]) -> None:
        config, steps = self.config, self.config.training.steps
        how = config.optimizer
        optimizer = MasterAdamW(
            self.heads,
            learning_rate=how.learning_rate,
            betas=how.betas,
            weight_decay=how.weight_decay,
            max_grad_norm=how.max_grad_norm,
            schedule=how.schedule,
            warmup_steps=how.warmup_steps,
            total_steps=steps,
        )
        first = config.first
        plan = LossPlan(loss=config.loss)
        if first is not None:
            plan = LossPlan(loss=config.loss, first=first.loss, first_steps=round(first.share * steps))
        with self.terminal.phase("training", steps) as phase:
            taken = train_drafts(
                self.heads,
                self.model.decoder,
                train,
                optimizer=optimizer,
                depth=config.depth,
                steps=steps,
                batch_tokens=config.training.batch_tokens,
                plan=plan,
                temperature=self.texts.temperature,
                seed=config.seed,
                progress=phase.advance,
            )
            started = time.perf_counter()
            for figures in taken:
                seconds, started = time.perf_counter() - started, time.perf_counter()
                tokens.append(figures.tokens)
                folder.append_step(figures, seconds=seconds)
                if figures.step % -(-steps // _LINES) == 0 or figures.step in (1, steps):
                    self.terminal.fields(list(draft_step_fields(figures, steps=steps, seconds=seconds)))
                await asyncio.sleep(0)  # Ctrl-C ends it here, between two steps, and nowhere else

    def _tell(self, before: Measured | None, after: Measured | None, *, tokens: int, seconds: float) -> None:
        say = self.terminal.line
        if before is None or after is None:
            say("  no held-out texts: nothing says what the drafts are worth; set for example held_out=0.1")
        else:
            for line in comparison_lines(before, after):
                say(line)
            say(
                f"  tokens per round at depth {self.config.depth}: {before.text_lengths[-1]:.2f} -> "
                f"{after.text_lengths[-1]:.2f}; entropy of the policy {after.entropy:.2f} nats"
            )
        say(f"  {number(tokens)} tokens in {seconds:.1f} s")
