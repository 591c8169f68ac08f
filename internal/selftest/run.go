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
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Outcome is how an attempt ended.
type Outcome struct {
	Attempt
	State    string `json:"state"`              // held, failed, skipped or "not made"
	Evidence string `json:"evidence,omitempty"` // what was reached, or why it was skipped
	Output   string `json:"-"`
}

// The states of an outcome.
const (
	Held    = "held"
	Failed  = "failed"
	Skipped = "skipped"
	NotMade = "not made" // it did not begin: that nothing was reached says nothing
)

// begun is what a script prints first.
const begun = "BEGUN"

// Options says what is attacked.
type Options struct {
	Program string   // scopefs itself
	Against string   // another sandbox: a command before the attempt's, with {dir} for the agent's directory; or, with {mnt}, one that mounts it
	Only    []string // classes, or beginnings of ids; empty: all
	Each    func(Outcome)
}

// attemptTime limits one attempt.
const attemptTime = 20 * time.Second

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
			done.State = Held
			switch {
			case done.Evidence != "":
				done.State = Failed
			case a.call == nil && !strings.Contains(done.Output, begun):
				done.State, done.Evidence = NotMade, lastLine(done.Output)
			}
		}
		o.Each(done)
	}
	if !known {
		return fmt.Errorf("no attempt is named %s: scopefs selftest --list has all", strings.Join(o.Only, ", "))
	}
	return nil
}

// target is what is attacked.
type target struct {
	host    *outside
	program string   // scopefs; "": another sandbox
	before  []string // words before those of an attempt
	mount   string   // where a command has mounted the scope; "": nowhere
	stores  string   // why there are none
}

func newTarget(ctx context.Context, o Options, host *outside) (*target, error) {
	t := &target{host: host, program: o.Program}
	if o.Against == "" {
		return t, t.define(ctx)
	}
	t.program = ""
	words := strings.Fields(strings.ReplaceAll(o.Against, "{dir}", host.scope))
	if !strings.Contains(o.Against, "{mnt}") {
		t.before = words
		return t, nil
	}
	t.mount = filepath.Join(host.dir, "mnt")
	if err := os.Mkdir(t.mount, 0o755); err != nil {
		return nil, err
	}
	for i := range words {
		words[i] = strings.ReplaceAll(words[i], "{mnt}", t.mount)
	}
	cmd := exec.CommandContext(ctx, words[0], words[1:]...)
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("--against: %w", err)
	}
	go func() { _ = cmd.Wait() }()
	for end := time.Now().Add(10 * time.Second); !t.mounted(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.end()
			return nil, fmt.Errorf("--against: %q has not mounted anything at %s", words[0], t.mount)
		}
	}
	return t, nil
}

func (t *target) mounted() bool {
	var here, above unix.Stat_t
	return unix.Stat(t.mount, &here) == nil && unix.Stat(t.host.dir, &above) == nil && here.Dev != above.Dev
}

func (t *target) end() {
	if t.mount != "" {
		_ = unix.Unmount(t.mount, unix.MNT_DETACH)
		if t.mounted() { // of an ordinary user
			_ = exec.Command("fusermount3", "-uz", t.mount).Run()
		}
	}
}

// define writes the definitions of two agents, and gives the other one what stores hold.
func (t *target) define(ctx context.Context) error {
	const stores = "stores: {kv: {}, sql: {}, messages: {}}\n"
	for name, text := range map[string]string{
		"agents.d/a.md":     "---\nname: a\nprotect: ['*']\ntools: ['*']\nnetwork: {allow: [allowed.example]}\nview: {changes: direct}\n---\n",
		"agents.d/other.md": "---\nname: other\ntools: ['*']\n---\n",
		"scopefs.yaml":      stores,
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
		if out, err := t.run(ctx, t.scopefs("call", append([]string{"--agent", "other"}, words...)...)); err != nil {
			t.stores = "there are no stores: " + strings.TrimSpace(out)
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
		if out := t.try(ctx, a, t.host.words()); !strings.Contains(out, "own file") {
			return fmt.Errorf("nothing can be tried: a command in the sandbox cannot read a file of its own: %s", lastLine(out))
		}
	}
	return nil
}

// made makes an attempt on files that are new.
func (t *target) made(ctx context.Context, o *Outcome) error {
	if err := t.host.plant(); err != nil {
		return err
	}
	o.Output = t.try(ctx, o.Attempt, t.host.words())
	o.Evidence = t.host.evidence(o.Output, o.Class == "network")
	return nil
}

func lastLine(text string) string {
	text = strings.TrimSpace(text)
	return text[strings.LastIndexByte(text, '\n')+1:]
}

func (t *target) scopefs(command string, words ...string) []string {
	return append([]string{t.program, command, "--base", filepath.Join(t.host.dir, "base")}, words...)
}

// skips returns why an attempt is not made; "" if it is.
func (t *target) skips(a Attempt) string {
	switch name := a.missing(); {
	case name != "":
		return "this host has no " + name
	case t.program != "" && a.Class == "stores":
		return t.stores
	case t.program != "":
		return ""
	case a.own:
		return "it is for scopefs alone"
	case t.mount != "" && a.Class != "files" && a.Class != "host":
		return "a mount alone keeps nothing of that"
	}
	return ""
}

// try makes an attempt, and returns its output.
func (t *target) try(ctx context.Context, a Attempt, words *strings.Replacer) string {
	argv := slices.Concat(t.before, []string{"sh", "-c", "echo " + begun + "\n" + words.Replace(a.script)})
	switch {
	case t.program != "" && a.call != nil:
		argv = t.scopefs("call", "--agent", "a", "--")
		for _, word := range a.call {
			argv = append(argv, words.Replace(word))
		}
	case t.program != "":
		argv = t.scopefs("run", slices.Concat([]string{"a", "--"}, argv)...)
	}
	out, _ := t.run(ctx, argv) // what it says of itself does not count
	return out
}

// run runs a command, with a secret in its environment and descriptors of what is outside, and returns what it printed.
func (t *target) run(ctx context.Context, argv []string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, attemptTime)
	defer cancel()
	dir, err := os.Open(t.host.out)
	if err != nil {
		return "", err
	}
	defer dir.Close()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir = cmp.Or(t.mount, t.host.scope)
	cmd.Env = slices.DeleteFunc(os.Environ(), func(kv string) bool { return strings.HasPrefix(kv, "SCOPEFS_") }) // the user's own state
	cmd.Env = append(cmd.Env, "SELFTEST_SECRET="+t.host.token+"-variable")
	cmd.ExtraFiles = []*os.File{dir, dir, dir, dir, dir, dir, t.host.secret} // the last is 9
	cmd.WaitDelay = time.Second
	var out limited
	cmd.Stdout, cmd.Stderr = &out, &out
	err = cmd.Run()
	return out.String(), err
}

// limited is a buffer that drops what is beyond maxOutput.
type limited struct{ bytes.Buffer }

func (l *limited) Write(b []byte) (int, error) {
	l.Buffer.Write(b[:max(0, min(len(b), maxOutput-l.Len()))])
	return len(b), nil
}
