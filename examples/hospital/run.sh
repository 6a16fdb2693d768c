#!/usr/bin/env bash
# Five wards of a hospital and a server, as processes of this machine: run.sh [FOLDER]
# FEDNLP names the command if it is not in the PATH, such as FEDNLP=.venv/bin/fednlp.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
fednlp=${FEDNLP:-fednlp}
out=${1:-runs/hospital}
port=${PORT:-8443}
export OMP_NUM_THREADS=1
mkdir -p "$out"
out=$(cd "$out" && pwd)

"$fednlp" partition bbc --method label --alpha 1.0 --clients 5 --split-out "$out/wards"

"$fednlp" serve "$here/hospital.toml" --sites ward-1,ward-2,ward-3,ward-4,ward-5 --listen "127.0.0.1:$port" \
    --set "data.test_path=\"$out/wards/test.parquet\"" --out "$out/server" > "$out/server.log" 2>&1 &
server=$!
trap 'kill $server $(jobs -p) 2> /dev/null || true' EXIT
until grep -qs "^ward-5:" "$out/server.log"; do
    kill -0 "$server" 2> /dev/null || { cat "$out/server.log"; exit 1; }
    sleep 0.2
done

for number in 1 2 3 4 5; do
    ward="$out/wards/client-$((number - 1))"
    cp "$here/policies/ward-$number.toml" "$ward/site.toml" # its paths begin at the folder that it lies in
    token=$(sed -n "s/^ward-$number:  fednlp join \([^ ]*\) .*/\1/p" "$out/server.log")
    echo "$token" | FEDNLP_HOME="$ward/state" "$fednlp" join - --policy "$ward/site.toml" > "$ward/log.txt" 2>&1 &
done

wait "$server" || { cat "$out/server.log"; exit 1; }
wait
tail -n 14 "$out/server.log"
"$fednlp" report "$out/server"
