// A feltd worker in Go's standard library (1.19): go build worker.go, then FELTD_URL=… FELTD_KEY=… ./worker CMD runs CMD for each
// workload: input on stdin, output on stdout; exit code 0 completes, 75 is transient, else it fails. Keeps max_duration_ms, refuses other
// bounds, goes by `next`. Ends with 0 drained or told to stop, 1 refused, 3 when another took the name. (gofmt would double the lines.)
package main; import ("bytes"; "encoding/json"; "fmt"; "math"; "net/http"; "os"; "os/exec"; "os/signal"; "strings"; "syscall"; "time")
type told struct { // an answer, an item of an exchange's, or a claim, as far as it matters here
	Next, Code, Worker_key, Worker_id, Claim_id, Workload_id string; Fencing_token int64; Input json.RawMessage; after time.Duration
	Worker struct { Worker_id string; Capability_version, Heartbeat_interval_ms int64 }; Reasons, Outcomes []told
	Claims, Assigned_claims, Authoritative_claims []*told; Fenced_claims, Cancel_claims, Unknown_claims []string
	Runtime_policy map[string]any; program *exec.Cmd; verb, said string; until time.Time } // of a claim: what runs, how it ended, how long it is believed in
var me, job, ended, leaving, hurry, process = told{}, &told{}, make(chan func(), 9), false, false, fmt.Sprint("go-", time.Now().UnixNano())
var lease, every, requests, name, registrar, overdue = 30 * time.Second, time.Duration(0), 0, "", os.Getenv("FELTD_KEY"), -9 // job: what is held, nothing while it has no id
func call(path, key, body string, wait time.Duration) (it told) { // one try; silence means repeat
	asked, _ := http.NewRequest("POST", os.Getenv("FELTD_URL")+path, strings.NewReader(body))
	asked.Header = http.Header{"Authorization": {"Bearer " + key}, "Content-Type": {"application/json"}}
	got, err := (&http.Client{Timeout: wait + 5*time.Second}).Do(asked); if err != nil { return told{Next: "repeat"} }
	if it.after, _ = time.ParseDuration(got.Header.Get("Retry-After") + "s"); json.NewDecoder(got.Body).Decode(&it) != nil { it.Next = "repeat" }
	got.Body.Close(); return it
}
func mine(verb, body string, wait time.Duration) told { return call("/v1/workers/"+me.Worker.Worker_id+"/"+verb, me.Worker_key, body, wait) }
func who() string { return fmt.Sprintf(`"worker_id": %q, "capability_version": %d`, me.Worker.Worker_id, me.Worker.Capability_version) }
func quoted(text string) string { it, _ := json.Marshal(text); return string(it) }
func kill() { if job.program != nil && job.verb == "" { syscall.Kill(-job.program.Process.Pid, syscall.SIGKILL) } }
func finish(verb, said string) { kill(); job.verb, job.said = verb, said }
func end(code int, why string) { kill(); fmt.Fprintln(os.Stderr, "stopped:", why); os.Exit(code) }
func obey(it told, takeover bool) { // what comes next for the worker as a whole
	switch why := append(it.Reasons, it)[0].Code; it.Next {
	case "stop": end(1+map[string]int{"WORKER_RECOVERY_REQUIRED": -1, "taken_over": 2}[why], why)
	case "reconcile": kill(); job = &told{} // nothing is held any more; what the daemon has all the same is given back
		for _, job = range mine("reconcile", "{"+who()+`, "worker_version": "1"}`, 0).Authoritative_claims { finish("release", "") }
	case "register": // only a process that begins takes the name from another
		for me.Next = "register"; me.Next != ""; obey(told{after: me.after}, false) {
			me = call("/v1/workers", registrar, fmt.Sprintf(`{"name": %q, "runtime": "process", "version": "1", "process_id": %q,
				"capacity": {"concurrency": 1}, "takeover": %t, "issue_key": true}`, name, process, takeover), 15*time.Second)
			if !strings.Contains("repeat wait", me.Next) { end(map[bool]int{true: 1, false: 3}[takeover], me.Code) } }
		if every = time.Duration(me.Worker.Heartbeat_interval_ms) * time.Millisecond; every > lease/3 { every = lease / 3 }
	default: time.Sleep(it.after + 100*time.Millisecond + time.Duration(time.Now().UnixNano()%9e8)) } } // not in step with others
