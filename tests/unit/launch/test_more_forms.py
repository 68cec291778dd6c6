"""Forms of launch files besides those that are emitted: read, open, or refused with a line."""

import re
from pathlib import Path

import pytest

from autoplan.answers.configure.ask import read
from autoplan.errors import SpecError

SWIFT = """nproc=2
CUDA_VISIBLE_DEVICES=0,1 NPROC_PER_NODE=$nproc swift sft \\
    --model Qwen/Qwen2.5-7B-Instruct --torch_dtype bfloat16 \\
    --per_device_train_batch_size 1 --gradient_accumulation_steps $(expr 16 / $nproc) \\
    --max_length 2048 --deepspeed zero2
"""
SWIFT_MEGATRON = """NPROC_PER_NODE=8 megatron sft --model Qwen/Qwen3-30B-A3B-Base \\
    --tensor_model_parallel_size 2 \\
    --expert_model_parallel_size 4 --sequence_parallel true --micro_batch_size 1 --global_batch_size 16 \\
    --recompute_granularity full --recompute_method uniform --recompute_num_layers 1 --max_length 8192
"""
TRL = """model_name_or_path: mistralai/Mistral-7B-v0.1
torch_dtype: bfloat16
use_peft: true
lora_r: 16
load_in_4bit: true
lora_target_modules: [q_proj, v_proj]
bf16: true
gradient_checkpointing: true
gradient_accumulation_steps: 2
max_seq_length: 2048
per_device_train_batch_size: 4
"""
PRIMUS = """modules:
  pre_trainer:
    framework: megatron
    config: pre_trainer.yaml
    model: llama3.1_70B.yaml
    overrides:
      micro_batch_size: 1
      global_batch_size: 64
      seq_length: ${PRIMUS_SEQ_LENGTH:8192}
      tensor_model_parallel_size: 8
      pipeline_model_parallel_size: 1
      sequence_parallel: 1
"""
TORCHTUNE = """model:
  _component_: torchtune.models.llama3_1.qlora_llama3_1_8b
  lora_attn_modules: ['q_proj', 'v_proj']
  apply_lora_to_mlp: False
  lora_rank: 8
tokenizer: {_component_: torchtune.models.llama3.llama3_tokenizer, max_seq_len: 4096}
checkpointer: {checkpoint_dir: /tmp/Meta-Llama-3.1-8B-Instruct/}
batch_size: 2
gradient_accumulation_steps: 8
optimizer: {_component_: torch.optim.AdamW}
dtype: bf16
enable_activation_checkpointing: True
"""
AUTOMODEL = """recipe: TrainFinetuneRecipeForNextTokenPrediction
step_scheduler: {global_batch_size: 64, local_batch_size: 4}
model: {pretrained_model_name_or_path: google/gemma-7b, torch_dtype: bf16}
distributed: {strategy: fsdp2, dp_size: none, tp_size: 2, cp_size: 1}
packed_sequence: {packed_sequence_size: 4096}
optimizer: {_target_: torch.optim.Adam}
"""
RECIPE = """from nemo.collections.llm.recipes import llama31_70b
def recipe():
    pretrain = llama31_70b.pretrain_recipe(performance_mode=True)
    num_nodes = 2
    tp_size = 4
    return perf(pretrain, num_nodes=num_nodes, num_gpus_per_node=8, mbs=1, gbs=128, tp_size=tp_size,
                pp_size=2, cp_size=1, compute_dtype="bf16")
"""
PRIMUS_OFF = """modules:
  post_trainer:
    framework: megatron
    model: llama3.1_8B.yaml
    overrides: {use_distributed_optimizer: false, micro_batch_size: 2}
"""
PRIMUS_EIGHT = """modules:
  pre_trainer:
    framework: torchtitan
    model: llama3.1_70B-fp8.yaml
    overrides: {training: {local_batch_size: 6, seq_len: 8192}}
"""
TORCHTUNE_ALONE = TORCHTUNE.replace("torch.optim.AdamW", "bitsandbytes.optim.PagedAdamW")
FACTORY = """llamafactory-cli train \\
    --model_name_or_path Qwen/Qwen3-8B --stage sft --finetuning_type lora --lora_rank 4 --cutoff_len 2048 \\
    --per_device_train_batch_size 1 --bf16 --fp8
"""
ACCELERATED = """accelerate launch --mixed_precision bf16 --num_processes 4 train.py --max_seq_length 1024 \\
    --per_device_train_batch_size 2 --learning_rate 1e-5
"""
BRIDGE = """model: {seq_length: 2048}
train:
  global_batch_size: 64
  micro_batch_size: 1
scheduler: {lr_warmup_iters: 0}
"""
FORKED = """bcprun -p 8 -c 'python main.py --tensor-model-parallel-size 8 --pipeline-model-parallel-size 4 \\
--num-layers 80 --hidden-size 8192 --num-attention-heads 64 --seq-length 2048 --micro-batch-size 4 --bf16 \\
--max-position-embeddings 2048 --global-batch-size 2048 --overlapped-distributed-optimizer'
"""
SECTIONED = """data_config: {train_file: a}
max_input_length: 512
training_args:
  # see TrainingArguments
  per_device_train_batch_size: 3
  bf16: true
"""
ADAPTED = RECIPE.replace("    num_nodes", "    pretrain.peft = LoRA(dim=16, alpha=32)\n    num_nodes")


