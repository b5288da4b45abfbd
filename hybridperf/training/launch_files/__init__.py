"""Launch files: a layout of a plan as what a person starts on a cluster.

    hybridperf plan --shape llama3-8b --system dgx_h100 --gpus 16 --write-launch torchtitan --row 3
    sbatch launch_torchtitan/launch.sh

One table for each framework, `NAME.toml` beside this file, says by which of its settings it says
which of our facts (`facts.py`); adding one adds a framework. `target.py` reads such a table,
`script.py` writes the shell script, `write.py` is what a user calls. (How long a host takes to
launch kernels: `workloads/transformer/rank_stream.py`.)
"""
