"""A script for transformers' Trainer that stops when Serried asks: at one step on all ranks, with everything saved."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel, HfArgumentParser, Trainer, TrainerCallback, TrainingArguments

import serried.train as st
from serried.train.transformers import LeaveInTime


class Say(TrainerCallback):
    def on_train_begin(self, args, state, control, **_):
        print(f"rank {args.process_index} of {args.world_size}, from step {state.global_step}", flush=True)


def main():
    (training_args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
    torch.manual_seed(1)
    config = GPT2Config(vocab_size=16, n_positions=8, n_embd=8, n_layer=1, n_head=1, bos_token_id=0, eos_token_id=0)
    rows = torch.randint(16, (64, 8), generator=torch.Generator().manual_seed(1))
    data = [{"input_ids": row, "labels": row} for row in rows]
    model = GPT2LMHeadModel(config)
    with st.session() as run:
        trainer = Trainer(model, training_args, train_dataset=data, callbacks=[LeaveInTime(run), Say()])
        trainer.train(resume_from_checkpoint=training_args.resume_from_checkpoint)


main()
