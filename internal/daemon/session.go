package daemon

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/tools/sandbox"
)

// A run is one command in a sandbox of its own. The client asks by HTTP; the
// daemon starts the command and answers 101. Then both speak JSON lines on the
// connection: the client says "go", the daemon answers with the outer ends of
// the command's standard streams (SCM_RIGHTS), made inside the sandbox; the
// client sends signals and sizes, the daemon the end. A client that goes takes
// the command with it.

// RunRequest is the body of run.
type RunRequest struct {
	Argv []string          `json:"argv"`
	Env  map[string]string `json:"env,omitempty"`
	Dir  string            `json:"dir,omitempty"` // below /workspace
	TTY  *sandbox.Size     `json:"tty,omitempty"` // run on a terminal of this size
}

// toRun is a line from the client, fromRun one from the daemon.
type toRun struct {
	Go     bool          `json:"go,omitempty"`
	Signal int           `json:"signal,omitempty"`
	Size   *sandbox.Size `json:"size,omitempty"`
}

type fromRun struct {
	Files int       `json:"files,omitempty"` // this many descriptors come with the line
	Exit  *RunExit  `json:"exit,omitempty"`
	Error *apiError `json:"error,omitempty"` // the session ended before the command
}

// RunExit is how a command ended.
type RunExit struct {
	Code     int  `json:"code"`
	Signal   int  `json:"signal,omitempty"`
	TimedOut bool `json:"timed_out,omitempty"`
}

// serveRun runs one command and returns when it has ended.
func (d *Daemon) serveRun(w http.ResponseWriter, r *http.Request, id scope.ID) error {
	var req RunRequest
	if err := body(r, &req); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	session, name, err := d.startSession(ctx, id)
	if err != nil {
		return err
	}
	defer d.endSession(id, session, name)
	p, err := session.Exec(ctx, sandbox.Command{Argv: req.Argv, Env: req.Env, Dir: req.Dir, TTY: req.TTY})
	if err != nil {
		return runError(req, err)
	}
	defer p.Close()

	hijacker, ok := w.(http.Hijacker)
	if !ok {
		return errors.New("connection cannot be taken over")
	}
	conn, _, err := hijacker.Hijack()
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: scopefs-run\r\n\r\n")); err != nil {
		return nil
	}
	attend(conn.(*net.UnixConn), p, cancel)
	return nil
}

// runError tells a program that cannot be started from a sandbox that cannot.
func runError(req RunRequest, err error) error {
	for _, errno := range []unix.Errno{unix.ENOENT, unix.EACCES, unix.ENOEXEC, unix.ENOTDIR} {
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

func (e *execError) Error() string { return fmt.Sprintf("%s: %v", e.program, e.errno) }

// attend serves the connection until the command ends or the client goes.
func attend(conn *net.UnixConn, p *sandbox.Process, gone func()) {
	lines := bufio.NewScanner(conn)
	if !lines.Scan() { // "go"
		gone()
		return
	}
	files := streams(p)
	fds := make([]int, len(files))
	for i, f := range files {
		fds[i] = int(f.Fd())
	}
	first, _ := json.Marshal(fromRun{Files: len(files)})
	_, _, err := conn.WriteMsgUnix(append(first, '\n'), unix.UnixRights(fds...), nil)
	for _, f := range files {
		f.Close() // the client's now
	}
	if err != nil {
		gone()
		return
	}
	go func() {
		defer gone()
		for lines.Scan() {
			var msg toRun
			if json.Unmarshal(lines.Bytes(), &msg) != nil {
				return
			}
			if msg.Signal != 0 {
				_ = p.Signal(unix.Signal(msg.Signal))
			}
			if msg.Size != nil {
				_ = p.Resize(*msg.Size)
			}
		}
	}()
	exit, err := p.Wait()
	last := fromRun{Exit: &RunExit{Code: exit.Code, Signal: int(exit.Signal), TimedOut: exit.TimedOut}}
	if err != nil {
		last = fromRun{Error: &apiError{err.Error(), kindOther}}
	}
	_ = json.NewEncoder(conn).Encode(last)
}

// streams returns the command's files: three, or one terminal.
func streams(p *sandbox.Process) []*os.File {
	if p.TTY != nil {
		return []*os.File{p.TTY}
	}
	return []*os.File{p.Stdin, p.Stdout, p.Stderr}
}

// sandboxHost returns what makes sandboxes, checked once.
func (d *Daemon) sandboxHost() (*sandbox.Host, error) {
	d.sandboxOnce.Do(func() { d.sandboxes, d.sandboxErr = sandbox.Open(context.Background(), sandbox.Config{}) })
	return d.sandboxes, d.sandboxErr
}

// startSession starts a sandbox on an agent's mounted view.
func (d *Daemon) startSession(ctx context.Context, id scope.ID) (*sandbox.Session, string, error) {
	host, err := d.sandboxHost()
	if err != nil {
		return nil, "", err
	}
	v, err := d.Up(ctx, id, "")
	if err != nil {
		return nil, "", err
	}
	// O_PATH: nothing of the view is opened.
	fd, err := unix.Open(v.at, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, "", err
	}
	mount := os.NewFile(uintptr(fd), v.at)
	defer mount.Close()
	v.mu.Lock()
	owner := v.owner
	v.mu.Unlock()
	session, err := host.Start(ctx, sandbox.Spec{
		Agent: id, UID: owner.uid, GID: owner.gid, View: mount, Network: v.def.Network == scope.NetworkHost,
		Limits: sandbox.Limits{Memory: v.def.Limits.Memory, PIDs: v.def.Limits.PIDs, CPU: v.def.Limits.CPU, Timeout: v.def.Limits.Timeout},
		Expose: d.host.Sandbox.Expose, Env: d.host.Sandbox.Env,
	})
	if err != nil {
		d.event(audit.Event{Event: audit.KindSandbox, Agent: string(id), Outcome: "refused", Detail: err.Error()})
		return nil, "", err
	}
	name := fmt.Sprintf("%d-%d", time.Now().Unix(), session.PID())
	// What cannot be recorded must not run.
	if _, err := d.log.Append(ctx, audit.Event{Event: audit.KindSandbox, Agent: string(id), Session: name, Outcome: "started", PID: session.PID(), Detail: "limits: " + session.Limiter()}); err != nil {
		session.Close()
		return nil, "", fmt.Errorf("audit: %w", err)
	}
	d.mu.Lock()
	if d.sessions[id] == nil {
		d.sessions[id] = map[*sandbox.Session]string{}
	}
	d.sessions[id][session] = name
	d.mu.Unlock()
	return session, name, nil
}

func (d *Daemon) endSession(id scope.ID, s *sandbox.Session, name string) {
	err := s.Close()
	d.mu.Lock()
	delete(d.sessions[id], s)
	d.mu.Unlock()
	var detail []string
	for _, e := range []error{s.Err(), err} {
		if e != nil {
			detail = append(detail, e.Error())
		}
	}
	d.event(audit.Event{Event: audit.KindSandbox, Agent: string(id), Session: name, Outcome: "ended", Detail: strings.Join(detail, "; ")})
}

// endSessions kills an agent's sandboxes: those who wait for them see it.
func (d *Daemon) endSessions(id scope.ID) {
	d.mu.Lock()
	var all []*sandbox.Session
	for s := range d.sessions[id] {
		all = append(all, s)
	}
	d.mu.Unlock()
	for _, s := range all {
		if err := s.Close(); err != nil {
			d.logger.Warn("sandbox", "agent", id, "err", err)
		}
	}
}
