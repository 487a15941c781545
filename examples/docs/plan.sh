# The commands of docs/howto/plan-my-model.md, where `muster` is on PATH. tests/cli/docs_commands.sh runs them.
set -e
# [plan]
muster plan llama-7b --mesh fsdp=8
muster plan llama-7b --mesh fsdp=8 --explain layers.0.mlp.up     # why one matrix goes where it goes
# [/plan]
# [scratch]
muster plan llama-7b --mesh fsdp=8 --scratch-mib 4096
# [/scratch]
# [simulate]
muster simulate llama-7b --mesh fsdp=8 --cluster h100-ib --scratch-mib 4096 --html llama.html
# [/simulate]
# [safetensors]
muster plan model.safetensors.index.json --rules examples/rules/hf-llama.json --mesh fsdp=8
# [/safetensors]
# [verify]
muster verify examples/models/moe-vision.json --layers 1 --strategy global --waves 0 --steps 1
# [/verify]
