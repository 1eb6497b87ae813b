"""GPT-2 from its configuration, trained by Hugging Face's Trainer with Paceline's callback; nothing is downloaded.

torchrun --nproc-per-node 2 train.py
paceline run train.py --workers 1,2
"""

import argparse
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

import paceline

VOCABULARY, LENGTH = 512, 64


class Sentences(Dataset):
    """Made-up sentences in which a token is followed by the next one."""

    def __init__(self, samples: int) -> None:
        first = torch.randint(0, VOCABULARY, (samples, 1), generator=torch.Generator().manual_seed(0))
        self.tokens = (first + torch.arange(LENGTH)) % VOCABULARY

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


def main() -> None:
    """Trains for one epoch and prints the samples/s that the Trainer tells."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=1024, help="of all workers together")
    parser.add_argument("--batch", type=int, default=8, help="samples of each worker in a step")
    options = parser.parse_args()
    set_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=128, n_layer=2, n_head=4))
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            per_device_train_batch_size=options.batch,
            num_train_epochs=1,
            learning_rate=1e-3,
            use_cpu=not torch.cuda.is_available(),
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
        )
        trainer = Trainer(
            model,
            arguments,
            train_dataset=Sentences(options.samples),
            callbacks=[paceline.callbacks.trainer_callback()],
        )
        told = trainer.train().metrics
    if trainer.is_world_process_zero():
        print(f"samples/s {told['train_samples_per_second']:.1f}", flush=True)


if __name__ == "__main__":
    main()