SECOND_FORMAT = """model: Qwen/Qwen3-4B
model_class: llm
peft_config: {name: lora, r: 16, target_modules: all}
quant_config: {name: bnb, quantization_bit: 4}
dist_config: {name: fsdp2, reshard_after_forward: false}
cp_size: 2
micro_batch_size: 4
"""
#: A program of its own between accelerate and a way of attention that is no degree of accelerate's.
OWN_PROGRAM = """accelerate launch --use_fsdp --fsdp_sharding_strategy=1 --num_processes=8 \\
  --mixed_precision=bf16 train.py
"""
OWN_RING = OWN_PROGRAM.replace("train.py", "train.py --batch-size 1 --parallel_mode zigzag_ring_attn")
OWN_DEEPSPEED = """export CUDA_VISIBLE_DEVICES=0,1,2,3
deepspeed main.py --model_name_or_path huggyllama/llama-7b --max_seq_len 4096 \\
  --per_device_train_batch_size 2 --ds_zero_stage 2 \\
  --lora_enable True --lora_rank 64 --bits 4 --use_gradient_checkpointing True
"""
UNDER_MPI = """mpirun -np 16 --npernode 8 python pretrain_gpt.py \\
  --tensor-model-parallel-size 2 --num-layers 32 \\
  --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096 \\
  --micro-batch-size 1 --global-batch-size 64 --bf16
"""
#: The same of a fork whose arguments have underscores.
UNDERSCORES = re.sub(
    r"--[a-z-]+",
    lambda flag: f"--{flag[0][2:].replace('-', '_')}",
    UNDER_MPI.replace("mpirun -np 16", "torchrun --nproc-per-node 8"),
).replace("--npernode 8 python ", "")
#: A script that writes the script which it runs, of Megatron Bridge's own program of performance.
WRITTEN = """work=$(cat <<- EOM
  cd /opt ;
  nice python scripts/performance/run_script.py --model_recipe_name llama3_8b \\
    --num_gpus 8 --compute_dtype fp8_cs \\
    --global_batch_size 128 --micro_batch_size 2 --seq_length 8192 --tensor_model_parallel_size 2 \\
    --pipeline_model_parallel_size 1 --virtual_pipeline_model_parallel_size None --context_parallel_size 1
EOM
)
echo "$work" > work.sh
torchrun --nproc-per-node="4" --nnodes="2" --no-python bash work.sh
"""


