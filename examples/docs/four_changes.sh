# The commands of docs/lab/four-changes-points-2026-11.md, where `muster` is on PATH. tests/cli/four_changes.sh runs them.
set -e
# [dion28]
muster plan gpt2-small --ranks 2 --strategy chunked | grep collectives
muster plan gpt2-small --ranks 2 --strategy megabatch | grep collectives
muster plan gpt2-small --ranks 2 --waves 1 | grep collectives
# [/dion28]
# [groups]
muster plan modded-nanogpt --mesh replicate=8 --strategy grouped | grep -E 'predicted|collectives|ragged|padded'
muster plan modded-nanogpt --mesh replicate=8 --strategy grouped --in-flight 1 | grep -E 'predicted|collectives'
muster plan modded-nanogpt --mesh replicate=8 --strategy grouped --groups 1,10,32 --mixed-groups | grep -E 'predicted|collectives'
muster plan modded-nanogpt --mesh replicate=8 --strategy grouped --groups 1,10,32 2>&1 | grep error  # refused
# [/groups]
# [training]
small='--layers 2 --width 32 --heads 2 --context 32 --batch 16 --threads 1'
muster train $small --steps 16 | grep held-out
muster train $small --steps 16 --schedule cosine | grep held-out
muster train $small --steps 16 --schedule cooldown --cooldown 0.5 --final-lr 0.1 --extension 4 | grep -E 'step +20|held-out'
# [/training]
# [variants]
muster train $small --steps 16 --gate-axis longer --normuon mlp --residual-scale after | grep held-out
muster train $small --steps 16 --wo-axis columns | grep held-out
muster train $small --steps 16 --attention-lr-mul 2 --down-lr-mul 4 | grep held-out
muster train $small --steps 16 --step-scale none | grep held-out
# [/variants]
# [runs]
muster train $small --steps 16 --runs 3 --eval-every 4 --target 3.2 --html runs.html | tail -2
muster train $small --steps 16 --runs 3 --eval-every 8 --json | grep -A 16 held_out_mean
# [/runs]
# [parameters]
muster plan modded-nanogpt-168 --mesh replicate=8 --parameters --html parameters.html | grep -E 'updated by|blocks.11|in all'
# [/parameters]
# [padding]
muster simulate moe-397b --mesh fsdp=64 --cluster h100-ib --strategy chunked | grep zeros
muster simulate moe-397b --mesh fsdp=2048 --cluster h100-ib --strategy chunked | grep zeros
# [/padding]
# [experts]
muster simulate moe-397b --mesh fsdp=128 --cluster h100-ib --scratch-mib 2048 --strategy routed,global | grep -E ' (routed|global) '
muster simulate moe-397b --mesh fsdp=16,ep=8 --cluster h100-ib --scratch-mib 2048 --strategy routed,global | grep -E ' (routed|global) '
# [/experts]
