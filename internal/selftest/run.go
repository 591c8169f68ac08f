package selftest

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Outcome is how an attempt ended.
type Outcome struct {
	Attempt
	State    string `json:"state"`              // held, failed, skipped or "not made"
	Evidence string `json:"evidence,omitempty"` // what was reached, or why it was skipped or not made
	Output   string `json:"-"`
}

// The states of an outcome.
const (
	Held    = "held"
	Failed  = "failed"
	Skipped = "skipped"
	NotMade = "not made" // it did not begin: that nothing was reached says nothing
)

// A script prints begun first, or lacks and the name of a program.
const begun, lacks = "BEGUN", "LACKS "

// Options says what is attacked.
type Options struct {
	Program string   // scopefs itself
	Against string   // another sandbox: a command before the attempt's, with {dir} for the agent's directory; or, with {mnt}, one that mounts it
	Only    []string // classes, or beginnings of ids; empty: all
	Each    func(Outcome)
}

// attemptTime limits one attempt. A busy host takes long to start a daemon.
const attemptTime = time.Minute

// maxOutput limits what is kept of an attempt's output, in bytes.
const maxOutput = 1 << 20

// Run tries all attempts, one after the other, and calls o.Each with each outcome.
func Run(ctx context.Context, o Options) error {
	list, err := Attempts()
	if err != nil {
		return err
	}
	host, err := newOutside()
	if err != nil {
		return err
	}
	defer host.close()
	t, err := newTarget(ctx, o, host)
	if err != nil {
		return err
	}
	defer t.end()
	if err := t.works(ctx); err != nil {
		return err
	}
	known := false
	for _, a := range list {
		if len(o.Only) > 0 && !slices.ContainsFunc(o.Only, func(w string) bool { return w == a.Class || strings.HasPrefix(a.ID, w) }) {
			continue
		}
		known = true
		if err := ctx.Err(); err != nil {
			return err
		}
		done := Outcome{Attempt: a, State: Skipped, Evidence: t.skips(a)}
		if done.Evidence == "" {
			if err := t.made(ctx, &done); err != nil {
				return err
			}
			if done.Evidence != "" && a.Class == "network" { // another program of the host may have connected to a port of ours
				if err := t.made(ctx, &done); err != nil {
					return err
				}
			}
			done.judge()
		}
		o.Each(done)
	}
	if !known {
		return fmt.Errorf("no attempt is named %s: scopefs selftest --list has all", strings.Join(o.Only, ", "))
	}
	return nil
}

// judge sets the state by the evidence and, if there is none, by whether the attempt was made.
func (o *Outcome) judge() {
	_, missing, lacking := strings.Cut(o.Output, lacks)
	switch {
	case o.Evidence != "":
		o.State = Failed
	case o.late:
		o.State, o.Evidence = NotMade, fmt.Sprintf("it did not end within %v", attemptTime)
	case o.script != "" && lacking && !strings.Contains(o.Output, begun):
		o.State, o.Evidence = Skipped, "the sandbox has no "+missing[:max(0, strings.IndexByte(missing, '\n'))]
	case o.script != "" && !strings.Contains(o.Output, begun), o.script == "" && unheard(o.Output),
		o.calls != "" && strings.Contains(o.Output, `"error":`):
		o.State, o.Evidence = NotMade, lastLine(o.Output)
	default:
		o.State = Held
	}
}

// refusals are the answers to a call that a tool, or the door, has looked at, and to a task that has killed itself: the number of
// a process of the host may be that of one in the sandbox.
var refusals = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^scopefs: {"code":"((outside_scope|denied|not_found|conflict|too_large|invalid)","message":"|internal","message":"other ended by SIG[A-Z]+: begun)`)
})

// unheard reports whether nothing has looked at a call: its arguments are not those of the tool, or scopefs has failed.
func unheard(output string) bool {
	at := refusals().FindString(output)
	return output == "" || at == "" && strings.HasPrefix(output, "scopefs: ") || strings.HasPrefix(output[len(at):], "arguments: ")
}

// target is what is attacked.
type target struct {
	host    *outside
	program string    // scopefs; "": another sandbox
	before  []string  // words before those of an attempt
	sockets string    // the directory of the daemon's socket; "": each command has a daemon of its own
	mount   string    // where the scope is mounted on the host; "": nowhere
	mounter *exec.Cmd // the process that mounts it; nil: none
	exited  chan struct{}
	stores  string // why there are none
	view    string // why no view is mounted on the host
}

func newTarget(ctx context.Context, o Options, host *outside) (*target, error) {
	t := &target{host: host, program: o.Program}
	if o.Against == "" {
		if err := t.define(ctx); err != nil {
			return nil, err
		}
		if os.Geteuid() != 0 {
			t.view = "the host does not see the view of an ordinary user"
			return t, nil
		}
		t.sockets = filepath.Join(host.dir, "run") // define had a daemon for each call
		return t, t.serve(filepath.Join(t.sockets, "views/a"), t.scopefs("daemon"))
	}
	t.program = ""
	words := strings.Fields(strings.ReplaceAll(o.Against, "{dir}", host.scope))
	if !strings.Contains(o.Against, "{mnt}") {
		t.before, t.view = words, "nothing is mounted on the host"
		return t, nil
	}
	mount := filepath.Join(host.dir, "mnt")
	if err := os.Mkdir(mount, 0o755); err != nil {
		return nil, err
	}
	for i := range words {
		words[i] = strings.ReplaceAll(words[i], "{mnt}", mount)
	}
	return t, t.serve(mount, words)
}

