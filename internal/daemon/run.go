package daemon

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/agent"
	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/client"
	"github.com/scopefs/scopefs/internal/descriptors"
	"github.com/scopefs/scopefs/internal/ledger"
	"github.com/scopefs/scopefs/internal/session"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/agents"
	"github.com/scopefs/scopefs/scope/hosts"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/sandbox"
	"github.com/scopefs/scopefs/tools/sandbox/pid1"
	"github.com/scopefs/scopefs/tools/sshkeys"
)

// runFor runs one command, of the operator's or of the agent's user by, and returns when
// it has ended, and its sandbox. The connection is closed last: a client that waits for it
// leaves nothing behind.
func (d *Daemon) runFor(w http.ResponseWriter, r *http.Request, a *agent.Agent, by *uint32) error {
	var req api.RunRequest
	if err := body(r, &req); err != nil {
		return err
	}
	if req.Resume != nil {
		return d.resume(w, r, a, by, req)
	}
	if len(req.Argv) == 0 {
		return invalid("no command")
	}
	if err := d.unkept(a.ID(), req.Changes); err != nil {
		return err
	}
	// A daemon that ends ends the sandbox; the command alone, only its client.
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.Context()))
	defer cancel()
	var conn *runConn
	defer func() {
		if conn != nil {
			conn.Close()
		}
	}()
	var notes notes
	if by != nil && len(req.With) > 0 {
		return invalid("--with: only the operator gives an agent further directories: ask for view: {roots: [{dir: %s}]}",
			req.With[0].Dir)
	}
	if by != nil && len(req.Publish)+len(req.HostPorts) > 0 {
		return invalid("--publish and --host-port: only the operator opens ports of the host: " +
			"ask for network: {publish: [PORT]} or network: {host: {ports: [PORT]}}")
	}
	if by == nil {
		note, err := d.renew(a.ID())
		if err != nil {
			return err
		}
		notes.add(note)
	}
	keys, err := keysOf(req.SSH)
	if err == nil && by != nil && keys.Keys != nil {
		err = invalid("--ssh-agent: only the operator lends an agent a key: ask for ssh_keys in its definition")
	}
	if err != nil {
		return err
	}
	lent, err := d.lend(ctx, a, req.With)
	defer d.endRoots(context.WithoutCancel(ctx), lent) // after its sandbox
	if err != nil {
		return err
	}
	purpose, unattended := d.purposeOf(a, by, req, &notes)
	purpose.Lent = lent
	if by == nil {
		keys.Refused = purpose.SSH.Refused
		purpose.SSH = keys
	}
	defer unattended()
	for _, text := range req.Publish {
		p, err := hosts.ParsePublication(text)
		if err != nil {
			return invalid("--publish: %v", err)
		}
		purpose.Publish = append(purpose.Publish, p)
	}
	for _, text := range req.HostPorts {
		port, err := hosts.ParseHostPort(text)
		if err != nil {
			return invalid("--host-port: %v", err)
		}
		purpose.HostPorts = append(purpose.HostPorts, port)
	}
	if req.Program != nil {
		req.Program.Expose = a.Unshown(req.Program.Expose)
		if by != nil && len(req.Program.Expose) > 0 { // the daemon would open it as root
			return invalid("%s: only the operator shows more of the host than a sandbox has (%s): install it below /usr, or have it in sandbox: {expose} of scopefs.yaml", req.Program.Name, req.Program.Expose[0])
		}
		if by != nil { // nor a login, or further hosts
			req.Program.Login, req.Program.Presets = nil, nil
		}
		note, err := a.Ready(r.Context(), req.Program, req.Env, purpose.Keys)
		if err != nil {
			return err
		}
		notes.add(note)
		purpose.Expose, purpose.Presets, purpose.Login = req.Program.Expose, req.Program.Presets, req.Program.Login
		if purpose.Login != nil {
			req.Argv, req.Env = purpose.Login.Command(req.Argv, req.Env)
		}
	}
	box, err := a.Start(r.Context(), purpose)
	if err != nil {
		return err
	}
	defer box.End()
	box.Watch()
	if err := a.Honours(req.Changes); err != nil { // from here on no other command mounts the view again
		return err
	}
	if by == nil {
		notes.add(a.Unkept())
		for _, lacks := range box.Lacks() {
			notes.add(lacks)
		}
		notes.last = append(notes.last, a.Waiting, box.NotePorts())
	}
	if req.Program != nil && (req.Program.Prepare != "" || purpose.Login != nil) {
		if err := prepareProgram(ctx, a, box, by, req); err != nil {
			return err
		}
	}
	ended, err := a.RecordExec(ctx, audit.Event{Session: box.Name, Target: ledger.CommandLine(req.Argv), UID: by})
	if err != nil {
		return err
	}
	p, err := box.Exec(ctx, sandbox.Command{Argv: req.Argv, Env: req.Env, Dir: req.Dir, TTY: (*sandbox.Size)(req.TTY)})
	if err != nil {
		err = runError(req, err)
		ended("not started: " + err.Error())
		return err
	}
	defer p.Close()
	if conn, err = takeOver(w); err != nil {
		ended("abandoned")
		return nil // the client has gone
	}
	first := api.FromRun{}
	var init *os.File
	first.Resume, init = box.Outlive(p, purpose)
	if attend(conn, p, req.Stops, first, init, &notes, cancel, ended) {
		tell(ctx, conn, box)
	}
	return nil
}

