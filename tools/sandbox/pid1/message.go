package pid1

import "golang.org/x/sys/unix"

// ControlFD is the descriptor of the control socket in init.
const ControlFD = 3

// MaxReply is the largest Reply, in bytes. The daemon reads no more.
const MaxReply = 4 << 10

// Op is the kind of a message.
type Op string

// The kinds of messages.
const (
	OpReady   Op = "ready"   // init → daemon, once
	OpExec    Op = "exec"    // daemon → init, with a descriptor if Argv[0] is FileWorker
	OpStarted Op = "started" // init → daemon, with descriptors, or with Errno and none
	OpSignal  Op = "signal"  // daemon → init
	OpStopped Op = "stopped" // init → daemon: a command on a terminal, by a signal; once until a SIGCONT of OpSignal
	OpExited  Op = "exited"  // init → daemon
	OpState   Op = "state"   // next daemon → init: commands but those of Keep end; init → daemon, with the last ID, before each OpExited
)

// Request is a message of the daemon. Words are bytes: a path need not be UTF-8.
type Request struct {
	Op     Op          `json:"op"`
	ID     uint64      `json:"id"`
	Argv   [][]byte    `json:"argv,omitempty"`
	Env    [][]byte    `json:"env,omitempty"`
	Dir    []byte      `json:"dir,omitempty"`
	TTY    *Size       `json:"tty,omitempty"`
	Socket bool        `json:"socket,omitempty"` // standard input is a socket of packets
	Signal unix.Signal `json:"signal,omitempty"`
	Turn   uint64      `json:"turn,omitempty"` // of OpSignal with SIGCONT, for OpStopped; 0: that of the last one. Of OpState, for its answer
	Keep   []uint64    `json:"keep,omitempty"` // of OpState
}

// Size is the size of a terminal in characters.
type Size struct{ Rows, Cols uint16 }

// Reply is a message of init.
type Reply struct {
	Op     Op          `json:"op"`
	ID     uint64      `json:"id"`
	PID    int         `json:"pid,omitempty"`   // of OpStarted: in the sandbox
	Errno  unix.Errno  `json:"errno,omitempty"` // of OpStarted: why the command did not start; of OpExited: its status is lost
	Dir    bool        `json:"dir,omitempty"`   // Errno is of the command's directory
	Code   int         `json:"code,omitempty"`
	Signal unix.Signal `json:"signal,omitempty"`
	Turn   uint64      `json:"turn,omitempty"` // of OpStopped: of the last SIGCONT; of OpState: of the request
}

// DirError says why a command cannot start in its directory. Other errors of a start are of the program.
type DirError struct{ unix.Errno }

func (e DirError) Unwrap() error { return e.Errno }

// Err returns why a command did not start, or nil.
func (r *Reply) Err() error {
	switch {
	case r.Errno == 0:
		return nil
	case r.Dir:
		return DirError{r.Errno}
	}
	return r.Errno
}

func stringsOf(words [][]byte) (s []string) {
	for _, w := range words {
		s = append(s, string(w))
	}
	return s
}