func begin(it *told) { // run what was given, in a group of its own and without the key; a process that leaves gives it back
	if job, it.until = it, time.Now().Add(lease*2/3); leaving { finish("release", ""); return }
	for member, asked := range it.Runtime_policy { if asked != nil && asked != "inherit" && member != "max_duration_ms" && member != "artifact_policy" {
		finish("fail", `, "start": true, "kind": "policy_unenforceable", "message": `+quoted(member+" cannot be enforced here")); return } }
	run, out, errs := exec.Command("/bin/sh", "-c", os.Args[1]), &bytes.Buffer{}, &bytes.Buffer{}
	run.Stdin, run.Stdout, run.Stderr, run.SysProcAttr = bytes.NewReader(it.Input), out, errs, &syscall.SysProcAttr{Setpgid: true}
	run.Env = append(os.Environ(), fmt.Sprint("FELTD_FENCING_TOKEN=", it.Fencing_token))
	if it.program = run; run.Start() != nil { panic("no /bin/sh") }; limit := math.Min(9e12, it.Runtime_policy["max_duration_ms"].(float64))
	late := time.AfterFunc(time.Duration(limit)*time.Millisecond, func() { syscall.Kill(-run.Process.Pid, syscall.SIGKILL) })
	go func() { run.Wait(); code, said := run.ProcessState.ExitCode(), errs.String(); if !late.Stop() { code, said = overdue, "max_duration_ms is over" }
		ended <- func() { if it == job && it.verb == "" { result(code, out.String(), said) } } }()
}
func result(code int, output, said string) { // what the exit code of the program means
	kind, message := map[int]string{75: "transient", overdue: "timeout"}[code], quoted(fmt.Sprintf("exit code %d: %.2000s", code, said))
	if !json.Valid([]byte(output)) { output = quoted(strings.TrimSpace(output)) }; if kind == "" { kind = "execution_error" }
	if finish("complete", `, "start": true, "output": `+output); code != 0 { finish("fail", `, "start": true, "on_secret": "redact", "kind": "`+kind+`", "message": `+message) }
}
func exchange() { // one round trip: beat and renew, deliver an outcome, take work where there is room for it
	sent, it, wait, held, more := time.Now(), job, every, strings.TrimPrefix(quoted(job.Claim_id), `""`), ""
	if it.verb != "" { more = fmt.Sprintf(`, %q: [{"workload_id": %q, "claim_id": %s, "worker_id": %q, "fencing_token": %d%s}]`,
		it.verb, it.Workload_id, held, it.Worker_id, it.Fencing_token, it.said) } else if held != "" { wait = 0 }
	got := mine("exchange", fmt.Sprintf(`{"heartbeat": {%s, "version": "1", "capacity": {"concurrency": 1}, "health": "HEALTHY",
		"running_claims": [%s], "renew_leases": true, "lease_ms": %d}, "claim": {"lease_ms": %[3]d, "wait_ms": %d, "start": true,
		"request_id": "%s-%d"}%s}`, who(), held, lease.Milliseconds(), wait.Milliseconds(), process, requests, more), wait)
	if got.Next != "" { obey(got, false); return }; beat, item := got.Outcomes[0], append(got.Outcomes, told{Next: "none"})[1]
	if requests++; beat.Next == "" { it.until = sent.Add(lease * 2 / 3) }
	switch named := func(ids []string) bool { return held != "" && strings.Contains(fmt.Sprintf("%q", ids), held) }; {
	case item.Next == "fix_request": result(1, "", "what was said of it was refused")
	case item.Next == "" || item.Next == "drop_claim" || item.Next == "none" && named(got.Fenced_claims): kill(); job = &told{}
	case it.verb == "" && named(got.Cancel_claims): finish("fail", `, "kind": "cancelled", "message": "told to stop"`)
	}
	if len(got.Unknown_claims) > 0 { beat.Next = "reconcile" }; if beat.Next != "" { obey(beat, false) }
	if given := append(got.Claims, got.Assigned_claims...); job.Claim_id == "" && len(given) > 0 { begin(given[0]) }
	if job.Claim_id == "" { time.Sleep(time.Until(sent.Add(every / 4))) } // not in a tight circle
	for due := sent.Add(every); job.Claim_id != "" && job.verb == "" && time.Now().Before(due); {
		select { case settle := <-ended: settle(); case <-time.After(every / 50): if hurry || job.until.Before(time.Now()) { finish("release", "") } } }
}
func main() {
	stop := make(chan os.Signal, 1); signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT); os.Unsetenv("FELTD_KEY"); name, _ = os.Hostname(); fmt.Sscan(os.Getenv("FELTD_NAME"), &name)
	if given, err := time.ParseDuration(os.Getenv("FELTD_LEASE_MS") + "ms"); err == nil { lease = given }
	go func() { if <-stop; every > 0 { leaving = true; mine("drain", "{}", 0); time.Sleep(25 * time.Second); hurry = true; time.Sleep(5 * time.Second) }; end(0, "told to stop") }()
	for obey(told{Next: "register"}, true); job.Claim_id != "" || !leaving; { exchange() }; end(0, "told to stop")
}
