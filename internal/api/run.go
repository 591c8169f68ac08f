package api

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/tools/sandbox"
)

// RunRequest is the body of run.
type RunRequest struct {
	Argv []string          `json:"argv"`
	Env  map[string]string `json:"env,omitempty"`
	Dir  string            `json:"dir,omitempty"` // below /workspace
	TTY  *sandbox.Size     `json:"tty,omitempty"` // run on a terminal of this size

	// Attended says that the client asks its user about what needs approval; Others, about hosts that no rule names, too.
	Attended bool `json:"attended,omitempty"`
	Others   bool `json:"others,omitempty"`

	Program *RunProgram `json:"program,omitempty"`

	// Keys are variables of the client that credentials of presets read. The daemon uses one that it has not, for this
	// session alone.
	Keys map[string]string `json:"keys,omitempty"`
}

// RunProgram says what an agent program needs of its sandbox.
type RunProgram struct {
	Name     string   `json:"name"`
	Expose   []string `json:"expose,omitempty"`   // paths of the host, shown read-only
	Networks []string `json:"networks,omitempty"` // presets: it needs the hosts of one of them
	Prepare  string   `json:"prepare,omitempty"`  // commands of sh(1) in the sandbox before it starts
}

// ToRun is a line from the client of a run. The client requests a run by HTTP;
// the daemon starts the command and answers 101. From then on both send JSON lines
// on the connection: the client sends Go, the daemon answers with the outer ends
// of the command's standard streams (SCM_RIGHTS), made inside the sandbox; the
// client sends signals and sizes, the daemon notes and the end. The command ends
// with the connection.
type ToRun struct {
	Go     bool          `json:"go,omitempty"`
	Signal int           `json:"signal,omitempty"`
	Size   *sandbox.Size `json:"size,omitempty"`
}

// FromRun is a line from the daemon.
type FromRun struct {
	Files int `json:"files,omitempty"` // this many descriptors come with the line
	Note
	Exit  *RunExit `json:"exit,omitempty"`
	Error *Error   `json:"error,omitempty"` // the session ended before the command
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

	why   func() error // why the daemon does not answer; nil while it does
	leave func()

	mu   sync.Mutex
	conn *net.UnixConn
	in   *bufio.Scanner
}

// Run starts a command. Closing the Run kills it.
func (c *Client) Run(ctx context.Context, id scope.ID, req RunRequest) (*Run, error) {
	attended, end := c.attended(ctx)
	conn, buffered, _, err := c.request(attended, http.MethodPost, "/v1/agents/"+string(id)+"/run", req)
	if err != nil {
		end()
		return nil, err
	}
	r := &Run{conn: conn, in: bufio.NewScanner(conn), why: func() error { return context.Cause(attended) }, leave: end}
	if buffered.Buffered() > 0 {
		r.Close()
		return nil, errors.New("daemon spoke out of turn")
	}
	if err := r.receiveFiles(req.TTY != nil); err != nil {
		r.Close()
		return nil, whyNoAnswer(attended, err)
	}
	return r, nil
}

func (r *Run) receiveFiles(tty bool) error {
	if err := r.send(ToRun{Go: true}); err != nil {
		return err
	}
	line, oob := make([]byte, 256), make([]byte, unix.CmsgSpace(3*4))
	_, n, _, _, err := r.conn.ReadMsgUnix(line, oob)
	if err != nil {
		return err
	}
	msgs, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil || len(msgs) != 1 {
		return errors.New("daemon sent no files")
	}
	fds, err := unix.ParseUnixRights(&msgs[0])
	if err != nil {
		return err
	}
	var files []*os.File
	for _, fd := range fds {
		unix.CloseOnExec(fd)
		files = append(files, os.NewFile(uintptr(fd), "stream"))
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

func (r *Run) send(msg ToRun) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return json.NewEncoder(r.conn).Encode(msg)
}

// Signal sends a signal to the command's foreground.
func (r *Run) Signal(sig unix.Signal) error { return r.send(ToRun{Signal: int(sig)}) }

// Resize sets the size of the command's terminal.
func (r *Run) Resize(size sandbox.Size) error { return r.send(ToRun{Size: &size}) }

// Wait returns how the command ended. It calls note with what the daemon has to say
// meanwhile.
func (r *Run) Wait(note func(Note)) (RunExit, error) {
	for r.in.Scan() {
		var msg FromRun
		if err := json.Unmarshal(r.in.Bytes(), &msg); err != nil {
			return RunExit{}, err
		}
		switch {
		case msg.Note.Note != "":
			note(msg.Note)
		case msg.Exit != nil:
			return *msg.Exit, nil
		case msg.Error != nil:
			return RunExit{}, msg.Error
		}
	}
	if err := r.why(); err != nil {
		return RunExit{}, fmt.Errorf("%w; the command may still be running", err)
	}
	return RunExit{}, errors.New("the daemon is gone, and the sandbox with it")
}

// End ends the command's sandbox with every process in it, and returns when the
// sandbox has ended.
func (r *Run) End() {
	_ = r.conn.CloseWrite()
	for r.in.Scan() {
	}
	r.Close()
}

// Close ends the connection, and with it the command.
func (r *Run) Close() error {
	err := r.conn.Close()
	r.leave()
	return err
}
