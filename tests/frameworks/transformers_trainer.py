"""A script for transformers' Trainer, with the calls of Hugging Face's examples; it knows nothing of Serried."""

import signal
from dataclasses import dataclass, field

import torch
from transformers import GPT2Config, GPT2LMHeadModel, HfArgumentParser, Trainer, TrainerCallback, TrainingArguments


@dataclass
class TestArguments:
    hold: int = field(default=0, metadata={"help": "1: stay in step 5 until a signal comes"})


class Say(TrainerCallback):
    def __init__(self, hold):
        self.hold = hold

    def on_train_begin(self, args, state, control, **_):
        print(f"rank {args.process_index} of {args.world_size}, from step {state.global_step}", flush=True)

    def on_step_end(self, args, state, control, **_):
        if self.hold == 1 and state.global_step == 5:
            print("holding", flush=True)
            signal.pause()


def main():
    training_args, test_args = HfArgumentParser((TrainingArguments, TestArguments)).parse_args_into_dataclasses()
    torch.manual_seed(1)
    config = GPT2Config(vocab_size=16, n_positions=8, n_embd=8, n_layer=1, n_head=1, bos_token_id=0, eos_token_id=0)
    rows = torch.randint(16, (64, 8), generator=torch.Generator().manual_seed(1))
    trainer = Trainer(
        model=GPT2LMHeadModel(config),
        args=training_args,
        train_dataset=[{"input_ids": row, "labels": row} for row in rows],
        callbacks=[Say(test_args.hold)],
    )
    result = trainer.train(resume_from_checkpoint=training_args.resume_from_checkpoint)
    trainer.save_model()
    trainer.save_metrics("all", result.metrics)
    trainer.save_state()
    print(f"done at step {trainer.state.global_step}", flush=True)


main()
