# The commands of docs/tutorial/cpp.md after `make build`, from the root of the repository: the test `consumer`.
set -e
# [library]
# [install]
cmake --install build --prefix "$HOME/muster"
# [/install]
# [trainer]
cmake -S examples/cpp -B "$HOME/trainer" -DCMAKE_PREFIX_PATH="$HOME/muster" -DCMAKE_BUILD_TYPE=Release
cmake --build "$HOME/trainer"
# [/trainer]
# [/library]
# [run]
mpirun -n 4 --oversubscribe "$HOME/trainer/train" data/shakespeare.txt
# [/run]
