# The commands of docs/tutorial/pytorch.md, from the root of the repository.
set -e
# [train]
torchrun --standalone --nproc-per-node 2 examples/docs/fsdp2.py data/shakespeare.txt
# [/train]
# [resume]
torchrun --standalone --nproc-per-node 1 examples/docs/fsdp2.py data/shakespeare.txt --resume
# [/resume]