// keysOf returns what a command says of SSH keys, by their fingerprints.
func keysOf(req *client.SSH) (of session.SSH, err error) {
	if req == nil {
		return of, nil
	}
	of.Agent, of.Signs = req.Agent, req.Signs
	for _, k := range req.Keys {
		name := k.Key
		if !strings.HasPrefix(name, "SHA256:") {
			if name, err = sshkeys.FingerprintOf(k.Key); err != nil {
				return of, invalid("--ssh-agent: %v: give the file of a key, or SHA256:... of ssh-add -l", err)
			}
		}
		if of.Keys == nil {
			of.Keys = map[string]agents.KeyUse{}
		}
		use := agents.KeyUse(k.Use)
		if use != agents.KeyAllow && use != agents.KeyAsk {
			return of, invalid("--ssh-agent: %q: write allow or ask", k.Use)
		}
		of.Keys[name] = use
	}
	return of, nil
}

// tell ends a sandbox and sends what it has changed. A client that is gone needs nothing.
func tell(ctx context.Context, conn *runConn, box *session.Sandbox) {
	box.End()
	if e := box.Effects(context.WithoutCancel(ctx)); e != nil {
		_ = json.NewEncoder(conn).Encode(api.FromRun{Effects: e})
	}
}

// purposeOf returns what a run's sandbox is for, until unattended is called.
func (d *Daemon) purposeOf(a *agent.Agent, by *uint32, req api.RunRequest, notes *notes) (p session.Purpose, unattended func()) {
	p = session.Purpose{By: by, Command: ledger.CommandLine(req.Argv), Refused: func(host, text, remedy string) {
		notes.refused(a.ID(), api.Note{Note: text, Remedy: remedy, Host: host})
	}, Asked: func(text, remedy string) {
		more := fmt.Sprintf("files of %s: more needs an approval: scopefs approvals list", a.ID())
		notes.once("/"+text, api.Note{Note: fmt.Sprintf("files of %s: %s", a.ID(), text), Remedy: remedy}, more)
	}}
	p.SSH.Refused = func(text string) {
		notes.once(text, api.Note{Note: text}, fmt.Sprintf("keys of %s: more uses were refused: scopefs audit --agent %s lists them", a.ID(), a.ID()))
	}
	if by != nil { // the agent's user gives no key
		return p, func() {}
	}
	p.Keys = req.Keys
	if !req.Attended {
		return p, func() {}
	}
	p.Others = req.Others
	return p, d.Approvals.Attend(a.ID())
}

// prepareTime bounds what a program's description runs before the program.
const prepareTime = 10 * time.Second