def of(tmp_path, name, text, **more):
    """Return what a file of such a name and text says."""
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return read(path, **more)


def facts(found):
    """Return the fields of what is read, flat."""
    flat = {k: v for k, v in found.job.items() if not isinstance(v, dict)}
    return {**flat, **found.job.get("workload", {}), **found.layout_fields}


@pytest.mark.parametrize(
    ("name", "text", "framework", "wanted"),
    [
        (
            "a.sh",
            SWIFT,
            "ms-swift",
            {"dp": 2, "zero": 2, "mbs": 1, "global_batch_size": 16, "recompute": "full"},
        ),
        ("b.sh", SWIFT_MEGATRON, "ms-swift", {"tp": 2, "ep": 4, "etp": 1, "dp": 4, "zero": 1, "sp": True}),
        (
            "c.yaml",
            TRL,
            "trainer",
            {"zero": None, "mbs": 4, "recompute": "full", "sequence_length": 2048, "devices": None},
        ),
        (
            "d.yaml",
            PRIMUS,
            "primus",
            {"tp": 8, "sp": True, "zero": 1, "sequence_length": 8192, "model": "llama3.1-70b"},
        ),
        (
            "e_single_device.yaml",
            TORCHTUNE,
            "torchtune",
            {"dp": 1, "zero": 0, "global_batch_size": 16, "sequence_length": 4096, "model": "llama3.1-8b"},
        ),
        (
            "f.yaml",
            AUTOMODEL,
            "automodel",
            {"tp": 2, "zero": 3, "mbs": 4, "sequence_length": 4096, "optimizer": "adam"},
        ),
        (
            "g.py",
            RECIPE,
            "nemo",
            {"tp": 4, "pp": 2, "dp": 2, "devices": 16, "precision": "bf16", "recompute": None},
        ),
        ("h.yaml", PRIMUS_OFF, "primus", {"zero": 0, "mbs": 2}),
        ("i.yaml", PRIMUS_EIGHT, "primus", {"precision": "fp8", "model": "llama3.1-70b", "mbs": 6}),
        ("j.yaml", TORCHTUNE_ALONE, "torchtune", {"zero": 0, "devices": 1, "optimizer": "paged-adamw"}),
        ("k.sh", FACTORY, "llama-factory", {"precision": "fp8", "recompute": "full", "mbs": 1}),
        ("l.sh", ACCELERATED, "trainer", {"precision": "bf16", "dp": 4, "mbs": 2}),
        ("m.yaml", BRIDGE, "megatron-bridge", {"tp": None, "mbs": 1, "global_batch_size": 64}),
        ("o.yaml", SECTIONED, "trainer", {"mbs": 3, "precision": "bf16", "zero": None}),
        ("n.sh", FORKED, "megatron-lm", {"tp": 8, "pp": 4, "mbs": 4, "zero": None}),
        (
            "p.yaml",
            SECOND_FORMAT,
            "llama-factory",
            {"cp": 2, "zero": 2, "mbs": 4, "sequence_length": 2048, "recompute": "full", "precision": "bf16"},
        ),
        ("q.sh", OWN_PROGRAM, "accelerate", {"zero": 3, "dp": 8, "precision": "bf16", "recompute": None}),
        ("r.sh", OWN_RING, "accelerate", {"zero": 3, "devices": 8, "cp": None, "dp": None, "mbs": None}),
        (
            "s.sh",
            OWN_DEEPSPEED,
            "trainer",
            {"zero": 2, "dp": 4, "mbs": 2, "recompute": "full", "precision": None, "sequence_length": 4096},
        ),
        ("t.sh", UNDER_MPI, "megatron-lm", {"tp": 2, "dp": 8, "devices": 16, "global_batch_size": 64}),
        ("u.sh", UNDERSCORES, "megatron-lm", {"tp": 2, "dp": 4, "devices": 8, "global_batch_size": 64}),
        (
            "v.sh",
            WRITTEN,
            "megatron-bridge",
            {"tp": 2, "dp": 4, "devices": 8, "mbs": 2, "precision": "fp8", "model": "llama3-8b"},
        ),
    ],
)
def test_forms_of_training_are_read(tmp_path, name, text, framework, wanted):
    """Each form is recognised, and what it leaves to other files stays open."""
    found = of(tmp_path, name, text)
    said = facts(found)

    assert found.framework == framework
    assert {key: said.get(key) for key in wanted} == wanted


