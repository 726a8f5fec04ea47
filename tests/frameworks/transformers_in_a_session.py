"""A script for transformers' Trainer that stops when Serried asks: at one step on all ranks, with everything saved."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel, HfArgumentParser, Trainer, TrainerCallback, TrainingArguments

import serried.train as st


class LeaveInTime(TrainerCallback):
    """Saves and ends the training when Serried asks, before the time limit; the next attempt resumes there."""

    def __init__(self, run):
        self.run = run

    def on_step_end(self, args, state, control, **_):
        if self.run.stop_reason():  # at the same step on every rank
            control.should_save = control.should_training_stop = True

    def on_save(self, args, state, control, **_):
        if self.run.should_stop:
            self.run.saved_for_stop(state.global_step)


class Say(TrainerCallback):
    def on_train_begin(self, args, state, control, **_):
        print(f"rank {args.process_index} of {args.world_size}, from step {state.global_step}", flush=True)


def main():
    (training_args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
    torch.manual_seed(1)
    config = GPT2Config(vocab_size=16, n_positions=8, n_embd=8, n_layer=1, n_head=1, bos_token_id=0, eos_token_id=0)
    rows = torch.randint(16, (64, 8), generator=torch.Generator().manual_seed(1))
    data = [{"input_ids": row, "labels": row} for row in rows]
    with st.session() as run:
        trainer = Trainer(
            GPT2LMHeadModel(config), training_args, train_dataset=data, callbacks=[LeaveInTime(run), Say()]
        )
        trainer.train(resume_from_checkpoint=training_args.resume_from_checkpoint)


main()
