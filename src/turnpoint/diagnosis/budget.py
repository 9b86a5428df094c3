"""Memory and time of a recipe: what is measured on the live model, put together."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch

from turnpoint.assemble import Policy
from turnpoint.config import RunConfig
from turnpoint.diagnosis.checks import Check, failed, warning
from turnpoint.diagnosis.clock import Clock, check_time
from turnpoint.diagnosis.cost import (
    LinearCost,
    TrainingCost,
    measure_training,
    optimizer_seconds,
    seconds_of,
)
from turnpoint.diagnosis.draft_memory import draft_needs
from turnpoint.diagnosis.memory import (
    LAW_COPIES,
    NOTHING_SAVED,
    Needs,
    TeacherNeeds,
    check_certain,
    check_memory,
    gigabytes,
)
from turnpoint.diagnosis.rollouts import share_with_signal
from turnpoint.diagnosis.room import Room
from turnpoint.diagnosis.rows import Shape
from turnpoint.diagnosis.sampling import Sample, Speed
from turnpoint.diagnosis.teacher_memory import TeacherMemory
from turnpoint.engine.span import CacheShape
from turnpoint.engine.weights import weights_checksum
from turnpoint.models.decoder import Decoder
from turnpoint.models.packed import packed_bytes
from turnpoint.training.step import Trainer

_HEAD_GRADIENTS = 3  # of the chunk, summed over chunks, and of a tied embedding
_PROCESS = 350 << 20  # bytes of a process that has loaded torch and transformers
_SLACK_CPU, _SLACK_GPU = 1.35, 1.1  # held by the allocator for each byte that autograd saves


def sampling_bytes(decoder: Decoder, workers: int) -> int:
    """Returns the bytes of packed weights and, where there are several workers, of their processes."""
    return packed_bytes(decoder) if workers == 1 else workers * (packed_bytes(decoder) + _PROCESS)


def teacher_needs(student: Decoder, held: TeacherMemory, *, whole_law: bool) -> TeacherNeeds:
    """Returns what a teacher takes; `whole_law`: a loss is made of its whole law."""
    vocab, width = student.vocab_size, CacheShape.of(student).hidden_dim
    return TeacherNeeds(
        weights=held.weights + held.averages + held.packed,
        cache=held.cache,
        visits=held.visits,
        law_of_token=LAW_COPIES * 4 * vocab if whole_law else 0,
        law=4 * vocab * width if whole_law else 0,
    )


def slack_of(device: torch.device) -> float:
    """Returns what the allocator of `device` makes of the bytes that autograd saves."""
    return _SLACK_GPU if device.type == "cuda" else _SLACK_CPU


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What memory and time are reckoned from."""

    config: RunConfig
    policy: Policy
    trainer: Trainer
    room: Room | None
    resident: int  # bytes after loading, and those that sampling holds besides
    trained: int  # weights that are trained
    teachers: tuple[TeacherNeeds, ...] = ()  # which were opened since

    def beside(self, teachers: Iterable[TeacherMemory]) -> Budget:
        """Returns the budget with teachers in this process, which were not there when it began."""
        how, student = self.config.distill, self.policy.model.decoder
        whole = how is not None and how.loss.kind != "sampled"
        needs = [teacher_needs(student, teacher, whole_law=whole) for teacher in teachers]
        return replace(self, teachers=tuple(needs))

    @staticmethod
    def begin(config: RunConfig, policy: Policy, trainer: Trainer, room: Room | None) -> Budget:
        """Takes note of what is held before anything was sampled."""
        masters = [value for name, value in trainer.state_dict().items() if name.startswith("master.")]
        return Budget(
            config=config,
            policy=policy,
            trainer=trainer,
            room=room,
            resident=room.used() + sampling_bytes(policy.model.decoder, policy.engine.workers) if room else 0,
            trained=sum(master.numel() for master in masters),
        )

    def certain(self, longest_prompt: int, held_out: int) -> Check | None:
        """Refuses what cannot fit by arithmetic alone, before anything is measured; None where it may fit."""
        if self.room is None:
            return None
        taught = sum(teacher.weights for teacher in self.teachers if not teacher.visits)
        least, capacity = self.resident + 3 * 4 * self.trained + taught, self.room.capacity()
        if least > capacity:
            teachers = f" ({gigabytes(taught)} those of teachers)" if taught else ""
            text = (
                f"weights, masters, gradients and moments alone take {gigabytes(least)}{teachers} of "
                f"{gigabytes(capacity)}; train an adapter (model.adapter.rank=16) or take a smaller model"
                f"{' or teacher' if taught else ''}"
            )
            return failed("memory", text)
        return check_certain(self.needs(NOTHING_SAVED, longest_prompt, held_out), capacity=capacity)

    def checks(
        self,
        found: Sample,
        speed: Speed,
        *,
        median_prompt: int,
        longest_prompt: int,
        held_out: int,
        seconds: float,
    ) -> list[Check]:
        """Memory, then time; the rows that tell both take about `seconds`."""
        cost = self._training_cost(median_prompt, found, seconds)
        return [
            self._memory(cost, longest_prompt, held_out),
            self._time(cost, found, speed, median_prompt),
        ]

    def _training_cost(self, median_prompt: int, found: Sample, seconds: float) -> TrainingCost:
        model, sampled = self.policy.model, statistics.fmean(found.lengths)
        step = self.config.rollout
        new = step.samples_per_prompt * sampled
        return measure_training(
            self.trainer,
            model.decoder,
            most_tokens=self.config.training.micro_batch_tokens,
            context=model.context_length,
            trained=new / (median_prompt + new),
            seconds=seconds,
        )

    def _memory(self, cost: TrainingCost, longest_prompt: int, held_out: int) -> Check:
        if self.room is None:
            return warning("memory", f"not measured: no way to on {self.policy.model.decoder.device}")
        return check_memory(
            self.needs(cost.saved_bytes, longest_prompt, held_out), capacity=self.room.capacity()
        )

    def needs(self, saved: LinearCost, longest_prompt: int, held_out: int) -> Needs:
        """Returns what decides the peak of memory."""
        config, decoder = self.config, self.policy.model.decoder
        state, how = CacheShape.of(decoder), config.evaluation
        new, attempts = config.sampling.max_new_tokens, 1 + how.samples if how else 0
        item = decoder.dtype.itemsize
        copied = config.kl is not None and config.kl.reference.kind != "base" and config.model.adapter is None
        return Needs(
            resident=self.resident,
            trained=4 * self.trained,
            references=item * self.policy.model.parameters if copied else 0,
            shape=self._shape(longest_prompt, new),
            evaluation_tokens=held_out * (longest_prompt + attempts * new) if how else 0,
            evaluation_rollouts=held_out * attempts,
            cache_tokens=config.engine.cache_tokens,
            max_running=config.engine.max_running,
            micro_batch_tokens=config.training.micro_batch_tokens,
            token_state=state.token_bytes,
            vocab_size=decoder.vocab_size,
            saved=saved,
            head_chunk_tokens=config.training.head_chunk_tokens,
            head_gradient=_HEAD_GRADIENTS * item * decoder.vocab_size * state.hidden_dim,
            slack=slack_of(decoder.device),
            teachers=self.teachers,
            drafts=draft_needs(self.policy.engine.speculation, workers=self.policy.engine.workers),
        )

    def _time(self, cost: TrainingCost, found: Sample, speed: Speed, median_prompt: int) -> Check:
        config, decoder = self.config, self.policy.model.decoder
        clock = Clock(
            speed=speed,
            training=cost.seconds,
            optimizer=optimizer_seconds(self.trained, decoder.device),
            publish=2 * seconds_of(lambda: weights_checksum(self.trainer.publish())),  # sender and receiver
        )
        share, refill = share_with_signal(found), config.rollout.refill
        rounds = refill.rounds + 1 if refill else 1
        mean, new = statistics.fmean(found.lengths), config.sampling.max_new_tokens
        prompts = config.rollout.prompts_per_step
        expected = clock.run(
            config,
            self._shape(median_prompt, max(1, round(mean))),
            packed=1.0 if refill or config.distill else share,  # a teacher teaches in every group
            decode_steps=found.seconds / speed.decode_step if len(found.groups) == prompts else mean,
            draws=min(rounds, 1 / max(share, 1e-9)) if refill else 1.0,
        )
        longest = clock.run(
            config, self._shape(median_prompt, new), packed=1.0, decode_steps=new, draws=rounds
        )
        return check_time(
            expected if found.whole else None,
            longest,
            steps=config.training.steps,
            measured=f"{speed.measured}, training from rows of {cost.tokens} tokens",
        )

    def _shape(self, prompt_tokens: int, new_tokens: int) -> Shape:
        rollout = self.config.rollout
        return Shape(
            prompts=rollout.prompts_per_step,
            samples=rollout.samples_per_prompt,
            prompt_tokens=prompt_tokens,
            new_tokens=new_tokens,
        )