def test_a_dense_model_has_no_degree_of_experts(tmp_path):
    """ms-swift's default for experts is none of a model without any, whose layout can then be priced."""
    dense = SWIFT_MEGATRON.replace("Qwen/Qwen3-30B-A3B-Base", "Qwen/Qwen2.5-14B")
    dense = dense.replace("    --expert_model_parallel_size 4", "   ")

    assert "etp" not in of(tmp_path, "a.sh", dense).layout_string
    assert "etp=1" in of(tmp_path, "b.sh", SWIFT_MEGATRON).layout_string


def test_gradients_of_another_type_are_read(tmp_path):
    """Main gradients in bf16 take the place of those in fp32."""
    script = FORKED.replace(
        "--overlapped", "--use-precision-aware-optimizer --main-grads-dtype bf16 --overlapped"
    )

    assert of(tmp_path, "a.sh", script).job["software"]["gradients"] == "bf16"


def test_adapters_of_a_recipe_are_read(tmp_path):
    """A recipe in Python that sets its adapters has their rank, at every product."""
    assert of(tmp_path, "recipe.py", ADAPTED).job["adapters"] == {"rank": 16, "targets": "all"}


def test_a_script_reads_the_file_that_it_starts_a_program_with(tmp_path):
    """``llamafactory-cli train FILE`` has the devices of the script, and the sharding of DeepSpeed's file."""
    (tmp_path / "ds.json").write_text('{"train_batch_size": "auto", "zero_optimization": {"stage": 3}}')
    text = (
        "model_name_or_path: meta-llama/Llama-3.1-8B\nstage: sft\nfinetuning_type: full\ndeepspeed: ds.json\n"
    )
    (tmp_path / "x.yaml").write_text(f"{text}per_device_train_batch_size: 2\nbf16: true\n")
    script = "export NPROC_PER_NODE=8\nFORCE_TORCHRUN=1 llamafactory-cli train x.yaml\n"
    found = facts(of(tmp_path, "run.sh", script))

    assert (found["zero"], found["dp"], found["global_batch_size"]) == (3, 8, 16)


def test_adapters_by_other_names_are_read(tmp_path):
    """The switch, the rank and the bits of a base that programs of their own call otherwise."""
    assert of(tmp_path, "run.sh", OWN_DEEPSPEED).job["adapters"]["base"] == "nf4"
    assert of(tmp_path, "v1.yaml", SECOND_FORMAT).job["adapters"] == {
        "rank": 16,
        "targets": "all",
        "base": "nf4",
    }


def test_a_launcher_counts_for_the_file_that_it_starts(tmp_path):
    """ZeRO and the devices are those of accelerate's file; what a command puts out stays open."""
    (tmp_path / "sft.yaml").write_text(TRL)
    (tmp_path / "ds.yaml").write_text(
        "distributed_type: DEEPSPEED\nmixed_precision: bf16\nnum_processes: 8\n"
        "deepspeed_config: {zero_stage: 3, zero3_init_flag: true}\n"
    )
    start = "accelerate launch --config_file ds.yaml {} run.py sft.yaml\n"
    whole = facts(of(tmp_path, "run.sh", start.format("")))
    counted = facts(of(tmp_path, "run.sh", start.format("--num_processes $(nproc)")))

    assert (whole["zero"], whole["dp"], whole["global_batch_size"]) == (3, 8, 64)
    assert (counted["zero"], counted["dp"], counted.get("devices")) == (3, None, None)


