package client

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/descriptors"
	"github.com/scopefs/scopefs/internal/pidfd"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/effect"
)

// RunRequest is the body of run, but what an agent program needs: see api.RunRequest.
type RunRequest struct {
	Argv []string          `json:"argv"`
	Env  map[string]string `json:"env,omitempty"`
	Dir  string            `json:"dir,omitempty"` // below /workspace
	TTY  *Size             `json:"tty,omitempty"` // run on a terminal of this size

	Resume *Resume `json:"resume,omitempty"` // a run of the last daemon, in place of a new one

	SSH *SSH `json:"ssh,omitempty"` // of the operator's

	With []Root `json:"with,omitempty"` // directories of the host that the sandbox has beside the agent's

	Publish   []string `json:"publish,omitempty"`    // HOST or HOST:INSIDE: ports of the host that lead to the sandbox
	HostPorts []string `json:"host_ports,omitempty"` // ports of the host that the sandbox reaches

	// Changes is what the view must do with changes, as a definition writes it; "": whatever it does.
	Changes string `json:"changes,omitempty"`

	// Attended says that the client asks its user about what needs approval; Others, about hosts that no rule names, too.
	Attended bool `json:"attended,omitempty"`

	// Stops says that the client heeds FromRun.Stopped. For one that does not, a command on a terminal never stays stopped.
	Stops bool `json:"stops,omitempty"`

	Others bool `json:"others,omitempty"`

	// Keys are variables of the client that credentials of presets read. The daemon uses one that it has not, for this
	// session alone.
	Keys map[string]string `json:"keys,omitempty"`
}

// SSH is the user's SSH agent, and what a command may use of it beside what the definition says.
type SSH struct {
	Agent string   `json:"agent,omitempty"` // its socket: SSH_AUTH_SOCK
	Keys  []SSHKey `json:"keys,omitempty"`
	Signs bool     `json:"signs,omitempty"` // the user's git signs commits in the agent's directory
}

// SSHKey is a key of an SSH agent.
type SSHKey struct {
	Key string `json:"key"` // its fingerprint (SHA256:...), or the public key as in a file of ssh-keygen(1)
	Use string `json:"use"` // allow, ask or deny
}

// Root is a directory of the host that a sandbox has at the same path, in a view of its own.
type Root struct {
	Dir  string `json:"dir"` // absolute, without links
	Read bool   `json:"read,omitempty"`
	Ask  bool   `json:"ask,omitempty"`  // it is closed until the operator opens it
	Some bool   `json:"some,omitempty"` // a pattern names it: one that is refused is left out
}

// Size is the size of a terminal.
type Size struct{ Rows, Cols uint16 }

// Resume is how the client of a run returns to the next daemon.
type Resume struct {
	Session string        `json:"session"`
	Token   string        `json:"token"`
	Grace   time.Duration `json:"grace"` // how long the sandbox lives without a daemon
}

// ToRun is a line from the client of a run. The client requests a run by HTTP;
// the daemon starts the command and answers 101. From then on both send JSON lines
// on the connection: the client sends Go, the daemon answers with the outer ends
// of the command's standard streams (SCM_RIGHTS), made inside the sandbox; the
// client sends signals, the daemon notes and the end. The command ends with the connection, unless
// the daemon has ended it and the first line has Resume: then a pidfd of the sandbox is the last
// descriptor, and the client returns to the next daemon, which sends no descriptors.
type ToRun struct {
	Go     bool   `json:"go,omitempty"`
	Signal int    `json:"signal,omitempty"`
	Turn   uint64 `json:"turn,omitempty"` // of SIGCONT: FromRun.Stopped returns it
}

// FromRun is a line from the daemon.
type FromRun struct {
	Files  int     `json:"files,omitempty"` // this many descriptors come with the line
	Resume *Resume `json:"resume,omitempty"`
	Note
	Exit *RunExit `json:"exit,omitempty"`

	// Stopped says that the command on a terminal has stopped, in the turn of the last SIGCONT; 0: there was none.
	Stopped *uint64 `json:"stopped,omitempty"`

	// Effects are what the command has changed, after the end of its sandbox and of this connection's other lines.
	Effects *effect.Effects `json:"effects,omitempty"`

	Error *Error `json:"error,omitempty"` // the session ended before the command
}