// serve starts a command and waits until it has mounted something. An interrupt does not kill it: end lets it unmount.
func (t *target) serve(mount string, words []string) error {
	said := &limited{}
	t.mount, t.mounter, t.exited = mount, exec.Command(words[0], words[1:]...), make(chan struct{})
	t.mounter.Env, t.mounter.Stderr, t.mounter.WaitDelay = ownEnv(), said, time.Second
	if err := t.mounter.Start(); err != nil {
		t.mounter = nil
		return fmt.Errorf("%s: %w", words[0], err)
	}
	go func() { _ = t.mounter.Wait(); close(t.exited) }()
	for end := time.Now().Add(attemptTime); ; {
		gone := false
		select {
		case <-t.exited:
			gone = true
		case <-time.After(20 * time.Millisecond):
		}
		switch {
		case t.mounted():
			return nil
		case gone, time.Now().After(end):
			t.end()
			return fmt.Errorf("%q has not mounted anything at %s: %s", words[0], t.mount, lastLine(said.String()))
		}
	}
}

// ownEnv returns the environment without what the user has set for his own daemon.
func ownEnv() []string {
	return slices.DeleteFunc(os.Environ(), func(kv string) bool { return strings.HasPrefix(kv, "SCOPEFS_") })
}

func (t *target) mounted() bool {
	var here, above unix.Stat_t
	return unix.Stat(t.mount, &here) == nil && unix.Stat(t.host.dir, &above) == nil && here.Dev != above.Dev
}

// end ends what mounts, and unmounts what it leaves.
func (t *target) end() {
	if t.mounter == nil {
		return
	}
	_ = t.mounter.Process.Signal(unix.SIGINT) // SIGTERM would leave views to another daemon
	select {
	case <-t.exited:
	case <-time.After(attemptTime):
		_ = t.mounter.Process.Kill()
		<-t.exited
	}
	if unix.Unmount(t.mount, unix.MNT_DETACH) == unix.EPERM { // of an ordinary user
		_ = exec.Command("fusermount3", "-uz", t.mount).Run()
	}
}

// runner does the task that it gets as a script of sh.
const runner = `["sh", "-c", "exec sh -c \"$(sed -n '/^<task from/,/^<.task>/p' | sed '1d;$d')\" 2>&1"]`

// define writes the definitions of the agents, and gives those that do not attack what stores and contexts hold.
func (t *target) define(ctx context.Context) error {
	for name, text := range map[string]string{
		"agents.d/a.md": "---\nname: a\nprotect: ['*']\ntools: ['*']\nnetwork: {allow: [allowed.example, '*.allowed.example']}\n" +
			"view: {changes: direct}\nscopes: {enum: [state, notes]}\n---\n",
		"agents.d/boss.md":       "---\nname: boss\ntools: [list_dir, delegate]\nmembers: [other]\nscopes: {enum: [state]}\n---\n",
		"agents.d/other.md":      "---\nname: other\ntools: ['*']\n---\n",
		"activities.d/look.json": `{"description": "See the state.", "inputSchema": {"type": "object", "properties": {"_scopes": {"const": ["state"]}}}}`,
		"scopefs.yaml":           "stores: {kv: {}, sql: {}, messages: {}}\nrunner: " + runner + "\n",
		"context.json": strings.ReplaceAll(`[{"type": "state", "text": "own"}, {"type": "state", "_instance": "2", "text": "$-instance"},
			{"type": "notes", "text": "$-notes"}, {"type": "secret", "text": "$-context"}]`, "$", t.host.token),
	} {
		name = filepath.Join(t.host.dir, "base", name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(text), 0o644)); err != nil {
			return err
		}
	}
	for _, words := range [][]string{
		{"kv_set", "key=secret", "value=" + t.host.token + "-key"},
		{"sql_execute", "sql=CREATE TABLE secrets AS SELECT '" + t.host.token + "-table' AS x"},
		{"publish", "subject=secret", "text=" + t.host.token + "-message"},
	} {
		if o, err := t.run(ctx, t.host.scope, "", t.scopefs("call", append([]string{"--agent", "other"}, words...)...)); err != nil {
			t.stores = "there are no stores: " + strings.TrimSpace(o.String())
		}
	}
	return nil
}