def test_deepspeeds_file_has_to_agree_with_megatron(tmp_path):
    """The stage is that of the file which the script writes; another microbatch there is a contradiction."""
    text = UNDER_MPI.replace("--bf16", "--bf16 --deepspeed --deepspeed_config $DS")
    content = '{{"train_micro_batch_size_per_gpu": {}, "zero_optimization": {{"stage": 2}}}}'
    wrote = f"DS=conf/ds.json\ncat <<EOF > $DS\n{content}\nEOF\n"

    assert facts(of(tmp_path, "ds.sh", wrote.format(1) + text))["zero"] == 2
    with pytest.raises(SpecError, match="contradicts DeepSpeed's file") as caught:
        of(tmp_path, "ds.sh", wrote.format(4) + text)
    assert caught.value.problems[0].line == 8


def test_torchtitan_is_read_with_its_file(tmp_path):
    """Overrides go over the TOML file that lies there, or that a ConfigMap of a job holds."""
    toml = (
        '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 2\nseq_len = 8192\n'
        "[parallelism]\ntensor_parallel_degree = 2\n"
    )
    (tmp_path / "llama.toml").write_text(toml)
    start = "torchrun --nproc_per_node=8 -m torchtitan.train --job.config_file"
    run = f"{start} $(pwd)/llama.toml --training.seq_len 4096\n"
    held = "".join(f"    {line}\n" for line in toml.splitlines())
    job = (
        f"apiVersion: v1\nkind: ConfigMap\ndata:\n  titan.toml: |\n{held}---\nkind: PyTorchJob\nspec:\n"
        f"  containers:\n  - command: [bash, -c, {start} /etc/titan.toml]\n"
    )

    assert facts(of(tmp_path, "run.sh", run))["sequence_length"] == 4096
    found = facts(of(tmp_path, "job.yaml", job))
    assert (found["tp"], found["dp"], found["mbs"], found["sequence_length"]) == (2, 4, 2, 8192)


def test_accelerate_in_a_script_has_its_file(tmp_path):
    """The file of ``--config_file`` is read where it lies, and options of the launcher go over it."""
    text = (
        "distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 2}\nnum_processes: 8\nnum_machines: 1\n"
    )
    (tmp_path / "z.yaml").write_text(text)
    script = (
        "accelerate launch --config_file z.yaml --num_processes 16 --num_machines 2 sft.py --bf16"
        " --model_name_or_path Qwen/Qwen2.5-7B --per_device_train_batch_size 2 --max_length 4096\n"
    )
    there = facts(of(tmp_path, "run.sh", script))
    away = facts(of(tmp_path, "away.sh", script.replace("z.yaml", "none.yaml")))

    assert (there["zero"], there["dp"], there["devices"]) == (2, 16, 16)
    assert away["zero"] is None


DEEP = "distributed_type: DEEPSPEED\nnum_processes: 8\nparallelism_config: {parallelism_config_sp_size: 4}\n"
MEGATRON = """torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 \\
  --num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 1 \\
  --global-batch-size 16 --bf16 {}
"""