// Note is for the operator, such as a refused connection.
type Note struct {
	Note   string `json:"note,omitempty"`
	Remedy string `json:"remedy,omitempty"`
	Host   string `json:"host,omitempty"` // that was refused, with a port that is neither 443 nor 80
}

// RunExit is how a command ended.
type RunExit struct {
	Code     int  `json:"code"`
	Signal   int  `json:"signal,omitempty"`
	TimedOut bool `json:"timed_out,omitempty"`

	OutOfMemory bool `json:"out_of_memory,omitempty"`
}

// Run is a command that runs in an agent's sandbox.
type Run struct {
	// Stdin, Stdout and Stderr are the outer ends of its pipes; with a terminal, TTY
	// alone is set. The caller closes them.
	Stdin, Stdout, Stderr, TTY *os.File

	Took    time.Duration   // how long it ran, after Wait
	Effects *effect.Effects // what it has changed, after End; nil: the daemon did not say

	client  *Client
	id      scope.ID
	request func(*Resume) any // its body
	resumes *Resume
	began   time.Time
	again   func() error    // connects
	box     *os.File        // pidfd of the sandbox; nil: the run ends with the daemon
	boxed   <-chan struct{} // closed when the sandbox has ended

	why   func() error // why the daemon does not answer; nil while it does
	leave func()

	mu     sync.Mutex
	conn   *net.UnixConn
	in     *bufio.Scanner
	turn   uint64  // see NextTurn
	away   bool    // there is no daemon
	unsent []ToRun // meanwhile
}

// Run starts a command, on a terminal if tty says so, by the body that request returns. Closing the Run kills it.
func (c *Client) Run(ctx context.Context, id scope.ID, tty bool, request func(*Resume) any) (*Run, error) {
	r := &Run{client: c, id: id, request: request, began: time.Now()}
	r.again = func() error { return r.connect(ctx) }
	if err := r.again(); err != nil {
		return nil, err
	}
	if err := r.receiveFiles(tty); err != nil {
		why := r.why()
		r.Close()
		if why == nil {
			why = WhyNoAnswer(ctx, err)
		}
		return nil, why
	}
	return r, nil
}

// connect sends the request.
func (r *Run) connect(ctx context.Context) error {
	attended, end := r.client.Attended(ctx)
	conn, buffered, err := r.client.Request(attended, "POST", "/v1/agents/"+string(r.id)+"/run", r.request(r.resumes))
	if err == nil && buffered.Waiting() {
		conn.Close()
		err = errors.New("daemon spoke out of turn")
	}
	if err != nil {
		end()
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.in = bufio.NewScanner(conn)
	r.in.Buffer(nil, maxLine)
	r.conn, r.why, r.leave = conn, func() error { return context.Cause(attended) }, end
	return nil
}

// maxLine bounds a line of the daemon: most is the effects.
const maxLine = 256 << 10

func (r *Run) receiveFiles(tty bool) error {
	if err := r.send(ToRun{Go: true}); err != nil {
		return err
	}
	line := make([]byte, 512)
	n, fds, err := descriptors.Read(r.conn, line, 4)
	if err != nil {
		return err
	}
	files := descriptors.Files(fds, "stream")
	var first FromRun
	if err := json.Unmarshal(line[:n], &first); err != nil {
		descriptors.Close(files)
		return err
	}
	if first.Resume != nil && len(files) > 1 {
		r.resumes, r.box, files = first.Resume, files[len(files)-1], files[:len(files)-1]
		r.boxed = pidfd.Ended(r.box)
	}
	switch {
	case tty && len(files) == 1:
		r.TTY = files[0]
	case !tty && len(files) == 3:
		r.Stdin, r.Stdout, r.Stderr = files[0], files[1], files[2]
	default:
		return errors.New("daemon sent the wrong files")
	}
	return nil
}

// maxUnsent is the number of signals that wait for the next daemon.
const maxUnsent = 16

func (r *Run) send(msg ToRun) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	err := error(nil)
	if !r.away {
		if err = json.NewEncoder(r.conn).Encode(msg); err == nil || r.box == nil {
			return err
		}
	}
	if len(r.unsent) < maxUnsent {
		r.unsent = append(r.unsent, msg)
	}
	return nil
}

// Signal sends a signal to the command's foreground.
func (r *Run) Signal(sig unix.Signal) error { return r.send(ToRun{Signal: int(sig)}) }

// NextTurn begins a turn: Wait reports no stop of those before.
func (r *Run) NextTurn() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.turn++
}

