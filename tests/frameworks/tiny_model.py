"""Write a tiny model of a config with its tokenizer, and pairs of preferences, for a program that starts.

Arguments are the config and the folder. The Python that runs this has transformers.
"""

import json
import sys
from pathlib import Path

SPECIAL = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


def write(config, folder):
    """Write the model, the tokenizer of its words and forty pairs."""
    # Imported here: pytest collects this module where there is no transformers.
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

    words = [*SPECIAL.values(), *(f"w{at}" for at in range(60))]
    tokenizer = Tokenizer(
        models.WordLevel({word: at for at, word in enumerate(words)}, unk_token=SPECIAL["unk_token"])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **SPECIAL).save_pretrained(folder)
    AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(config)).save_pretrained(folder)
    pairs = [
        {"prompt": f"w{at} w{at + 1}", "chosen": f" w{at + 2}", "rejected": f" w{at + 3}"} for at in range(40)
    ]
    (folder / "data").mkdir()
    (folder / "data" / "train.jsonl").write_text("\n".join(map(json.dumps, pairs)), encoding="utf-8")


if __name__ == "__main__":
    write(sys.argv[1], Path(sys.argv[2]))