def test_names_that_speak_of_a_layout_leave_it_open(tmp_path):
    """A key that is not read and may decide a field takes the field and what follows from it."""
    base = "base_model: meta-llama/Llama-3.1-8B\nsequence_len: 2048\nmicro_batch_size: 1\n"
    ulysses = facts(of(tmp_path, "a.yaml", f"{base}ulysses_parallel_size: 2\n", devices=8))
    sized = facts(of(tmp_path, "b.yaml", DEEP))
    growing = facts(of(tmp_path, "c.sh", MEGATRON.format("--step-batch-size-schedule x")))
    experts = facts(of(tmp_path, "d.sh", MEGATRON.format("--ds-sequence-parallel-size 2")))
    earlier = facts(of(tmp_path, "e.toml", "[training]\ntensor_parallel_degree = 2\n[lr_scheduler]\n"))

    assert (ulysses["cp"], ulysses["dp"], ulysses.get("global_batch_size")) == (None, None, None)
    assert sized["cp"] == 4
    assert growing.get("global_batch_size") is None
    assert experts["cp"] == 2
    assert earlier["tp"] == 2


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.sh", MEGATRON.format("--tensor-parallel-size 2"), ":3: --tensor-parallel-size"),
        ("b.sh", MEGATRON.format("--fp16"), ":3: --fp16"),
        ("c.sh", MEGATRON.format("--tensor-model-parallel-size 3"), "does not divide"),
        (
            "d.sh",
            MEGATRON.format("--recompute-granularity selective --recompute-method block"),
            ":3: --recomp",
        ),
        (
            "e.sh",
            MEGATRON.format("--num-experts 8 --expert-model-parallel-size 8 --expert-tensor-parallel-size 2"),
            ":3: ep",
        ),
        ("f.sh", MEGATRON.replace("pretrain_gpt", "pretrain_t5").format(""), "an encoder and a decoder"),
        ("g.sh", MEGATRON.format("--hybrid-layer-pattern M*-"), "other kinds"),
        ("h.yaml", "base_model: google/flan-t5-xl\nsequence_len: 512\nmicro_batch_size: 1\n", "decoder-only"),
        ("i.sh", "vllm serve meta-llama/Llama-3.1-8B \\\n  --tensor-parallel-size 6\n", ":2: --tensor"),
        ("j.sh", "vllm serve Qwen/Qwen3-8B --prefill-context-parallel-size 2\n", "is not read"),
        ("k.py", "from nemo import x\ndef a(:\n  tp_size = 1\n", "no Python"),
        ("l.yaml", "kind: x\n{{- if .Values.a }}\nimage: vllm-openai\n", "template of Helm"),
    ],
)
def test_what_cannot_run_is_refused_with_its_line(tmp_path, name, text, words):
    """Rules of the product, models that are no decoder-only transformers, and misspelt names."""
    with pytest.raises(SpecError) as error:
        of(tmp_path, name, text)

    assert words in str(error.value)
    assert Path(name).name in str(error.value)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.yaml", PRIMUS.replace("megatron\n", "[1, {a: 2}]\n")),
        ("b.sh", SWIFT.replace("nproc=2", "nproc=0")),
        ("c.sh", SWIFT_MEGATRON.replace("NPROC_PER_NODE=8", "NPROC_PER_NODE=0")),
        ("d.sh", SWIFT.replace("--max_length 2048", "--target_modules [q_proj, v_proj]")),
        ("e.py", RECIPE.replace("pp_size=2", "pp_size=0x")),
    ],
)
def test_no_text_ends_in_a_traceback(tmp_path, name, text):
    """A value of another kind, no devices at all, and what is no program are read or refused."""
    refused: list[SpecError] = []
    try:
        of(tmp_path, name, text)
    except SpecError as error:
        refused.append(error)

    assert all(name in str(error) for error in refused)


STARTED = """torchrun --nproc_per_node 4 train.py {} \\
    --model_name_or_path Qwen/Qwen2.5-7B --per_device_train_batch_size 2 \\
    --gradient_accumulation_steps 1 --bf16 True
"""
SIZES = (
    " --num-layers 8 --hidden-size 512 --num-attention-heads 8 --seq-length 1024"
    " --max-position-embeddings 1024"
)


def script_of(tmp_path, text, name="run.sh"):
    """Return a file with ``text`` in a folder."""
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def test_a_file_as_the_first_word_of_a_program_is_read(tmp_path):
    """A recipe is read as under ``--config``, and what it says is open where it is missing."""
    text = STARTED.format("recipe.yaml")
    missing = read(script_of(tmp_path, text))
    assert missing.layout_fields["recompute"] is None
    assert "recompute" in missing.unspecified
    script_of(tmp_path, "gradient_checkpointing: true\nmax_length: 1024\nbf16: true\n", "recipe.yaml")
    found = read(tmp_path / "run.sh")
    assert found.layout_fields["recompute"] == "full"
    assert found.job["workload"]["sequence_length"] == 1024
    assert found.layout_fields["mbs"] == 2