// Continue continues the command, if it has stopped, in this turn.
func (r *Run) Continue() error {
	r.mu.Lock()
	turn := r.turn
	r.mu.Unlock()
	return r.send(ToRun{Signal: int(unix.SIGCONT), Turn: turn})
}

// current reports whether a turn has not ended.
func (r *Run) current(turn uint64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return turn == r.turn
}

// Resize sets the size of the command's terminal. Its foreground group gets SIGWINCH.
func (r *Run) Resize(size Size) (err error) {
	raw, err := r.TTY.SyscallConn()
	if err != nil {
		return err
	}
	if failed := raw.Control(func(fd uintptr) {
		err = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: size.Rows, Col: size.Cols})
	}); failed != nil {
		return failed
	}
	return err
}

// Wait returns how the command ended. It calls note with what the daemon has to say
// meanwhile, and stopped when the command has stopped in this turn. When the daemon ends, Wait continues with the next one.
func (r *Run) Wait(note func(Note), stopped func()) (RunExit, error) {
	for {
		exit, ended, err := r.wait(note, stopped)
		if r.Took = time.Since(r.began); ended {
			return exit, err
		}
		if err := r.why(); err != nil {
			return RunExit{}, fmt.Errorf("%w; the command may still be running", err)
		}
		if r.box == nil {
			return RunExit{}, errors.New("the daemon is gone, and the sandbox with it")
		}
		if err := r.resume(note); err != nil {
			return RunExit{}, err
		}
	}
}

// How long a client waits for the next daemon.
const (
	resumePause = 20 * time.Millisecond // between two tries
	resumeNote  = 2 * time.Second       // until the user is informed
	resumeMore  = 15 * time.Second      // after grace, for the next daemon's start
	resumeLast  = 2 * time.Second       // after the sandbox's end, for the next daemon's reason
)

// resume connects to the next daemon.
func (r *Run) resume(note func(Note)) error {
	r.mu.Lock()
	r.away = true
	r.mu.Unlock()
	r.Close()
	ended := r.boxed
	late, soon := time.NewTimer(r.resumes.Grace+resumeMore), time.NewTimer(resumeNote)
	defer late.Stop()
	defer soon.Stop()
	var over <-chan time.Time
	for {
		var refused *Error
		err := r.again()
		if errors.As(err, &refused) {
			return err
		}
		if err == nil {
			return r.back()
		}
		select {
		case <-time.After(resumePause):
		case <-soon.C:
			note(Note{Note: "there is no daemon: the command runs on for " + r.resumes.Grace.String(), Remedy: "start a daemon"})
		case <-ended:
			ended, over = nil, time.After(resumeLast)
		case <-over:
			return errors.New("the daemon is gone, and the sandbox with it")
		case <-late.C:
			return fmt.Errorf("no daemon has followed: %w", err)
		}
	}
}

// back sends what has waited for the daemon.
func (r *Run) back() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.away = false
	for _, msg := range append([]ToRun{{Go: true}}, r.unsent...) {
		if json.NewEncoder(r.conn).Encode(msg) != nil {
			return nil // it is gone again: Wait sees that
		}
	}
	r.unsent = nil
	return nil
}

// wait reads lines until the command or the connection has ended.
func (r *Run) wait(note func(Note), stopped func()) (exit RunExit, ended bool, err error) {
	for r.in.Scan() {
		var msg FromRun
		if err := json.Unmarshal(r.in.Bytes(), &msg); err != nil {
			return RunExit{}, true, err
		}
		switch {
		case msg.Note.Note != "":
			note(msg.Note)
		case msg.Stopped != nil:
			if r.current(*msg.Stopped) {
				stopped()
			}
		case msg.Exit != nil:
			return *msg.Exit, true, nil
		case msg.Error != nil:
			return RunExit{}, true, msg.Error
		}
	}
	return RunExit{}, false, nil
}

// End ends the command's sandbox with every process in it, and returns when the
// sandbox has ended. It sets Effects.
func (r *Run) End() {
	_ = r.conn.CloseWrite()
	for r.in.Scan() {
		var msg FromRun
		if json.Unmarshal(r.in.Bytes(), &msg) == nil && msg.Effects != nil {
			r.Effects = msg.Effects
		}
	}
	r.Close()
}

// Close ends the connection, and with it the command.
func (r *Run) Close() error {
	err := r.conn.Close()
	r.leave()
	return err
}