// prepareProgram runs what a program's description wants before the program, with the program's variables.
func prepareProgram(ctx context.Context, a *agent.Agent, box *session.Sandbox, by *uint32, req api.RunRequest) error {
	ctx, cancel := context.WithTimeout(ctx, prepareTime)
	defer cancel()
	ended, err := a.RecordExec(ctx, audit.Event{Session: box.Name, Target: ledger.CommandLine([]string{"prepare", req.Program.Name}), UID: by})
	if err != nil {
		return err
	}
	script, env := req.Program.Prepare, req.Env
	if l := req.Program.Login; l != nil {
		if script, env, err = l.Prepare(script, env, a.Placeholder(l)); err != nil {
			ended("not started: " + err.Error())
			return err
		}
	}
	p, err := box.Exec(ctx, sandbox.Command{Argv: []string{"/bin/sh", "-c", script}, Env: env, Dir: req.Dir})
	if err != nil {
		ended("not started: " + err.Error())
		return err
	}
	defer p.Close()
	exit, err := p.Wait()
	if err != nil {
		ended("sandbox ended") // the event of its end says why
		return err
	}
	ended(exit.Outcome())
	if exit.Code != 0 || exit.Signal != 0 {
		return fmt.Errorf("%s: prepare: %s: correct it in programs.d/%s.yaml", req.Program.Name, exit.Outcome(), req.Program.Name)
	}
	return nil
}

// runConn is a connection that HTTP has left. The deadlines of the HTTP server ended with
// that (http.Hijacker): the client has goTime for its first line, and runWriteTime for each
// line of the daemon. Reading ends with the command.
type runConn struct{ *net.UnixConn }

const (
	goTime       = 10 * time.Second
	runWriteTime = 2 * time.Second
)

func (c *runConn) Write(p []byte) (int, error) {
	_ = c.SetWriteDeadline(time.Now().Add(runWriteTime))
	return c.UnixConn.Write(p)
}

// takeOver ends HTTP on the connection.
func takeOver(w http.ResponseWriter) (*runConn, error) {
	taken, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return nil, err
	}
	conn, ok := taken.(*net.UnixConn)
	if !ok {
		taken.Close()
		return nil, errors.New("connection cannot be taken over")
	}
	run := &runConn{conn}
	_ = run.SetReadDeadline(time.Now().Add(goTime))
	_, err = io.WriteString(run, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: scopefs-run\r\n\r\n")
	return run, err
}

// runError returns an execError when the program, not the sandbox, cannot be started.
func runError(req api.RunRequest, err error) error {
	if _, dir := errors.AsType[pid1.DirError](err); dir && req.Dir != "" {
		return &api.Error{Kind: api.Invalid, Text: fmt.Sprintf("-C %s: no directory of the view that the agent may enter", req.Dir)}
	}
	for _, errno := range []unix.Errno{unix.ENOENT, unix.ENOTDIR, unix.EACCES, unix.ENOEXEC} {
		if errors.Is(err, errno) {
			return &execError{program: req.Argv[0], errno: errno}
		}
	}
	return err
}

// execError becomes exit status 127 (not found) or 126 (not executable).
type execError struct {
	program string
	errno   unix.Errno
}

func (e *execError) Error() string {
	if e.errno == unix.ENOENT && !strings.Contains(e.program, "/") {
		return e.program + ": not installed in the sandbox"
	}
	return fmt.Sprintf("%s: %v", e.program, e.errno)
}

// attend serves the connection until the command ends or the client goes. stops says that the client heeds stops, first is the
// first line, and init a pidfd of the sandbox that goes with it; nil: none. It reports whether the command has ended; else it is
// left to the next daemon.
func attend(conn *runConn, p *sandbox.Process, stops bool, first api.FromRun, init *os.File, notes *notes,
	gone func(), ended func(outcome string)) bool {
	go func() {
		if _, err := p.Wait(); err != nil { // the sandbox has ended: nobody waits for the client
			_ = conn.SetReadDeadline(time.Now())
		}
	}()
	lines := bufio.NewScanner(conn)
	if lines.Scan() && passStreams(conn.UnixConn, p, first, init) == nil { // "go"
		_ = conn.SetReadDeadline(time.Time{})
		notes.to(conn)
		over := make(chan struct{})
		defer close(over)
		go tellStops(conn, p, stops, over)
		go func() {
			defer gone()
			obey(lines, p)
		}()
	} else {
		gone()
	}
	exit, err := p.Wait()
	last := api.FromRun{Exit: &api.RunExit{Code: exit.Code, Signal: int(exit.Signal), TimedOut: exit.TimedOut, OutOfMemory: exit.OutOfMemory}}
	switch {
	case errors.Is(err, sandbox.ErrLeft): // the client returns to the next daemon
		return false
	case err != nil:
		last = api.FromRun{Error: &api.Error{Text: err.Error() + ": scopefs audit says why", Kind: api.Other}}
		ended("sandbox ended") // the event of its end says why
	default:
		ended(exit.Outcome())
	}
	notes.end()
	_ = json.NewEncoder(conn).Encode(last)
	return true
}