def test_a_microbatch_beside_another_batch_is_no_default(tmp_path):
    """A launcher divides a batch of its own, so that the default microbatch is not what runs."""
    text = "model_name_or_path: Qwen/Qwen3-1.7B\nstage: sft\nfinetuning_type: full\nbf16: true\n{}"
    opened = read(script_of(tmp_path, text.format("global_batch_size: 64\n"), "a.yaml"))
    assert opened.layout_fields["mbs"] is None
    assert read(script_of(tmp_path, text.format(""), "b.yaml")).layout_fields["mbs"] == 8


def test_layers_that_processes_split_leave_the_devices_open(tmp_path):
    """Fewer processes than devices split the layers over these, which no layout has."""
    text = SWIFT.replace("VISIBLE_DEVICES=0,1", "VISIBLE_DEVICES=0,1,2,3").replace(" --deepspeed zero2", "")
    found = read(script_of(tmp_path, text))
    assert "devices" in found.unspecified
    assert any("splits the layers over 2 devices" in note for note in found.warnings)
    assert (found.layout_fields["dp"], found.job["workload"]["global_batch_size"]) == (2, 16)
    assert read(script_of(tmp_path, SWIFT)).job["devices"] == 2


def test_the_engine_that_computes_completions_has_degrees_of_its_own(tmp_path):
    """A tensor degree of vLLM is none of the run."""
    text = SWIFT.replace("swift sft", "swift rlhf --rlhf_type grpo --tensor_parallel_size 4")
    assert read(script_of(tmp_path, text)).layout_fields["tp"] == 1


def test_options_of_deepspeed_need_their_switch(tmp_path):
    """A file of DeepSpeed alone starts nothing: the sharding is open."""
    text = STARTED.replace("torchrun --nproc_per_node 4", "accelerate launch {}")
    unsaid = read(script_of(tmp_path, text.format("--deepspeed_config_file ds.json", "")))
    assert "zero" in unsaid.unspecified
    assert read(script_of(tmp_path, text.format("--num_processes 4", ""))).layout_fields["zero"] == 0


def test_a_file_of_deepspeed_says_the_precision(tmp_path):
    """Precision and stage are those of the file that accelerate names."""
    configs = tmp_path / "configs"
    configs.mkdir()
    script_of(tmp_path, '{"bf16": {"enabled": true}, "zero_optimization": {"stage": 1}}', "ds.json")
    text = "distributed_type: DEEPSPEED\nnum_processes: 2\n"
    text += "deepspeed_config: {deepspeed_config_file: ../ds.json}\n"
    found = read(script_of(configs, text, "accelerate.yaml"))
    assert (found.job["precision"], found.layout_fields["zero"], found.job["devices"]) == ("bf16", 1, 2)


def test_no_file_above_the_folders_of_a_script_is_read(tmp_path):
    """A name may lead up, but not out of the folders that are looked in."""
    below = tmp_path.joinpath(*"abcdef")
    below.mkdir(parents=True)
    script_of(tmp_path, '{"zero_optimization": {"stage": 1}}', "ds.json")
    text = "distributed_type: DEEPSPEED\nnum_processes: 2\ndeepspeed_config: {{deepspeed_config_file: {}}}\n"
    found = read(script_of(below, text.format("../../../../../../ds.json"), "accelerate.yaml"))
    assert "zero" in found.unspecified


def test_one_process_is_one_device(tmp_path):
    """A file without distribution starts one process."""
    found = read(script_of(tmp_path, "distributed_type: 'NO'\nmixed_precision: fp8\n", "accelerate.yaml"))
    assert found.job["devices"] == 1


