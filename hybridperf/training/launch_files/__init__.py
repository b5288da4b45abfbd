"""Launch files: a layout of a plan as what a person starts on a cluster, and such a file as a row
of `steps`.

    hybridperf plan --shape llama3-8b --system dgx_h100 --gpus 16 --write-launch torchtitan --row 3
    sbatch launch_torchtitan/launch.sh
    hybridperf steps launch_torchtitan/launch.sh

One table for each framework, `NAME.toml` beside this file, says which of its settings mean which of
our facts (`facts.py`), in both directions; adding one adds a framework. `target.py` reads such a
table, `script.py` writes and reads the shell script, `write.py` and `read.py` are what a user
calls. (How long a host takes to launch kernels: `workloads/transformer/rank_stream.py`.)
"""