// tellStops tells the client of stops until the command has ended. For a client that does not heed them, such as one of the last
// release, it ends them: the command would stay stopped.
func tellStops(conn *runConn, p *sandbox.Process, heeded bool, over <-chan struct{}) {
	for {
		select {
		case <-over:
			return
		case turn := <-p.Stopped():
			if heeded {
				_ = json.NewEncoder(conn).Encode(api.FromRun{Stopped: &turn}) // a client that is gone needs none
			} else {
				_ = p.Continue(turn)
			}
		}
	}
}

// notes are lines for the operator about a running command: what an agent program lacks,
// and one line for each host that its network has refused or has not reached. They wait until the client has
// the command's streams.
type notes struct {
	mu      sync.Mutex
	conn    io.Writer
	told    map[string]bool // hosts, and questions about paths
	waiting []api.Note
	last    []func() string // of the notes after the command
}

// maxNotes limits the notes of a command: the client's socket has room for them, so that
// no connection of the sandbox waits for the client.
const maxNotes = 16

// maxNote limits the text of a note, in bytes: it may quote a process of the sandbox.
const maxNote = 2 << 10

func (n *notes) refused(id scope.ID, note api.Note) {
	note.Note = fmt.Sprintf("network of %s: %s", id, note.Note)
	n.once(cmp.Or(note.Host, note.Note), note, fmt.Sprintf("network of %s: more hosts were refused or not reached: scopefs audit --agent %s lists them", id, id))
}

// once adds a note while the command runs, unless there was one about the same. more is the last one.
func (n *notes) once(about string, note api.Note, more string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.told == nil {
		n.told = map[string]bool{}
	}
	about, note.Note = tools.Clip(about, maxNote), tools.Clip(note.Note, maxNote)
	if n.told[about] || len(n.told) > maxNotes {
		return
	}
	if n.told[about] = true; len(n.told) > maxNotes {
		note = api.Note{Note: more}
	}
	n.waiting = append(n.waiting, note)
	n.flush()
}

// add adds a note before the command starts.
func (n *notes) add(text string) {
	if text != "" {
		n.waiting = append(n.waiting, api.Note{Note: text})
	}
}

// end adds the last notes. No note goes to the client from then on.
func (n *notes) end() {
	var texts []string
	for _, last := range n.last {
		texts = append(texts, last())
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, text := range texts {
		n.add(text)
	}
	n.flush()
	n.conn = nil
}

// to makes the notes go to a client, or wait.
func (n *notes) to(conn io.Writer) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.conn = conn
	n.flush()
}

func (n *notes) flush() {
	if n.conn == nil {
		return
	}
	for _, note := range n.waiting {
		_ = json.NewEncoder(n.conn).Encode(api.FromRun{Note: note}) // a client that is gone needs none
	}
	n.waiting = nil
}

// obey does what the client says until it is gone.
func obey(lines *bufio.Scanner, p *sandbox.Process) {
	for lines.Scan() {
		var msg api.ToRun
		if json.Unmarshal(lines.Bytes(), &msg) != nil {
			return
		}
		switch sig := unix.Signal(msg.Signal); sig {
		case 0:
		case unix.SIGCONT:
			_ = p.Continue(msg.Turn)
		default:
			_ = p.Signal(sig)
		}
	}
}

// passStreams gives the client the command's files: three, or one terminal. A command of an earlier daemon has none.
func passStreams(conn *net.UnixConn, p *sandbox.Process, first api.FromRun, init *os.File) error {
	files := slices.DeleteFunc([]*os.File{p.Stdin, p.Stdout, p.Stderr, p.TTY, init}, func(f *os.File) bool { return f == nil })
	if len(files) == 0 {
		return nil
	}
	fds, err := descriptors.Numbers(files...)
	if err != nil {
		return err
	}
	first.Files = len(files)
	line, _ := json.Marshal(first)
	err = descriptors.Write(conn, append(line, '\n'), fds...)
	for _, f := range []*os.File{p.Stdin, p.Stdout, p.Stderr, p.TTY} {
		if f != nil {
			f.Close() // the client's now, and its end the command's to see
		}
	}
	return err
}