def test_pbs_says_the_devices(tmp_path):
    """Ranks by a command leave the devices to the request of PBS."""
    text = "#!/bin/bash\n#PBS -l select=4:ncpus=8:mpiprocs=8:ngpus=8\nN=$(wc -l < $PBS_NODEFILE)\n"
    run = "mpirun -np $N python pretrain_gpt.py --micro-batch-size 1 --global-batch-size 64 --bf16 \\\n"
    assert read(script_of(tmp_path, f"{text}{run}{SIZES}\n")).job["devices"] == 32


def test_a_launcher_before_a_shell_counts(tmp_path):
    """DeepSpeed starts a shell on each device."""
    text = (
        'CMD="python pretrain_gpt.py --micro-batch-size 1 --global-batch-size 16 --num-layers 8 --bf16 \\\n'
    )
    text += ' --hidden-size 512 --num-attention-heads 8 --seq-length 1024 --max-position-embeddings 1024"\n'
    text += 'deepspeed --num_nodes 1 --num_gpus 8 --no_python bash -c "$CMD"\n'
    assert read(script_of(tmp_path, text)).job["devices"] == 8


def test_layers_that_stages_do_not_divide_are_refused(tmp_path):
    """Stages of Megatron have as many layers each."""
    text = "model_name_or_path: Qwen/Qwen3-30B-A3B\nstage: sft\nfinetuning_type: full\n"
    text += "pipeline_model_parallel_size: 7\n"
    with pytest.raises(SpecError, match=r"llama\.yaml:4: .*do not divide the 48 layers"):
        read(script_of(tmp_path, text, "llama.yaml"))


def test_a_bare_no_is_a_kind_of_accelerate(tmp_path):
    """YAML reads ``NO`` without quotes as false."""
    found = read(script_of(tmp_path, "distributed_type: NO\nnum_processes: 1\n", "accelerate.yaml"))
    assert (found.job["devices"], found.layout_fields["zero"]) == (1, 0)


def test_keys_of_deepspeeds_file_say_no_stage_to_accelerate(tmp_path):
    """The plugin has a default of its own, which whoever wrote these keys did not mean."""
    text = (
        "distributed_type: DEEPSPEED\nnum_processes: 4\ndeepspeed_config:\n  zero_optimization: {stage: 1}\n"
    )
    assert "zero" in read(script_of(tmp_path, text, "accelerate.yaml")).unspecified


def test_a_misspelt_key_of_evaluation_decides_nothing(tmp_path):
    """Keys of evaluation and logs are listed as unknown, and those of the run refused."""
    found = read(script_of(tmp_path, f"{TRL}eval_step: 100\n", "trl.yaml"))
    assert any("eval_step" in note for note in found.warnings)
    with pytest.raises(SpecError, match="did you mean gradient_accumulation_steps"):
        read(script_of(tmp_path, f"{TRL}gradient_accumulation_step: 100\n", "other.yaml"))


def test_chunks_switched_off_are_open_with_attention_on_ranks_too(tmp_path):
    """A size of a step that is open has no share of a rank."""
    command = (
        "python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp 8 --dp 8 "
        "--enable-dp-attention --chunked-prefill-size -1\n"
    )
    found = read(script_of(tmp_path, command))
    assert found.layout.adp == 8
    assert any("size of a step is open" in note for note in found.warnings)


def test_a_file_of_data_as_first_word_opens_nothing(tmp_path):
    """Programs take a JSON file for keys only as their one argument."""
    command = (
        "torchrun --nproc_per_node 4 train.py data.json --model_name_or_path meta-llama/Llama-2-7b-hf "
        "--per_device_train_batch_size 2 --gradient_accumulation_steps 4 --output_dir out\n"
    )
    assert read(script_of(tmp_path, command)).layout_fields["mbs"] == 2
