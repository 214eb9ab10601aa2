// A feltd worker in Node (18 or newer) without packages: FELTD_URL=… FELTD_KEY=… node worker.mjs CMD
// Runs CMD for each workload: input on stdin, output on stdout; exit code 0 completes, 75 is transient, else it fails.
// It keeps max_duration_ms, refuses any other bound, goes by what comes `next`. Ends with 0 drained or told to stop, 1 refused, 3 when another process took the name.
import { spawn } from "node:child_process"; import { randomUUID } from "node:crypto"; import { hostname, uptime } from "node:os";
const { FELTD_URL, FELTD_KEY, FELTD_NAME = hostname(), FELTD_LEASE_MS = 30000, ...env } = process.env;
const lease_ms = Number(FELTD_LEASE_MS), process_id = randomUUID(), capacity = { concurrency: 1 };
let me, key, request_id = randomUUID(), job = null, leaving_at = Infinity; // job: the claim, its program, its outcome
const now = () => uptime() * 1000, sleep = (ms) => new Promise((done) => setTimeout(done, ms)); // goes on in a suspend
const pause = ({ after_ms = 0 }) => sleep(after_ms + 100 + Math.random() * Math.max(900, after_ms)); // not in step
const mine = (verb, body) => call(`/v1/workers/${me?.worker_id}/${verb}`, body), every = () => Math.floor(Math.min(20000, me.heartbeat_interval_ms, lease_ms / 3));
const who = () => ({ worker_id: me.worker_id, capability_version: me.capability_version });
async function call(path, body, bearer = key) { // one try: the answer, or what comes `next` after a refusal or silence
  const headers = { Authorization: `Bearer ${bearer}`, "Content-Type": "application/json" };
  const asked = { method: "POST", headers, body: JSON.stringify(body), signal: AbortSignal.timeout(40000) };
  try {
    const got = await fetch(FELTD_URL + path, asked), told = await got.json();
    return got.ok ? told : { ...told, after_ms: 1000 * (got.headers.get("retry-after") ?? 0) };
  } catch (error) { return { next: "repeat", detail: String(error) }; }
}
async function obey(told) { // what comes next for the worker as a whole
  if (told.next === "stop") end({ WORKER_RECOVERY_REQUIRED: 0, taken_over: 3 }[told.reasons?.[0]?.code ?? told.code] ?? 1, told.detail);
  else if (told.next === "register") await register(false);
  else if (told.next === "reconcile") await reconcile();
  else await pause(["ask_operator", "fix_request"].includes(told.next) ? { after_ms: 5000 } : told);
}
async function register(takeover) { // only a process that begins takes the name from another
  const body = { name: FELTD_NAME, runtime: "process", version: "1", capacity, process_id, takeover, issue_key: true };
  for (let told; (told = await call("/v1/workers", body, FELTD_KEY)); await pause(told)) {
    if (told.worker_key) return void ({ worker: me, worker_key: key } = told);
    if (!["repeat", "wait"].includes(told.next)) end(takeover ? 1 : 3, told.detail);
  }
}
async function reconcile() { // both sides hold the same claim afterwards; the daemon's rows decide
  const told = await mine("reconcile", { ...who(), worker_version: "1", known_claims: job ? [job.claim_id] : [] });
  if (told.next) await pause(told);
  else if (told.authoritative_claims[0]?.claim_id !== job?.claim_id) drop(), told.authoritative_claims.forEach(begin);
}
function begin(claim) { // run what was given, without the worker's key; a process that leaves gives it back
  const it = (job = { ...claim, until: now() + (lease_ms * 2) / 3, over: now() + claim.runtime_policy.max_duration_ms, said: "", out: "" });
  if (leaving_at < Infinity) return finish("release");
  const bounds = Object.entries({ ...claim.runtime_policy, max_duration_ms: null, artifact_policy: null });
  const [asked] = bounds.find(([, value]) => value !== null && value !== "inherit") ?? [];
  if (asked) return finish("fail", { kind: "policy_unenforceable", message: `${asked} cannot be enforced here`, start: true });
  it.program = spawn("/bin/sh", ["-c", process.argv[2]], { env: { ...env, FELTD_FENCING_TOKEN: claim.fencing_token }, detached: true });
  it.program.stdout.setEncoding("utf8").on("data", (text) => (it.out += text));
  it.program.stderr.setEncoding("utf8").on("data", (text) => (it.said = (it.said + text).slice(-2000)));
  it.program.stdin.on("error", () => {}).end(JSON.stringify(claim.input)); // it need not read it
  it.program.on("close", (code) => job === it && !it.verb && ended(code, it.out.trimEnd(), it.said));
}
function ended(code, output, said) { // what the exit code of the program means
  const kind = code === 75 ? "transient" : "execution_error", message = `exit code ${code}: ${said}`;
  if (code !== 0) return finish("fail", { kind, message, on_secret: "redact", start: true });
  try { output = JSON.parse(output); } catch { /* as it stands */ } finish("complete", { output, start: true });
}
function kill() { try { if (job?.program && !job.verb) process.kill(-job.program.pid, "SIGKILL"); } catch { /* ended */ } }
const finish = (verb, body = {}) => (kill(), Object.assign(job, { verb, body })), drop = () => (kill(), (job = null));
const end = (code, why) => (kill(), console.error(`stopped: ${why}`), process.exit(code));
async function exchange() { // one round trip: beat and renew, deliver an outcome, take work where there is room for it
  const sent = now(), held = job, { claim_id, workload_id, worker_id, fencing_token, verb, body } = held ?? {};
  const heartbeat = { ...who(), version: "1", capacity, health: "HEALTHY", running_claims: held ? [claim_id] : [], renew_leases: true, lease_ms };
  const said = verb && { [verb]: [{ claim_id, workload_id, worker_id, fencing_token, ...body }] };
  const claim = held || leaving_at < Infinity ? undefined : { wait_ms: every(), lease_ms, start: true, request_id };
  const told = await mine("exchange", { heartbeat, ...said, claim }), [beat, item] = told.outcomes ?? [];
  if (told.next) return obey(told);
  request_id = randomUUID();
  if (held && beat.ok) held.until = sent + (lease_ms * 2) / 3;
  if (item?.next === "fix_request") verb === "complete" ? ended(1, "", item.detail) : finish("release");
  else if (item ? !["repeat", "wait"].includes(item.next) : held && told.fenced_claims.includes(claim_id)) drop();
  else if (held && !job.verb && told.cancel_claims.includes(claim_id)) finish("fail", { kind: "cancelled", message: "told to stop" });
  if (!beat.ok) await obey(beat);
  else if (told.unknown_claims.length) await reconcile();
  if (!job) [...told.claims, ...told.assigned_claims].slice(0, 1).forEach(begin);
  while (now() < sent + (job ? (job.verb ? 0 : every()) : 300)) await sleep(20); // not in a tight circle either
}
const over = () => finish("fail", { kind: "timeout", message: "max_duration_ms is over", start: true });
setInterval(() => job && !job.verb && (job.over <= now() ? over() : Math.min(job.until, leaving_at + 25000) <= now() && finish("release")), 50);
const leave = () => (me ? ((leaving_at = Math.min(leaving_at, now())), mine("drain", {})) : end(0, "told to stop"));
process.on("SIGTERM", leave).on("SIGINT", leave);
for (await register(true); leaving_at === Infinity || (job && now() < leaving_at + 30000); ) await exchange(); end(0, "told to stop");
