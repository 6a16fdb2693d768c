#!/usr/bin/env bash
# Five wards of a hospital and a server, as processes of this machine: run.sh [FOLDER]
# FEDNLP names the command if it is not in the PATH, such as FEDNLP=.venv/bin/fednlp.
# If the server or a ward fails, this script says so, stops the others, and ends with an error.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
fednlp=${FEDNLP:-fednlp}
out=${1:-runs/hospital}
port=${PORT:-8443}
export OMP_NUM_THREADS=1
mkdir -p "$out"
out=$(cd "$out" && pwd)

stop() {
    echo "$1" >&2
    tail -n 5 "$2" >&2
    exit 1
}
running() { kill -0 "$1" 2> /dev/null; }
token_of() { echo "$out/server/federation/tokens/ward-$1.token"; }

"$fednlp" partition bbc --method label --alpha 1.0 --clients 5 --split-out "$out/wards"

"$fednlp" serve "$here/hospital.toml" --sites ward-1,ward-2,ward-3,ward-4,ward-5 --listen "127.0.0.1:$port" \
    --set "data.test_path=\"$out/wards/test.parquet\"" --out "$out/server" > "$out/server.log" 2>&1 &
server=$!
trap 'kill $(jobs -pr) 2> /dev/null && wait || true' EXIT
until [ -f "$(token_of 5)" ]; do # the server invites each ward by a file with its token
    running "$server" || stop "the server has ended before it invited the wards; the end of $out/server.log:" "$out/server.log"
    sleep 0.2
done

wards=()
for number in 1 2 3 4 5; do
    ward="$out/wards/client-$((number - 1))"
    cp "$here/policies/ward-$number.toml" "$ward/site.toml" # its paths begin at the folder that it lies in
    FEDNLP_HOME="$ward/state" "$fednlp" join "$(token_of "$number")" --policy "$ward/site.toml" > "$ward/log.txt" 2>&1 &
    wards+=($!)
done

require_wards() { # those that have ended did so without an error
    for number in 1 2 3 4 5; do
        log="$out/wards/client-$((number - 1))/log.txt"
        running "${wards[number - 1]}" || wait "${wards[number - 1]}" || stop "ward-$number has failed; the end of $log:" "$log"
    done
}
while running "$server"; do
    require_wards
    sleep 0.5
done
wait "$server" || stop "the server has failed; the end of $out/server.log:" "$out/server.log"
for _ in {1..120}; do # a minute in which the wards hear that the federation has ended
    [ -n "$(jobs -pr)" ] || break
    sleep 0.5
done
[ -z "$(jobs -pr)" ] || stop "a ward did not hear of the end in a minute, and is stopped; the end of $out/server.log:" "$out/server.log"
require_wards

sed -n '/^round 1\//,$p' "$out/server.log"
"$fednlp" report "$out/server"
