#!/bin/sh
# A feltd worker in sh, curl and jq, for Linux: FELTD_URL=… FELTD_KEY=… sh worker.sh CMD
# Runs CMD for each workload: input on stdin, output on stdout; exit code 0 completes, 75 is transient, else it fails.
# It keeps max_duration_ms, refuses any other bound, goes by what comes `next`. Ends with 0 drained or told to stop, 1 refused, 3 when another process took the name.
set -u && command=$1 name=${FELTD_NAME:-$(uname -n)} lease=${FELTD_LEASE_MS:-30000} process=$(cat /proc/sys/kernel/random/uuid)
job='' leaving='' path='' request='' now=0 due=0 hold=0 # while a job runs no call is needed before due; none is allowed before hold
home=$PWD dir=$(mktemp -d) && cd "$dir" && touch claim end code || exit 1
trap '[ -z "$job" ] || kill -9 "-$job"; rm -rf "$dir"' EXIT
trap 'leaving=${leaving:-$now}; [ -z "$path" ] || (echo "{}" >drain.body; call drain "$path/drain" 5)' TERM INT
now() { read -r now _ </proc/uptime; now=${now%.*}${now#*.}0; } # ms; goes on in a suspend
bearer() { printf 'Authorization: Bearer %s\nContent-Type: application/json\n' "$1" >bearer; }
call() { # call NAME PATH SECONDS: POST NAME.body; the answer is in NAME, what to do in $next
  curl -s -m "$3" -o "$1" -D "$1.head" -w '%{http_code}' -H @bearer --data-binary "@$1.body" "$FELTD_URL$2" >"$1.code" &
  curl=$! && while wait "$curl"; [ $? -gt 128 ] && kill -0 "$curl" 2>/dev/null; do :; done # a signal ends the wait only
  case $(cat "$1.code") in 2*) next=ok && return ;; 000) next=repeat ;; *) next=$(jq -r .next "$1" || echo repeat) ;; esac
  after=$(sed -n 's/^[Rr]etry-[Aa]fter: *\([0-9]*\).*/\1/p' "$1.head")
  now && hold=$((now + ${after:-0} * 1000 + 100 + $(od -An -N2 -tu2 /dev/urandom) % 900))
}
obey() { # obey REASON: do what $next says, for the worker as a whole
  case $next in
  stop) echo "stopped: $1" >&2 && case $1 in WORKER_RECOVERY*) exit 0 ;; taken_over) exit 3 ;; esac; exit 1 ;;
  register) register false ;; reconcile) reconcile ;; ask_operator | fix_request) echo "$1" >&2 && hold=$((now + 5000)) ;; esac
}
register() { # register TAKEOVER: only a process that begins takes the name from another
  printf '{"name": "%s", "runtime": "process", "version": "1", "capacity": {"concurrency": 1}, "process_id": "%s",
    "takeover": %s, "issue_key": true}' "$name" "$process" "$1" >me.body && bearer "$FELTD_KEY"
  while call me /v1/workers 20 && [ "$next" != ok ]; do
    case $leaving$next in repeat | wait) sleep $(((hold - now) / 1000 + 1)) ;; [0-9]*) exit 0 ;; *) cat me >&2; "$1" && exit 1; exit 3 ;; esac
  done
  jq --argjson lease "$lease" '.worker | {worker_id, capability_version, version, capacity: {concurrency: 1},
    health: "HEALTHY", renew_leases: true, lease_ms: $lease}' me >beat && path=/v1/workers/$(jq -r .worker_id beat)
  bearer "$(jq -r .worker_key me)" && every=$(jq "[.worker.heartbeat_interval_ms, $lease / 3, 20000] | min | floor" me)
}
reconcile() { # both sides hold the same claim afterwards; the daemon's rows decide
  jq -s '.[0] + {known_claims: [.[1:][].claim_id]} | {worker_id, capability_version, worker_version: .version,
    known_claims}' beat claim >same.body && call same "$path/reconcile" 5 && [ "$next" = ok ] || return
  [ "$(jq -r '.authoritative_claims[0].claim_id' same)" = "$(jq -r .claim_id claim)" ] || { drop; take .authoritative_claims same; }
}
take() { # take MEMBERS ANSWER: run what was given, without the worker's key; one that leaves gives it back
  jq -e "[$1] | add[0] // empty" "$2" >claim && if [ -n "$leaving" ]; then stop release && return; fi || return
  jq -j '.runtime_policy | del(.max_duration_ms, .artifact_policy) | to_entries[] | select(.value | . and . != "inherit").key + " "' claim >asked
  if [ -s asked ]; then stop fail '"start": true, "kind": "policy_unenforceable", "message": "cannot be enforced: '"$(cat asked)"'"' && return; fi
  jq -c .input claim >input && token=$(jq .fencing_token claim) limit=$(jq '.runtime_policy.max_duration_ms / 1000' claim)
  (cd "$home" && exec env -u FELTD_KEY FELTD_FENCING_TOKEN="$token" setsid sh -c '(sleep "$3"; echo timeout >>"$2"; kill -9 0) &
    sh -c "$1"; echo $? >>"$2"; kill -9 0' - "$command" "$dir/code" "$limit") <input >out 2>err & job=$!
}
drop() { [ -z "$job" ] || kill -9 "-$job"; job='' && : >code && : >claim && : >end; }
stop() { cp claim kept && drop && mv kept claim && printf '{"verb": "%s", "body": {%s}}' "$1" "${2:-}" >end; }
finish() { # the job has ended: what its exit code means
  tail -c 2000 err | tr -d '\000' | jq -Rs --arg code "$(head -n 1 code)" --rawfile out out '
    if $code == "0" then {verb: "complete", body: {output: ($out | try fromjson catch ($out | rtrimstr("\n"))), start: true}}
    else {verb: "fail", body: {kind: ({"75": "transient", timeout: "timeout"}[$code] // "execution_error"), start: true,
      message: (if $code == "timeout" then "max_duration_ms is over" else "exit code \($code): \(.)" end), on_secret: "redact"}} end' >end && job='' && : >code
}
exchange() { # one round trip: beat and renew, deliver an outcome, take work where there is room for it
  now && sent=$now request=${request:-$(cat /proc/sys/kernel/random/uuid)} && [ -z "$job$leaving" ] && want=$request || want=''
  jq --slurpfile claim claim --slurpfile said end --arg want "$want" --argjson every "$every" '
    {heartbeat: (. + {running_claims: [$claim[].claim_id]})}
    | if $want != "" then .claim = {lease_ms: .heartbeat.lease_ms, wait_ms: $every, start: true, request_id: $want} else . end
    | if $said != [] then .[$said[0].verb] = [$said[0].body + ($claim[0] | {claim_id, workload_id, worker_id, fencing_token})]
      else . end' beat >trip.body && due=$((now + every)) && call trip "$path/exchange" "$([ "$want" ] && echo 30 || echo 5)"
  [ "$next" = ok ] || { obey "$(jq -r '.reasons[0].code // .code' trip)" && return; }
  set -- $(jq -r --arg held "$(jq -r .claim_id claim)" '[.outcomes[0].next // "ok", .outcomes[0].code // "-",
    (.outcomes[1] | if . == null then "none" elif .ok then "done" else .next end), (if .fenced_claims | index($held) then "lost"
    elif .cancel_claims | index($held) then "cancelled" elif .unknown_claims != [] then "unknown" else "well" end)] | join(" ")' trip)
  request='' next=$1 && [ "$next" != ok ] || give_up=$((sent + lease * 2 / 3))
  case $3-$4 in
  done-* | drop_claim-* | none-lost) drop ;;
  none-unknown) reconcile ;; none-cancelled) stop fail '"kind": "cancelled", "message": "told to stop"' ;;
  fix_request-*) grep -q complete end && stop fail '"kind": "execution_error", "message": "output refused"' || stop release ;;
  esac
  if [ "$next" != ok ]; then obey "$2"; elif [ ! -s claim ]; then take .claims,.assigned_claims trip; fi
  [ -s claim ] || hold=$((hold > sent + 300 ? hold : sent + 300)) # not in a tight circle
}
register true
while now && [ -z "$leaving" ] || { [ -s claim ] && [ "$now" -lt $((leaving + 30000)) ]; }; do
  if [ -s code ]; then finish; elif [ -n "$job" ] && { [ "$now" -ge "$give_up" ] || [ "$now" -ge $((${leaving:-$now} + 25000)) ]; }; then stop release; fi
  if [ "$now" -lt "$hold" ] || { [ -n "$job" ] && [ "$now" -lt "$due" ]; }; then sleep 0.1; else exchange; fi
done; exit 0