// works returns an error unless what is attacked runs commands and calls at all.
func (t *target) works(ctx context.Context) error {
	if err := t.host.plant(); err != nil {
		return err
	}
	own := filepath.Join(t.host.scope, "own")
	if err := os.WriteFile(own, []byte("own file\n"), 0o644); err != nil {
		return err
	}
	attempts := []Attempt{{script: "cat own"}}
	if t.program != "" {
		attempts = append(attempts, Attempt{call: []string{"read_file", "path=own"}})
	}
	for _, a := range attempts {
		o := Outcome{Attempt: a}
		if t.try(ctx, &o); !strings.Contains(o.Output, "own file") {
			return fmt.Errorf("nothing can be tried: a command in the sandbox cannot read a file of its own: %s", lastLine(o.Output))
		}
	}
	return nil
}

// made makes an attempt on files that are new.
func (t *target) made(ctx context.Context, o *Outcome) error {
	if err := t.host.plant(); err != nil {
		return err
	}
	t.try(ctx, o)
	o.Evidence = t.host.evidence(o.Output, o.Class == "network")
	return nil
}

func lastLine(text string) string {
	text = strings.TrimSpace(text)
	return text[strings.LastIndexByte(text, '\n')+1:]
}

func (t *target) scopefs(command string, words ...string) []string {
	argv := []string{t.program, command, "--base", filepath.Join(t.host.dir, "base")}
	if t.sockets != "" {
		argv = append(argv, "--run", t.sockets)
	}
	return append(argv, words...)
}

// skips returns why an attempt is not made; "" if it is.
func (t *target) skips(a Attempt) string {
	switch name := a.missing(); {
	case name != "":
		return "this host has no " + name
	case a.Class == "view" && t.view != "":
		return t.view
	case t.program != "" && a.Class == "stores":
		return t.stores
	case t.program != "":
		return ""
	case a.own:
		return "it is for scopefs alone"
	case t.mount != "" && a.Class != "view" && a.Class != "host":
		return "a mount alone promises nothing of that"
	}
	return ""
}

// try makes an attempt, and keeps what it printed.
func (t *target) try(ctx context.Context, o *Outcome) {
	words := t.host.words()
	var begin strings.Builder
	for _, name := range o.needs { // the sandbox may lack what the host has
		fmt.Fprintf(&begin, "%[1]s --version >/dev/null 2>&1 || { echo %[2]s%[1]s; exit; }\n", name, lacks)
	}
	argv := []string{"sh", "-c", begin.String() + "echo " + begun + "\n" + words.Replace(o.script)}
	dir, input := t.host.scope, ""
	switch {
	case t.program == "" && t.mount != "", o.Class == "view":
		dir = t.mount
	case t.program == "":
		argv = slices.Concat(t.before, argv)
	case o.script == "":
		argv = t.scopefs("call", "--agent", cmp.Or(o.as, "a"), "--context", filepath.Join(t.host.dir, "base/context.json"), "--")
		for _, word := range o.call {
			argv = append(argv, words.Replace(word))
		}
		if input = words.Replace(o.calls); input != "" {
			argv = append(argv, "-")
		}
	default:
		argv = t.scopefs("run", slices.Concat([]string{"a", "--"}, argv)...)
	}
	out, err := t.run(ctx, dir, input, argv)
	o.Output, o.late = out.String(), errors.Is(err, context.DeadlineExceeded)
}

// run runs a command, with a secret in its environment and descriptors of what is outside, and returns what it printed.
func (t *target) run(ctx context.Context, dir, input string, argv []string) (*limited, error) {
	ctx, cancel := context.WithTimeout(ctx, attemptTime)
	defer cancel()
	out := &limited{token: t.host.token}
	f, err := os.Open(t.host.out)
	if err != nil {
		return out, err
	}
	defer f.Close()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir, cmd.Stdin = dir, strings.NewReader(input)
	cmd.Env = append(ownEnv(), "SELFTEST_SECRET="+t.host.token+"-variable")
	cmd.ExtraFiles = []*os.File{f, f, f, f, f, f, t.host.secret} // the last is 9
	cmd.WaitDelay = time.Second
	cmd.Stdout, cmd.Stderr = out, out
	err = cmd.Run()
	return out, cmp.Or(ctx.Err(), err)
}

// limited keeps maxOutput of what is written, and the first place of the token in what is beyond.
type limited struct {
	kept  []byte
	token string
	tail  []byte // the end of what was dropped
	found string
}

func (l *limited) Write(b []byte) (int, error) {
	n := max(0, min(len(b), maxOutput-len(l.kept)))
	l.kept = append(l.kept, b[:n]...)
	if n == len(b) || l.found != "" {
		return len(b), nil
	}
	if l.tail == nil {
		l.tail = l.kept[len(l.kept)-min(len(l.kept), len(l.token)):]
	}
	beyond := append(slices.Clone(l.tail), b[n:]...)
	if i := bytes.Index(beyond, []byte(l.token)); i >= 0 {
		l.found = string(beyond[i:min(len(beyond), i+len(l.token)+20)])
	}
	l.tail = beyond[len(beyond)-min(len(beyond), len(l.token)):]
	return len(b), nil
}

func (l *limited) String() string { return string(l.kept) + l.found }
