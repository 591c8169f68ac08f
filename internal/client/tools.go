package client

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/paths"
	"github.com/scopefs/scopefs/scope"
)

// TaskEnv is the environment variable that names the socket of a task.
const TaskEnv = "SCOPEFS_MCP"

// Tools connects to an agent's own socket, where a client speaks MCP, one JSON-RPC message a line. It needs no more rights than the
// agent's user has. It does not wait for an agent that starts.
func Tools(ctx context.Context, p paths.Paths, id scope.ID, first Hello) (*net.UnixConn, error) {
	conn, err := Connect(ctx, p.ToolSocket(string(id)))
	if err != nil {
		return nil, err
	}
	return first.send(conn)
}

// TaskTools connects to the socket of a task: see TaskEnv.
func TaskTools(ctx context.Context, socket string, first Hello) (*net.UnixConn, error) {
	conn, err := Connect(ctx, socket)
	if err != nil {
		return nil, fmt.Errorf("the tools of this task: %w", err)
	}
	return first.send(conn)
}

// Hello is what a client says before its first message.
type Hello struct {
	Profile string // names the tools; "" keeps their own names
	Dir     string // the working directory of commands, below /workspace or absolute in the sandbox, without a newline; "": /workspace
	Context []byte // of the session, a JSON array of messages; nil: none
	Once    bool   // the client is one command, scopefs call, and no session of an agent program

	Returns bool    // the client returns to the next daemon: the first line that it gets is a SandboxLine, if its sandbox may live on
	Resume  *Resume // with Returns: it does so now

	// Continues reports, with Returns, whether the client resumes its calls: see rpc.KeptLine.
	Continues bool
}

// ReadHello reads what send writes. It calls given with the size of the context, which follows; the caller reads that.
func ReadHello(r *bufio.Reader, given func(size string) error) (h Hello, err error) {
	for {
		first, err := r.Peek(1)
		if err != nil || !strings.ContainsRune("pcdor", rune(first[0])) {
			return h, err
		}
		line, err := r.ReadSlice('\n') // bounded by the buffer
		if err != nil {
			return h, err
		}
		word, value, _ := strings.Cut(strings.TrimRight(string(line), "\r\n"), " ")
		switch {
		case word == "profile" && value != "":
			h.Profile = value
		case word == "dir" && value != "":
			h.Dir = value
		case word == "once" && value == "":
			h.Once = true
		case word == "returns":
			h.Returns = true
			words := strings.Split(value, " ")
			if last := len(words) - 1; words[last] == continues {
				h.Continues, words = true, words[:last]
			}
			if len(words) == 2 {
				h.Resume = &Resume{Session: words[0], Token: words[1]}
			}
		case word == "context":
			if err := given(value); err != nil {
				return h, err
			}
		default:
			return h, fmt.Errorf("%.40q is neither a message, nor a profile, nor a dir, nor once, nor returns, nor a context", line)
		}
	}
}

// continues is the last word of "returns" of a client that resumes its calls.
const continues = "continues"

// MethodSandbox is the method of a SandboxLine, a notification that is for scopefs mcp alone.
const MethodSandbox = "notifications/scopefs/sandbox"

// sandboxNote is a notification about the sandbox of a client.
type sandboxNote struct {
	Version string `json:"jsonrpc"`
	Method  string `json:"method"`
	Params  struct {
		Resume
		Same bool `json:"same"`
	} `json:"params"`
}

// SandboxLine returns the line by which a client learns how it returns to the next daemon, and whether it has returned: then
// its sandbox is the same.
func SandboxLine(resume Resume, same bool) []byte {
	note := sandboxNote{Version: "2.0", Method: MethodSandbox}
	note.Params.Resume, note.Params.Same = resume, same
	text, _ := json.Marshal(note) // cannot fail
	return append(text, '\n')
}

// ParseSandboxLine reads a SandboxLine.
func ParseSandboxLine(line []byte) (resume Resume, same bool, err error) {
	var note sandboxNote
	err = json.Unmarshal(line, &note)
	return note.Params.Resume, note.Params.Same, err
}

// helloTime is how long a daemon may take to read a hello.
const helloTime = 10 * time.Second

func (h Hello) send(conn *net.UnixConn) (*net.UnixConn, error) {
	_ = conn.SetWriteDeadline(time.Now().Add(helloTime))
	defer func() { _ = conn.SetWriteDeadline(time.Time{}) }()
	var err error
	if h.Profile != "" {
		_, err = fmt.Fprintf(conn, "profile %s\n", h.Profile)
	}
	if err == nil && h.Dir != "" {
		_, err = fmt.Fprintf(conn, "dir %s\n", h.Dir)
	}
	if err == nil && h.Once {
		_, err = io.WriteString(conn, "once\n")
	}
	if err == nil && h.Returns {
		words := []string{"returns"}
		if h.Resume != nil {
			words = append(words, h.Resume.Session, h.Resume.Token)
		}
		if h.Continues {
			words = append(words, continues)
		}
		_, err = io.WriteString(conn, strings.Join(words, " ")+"\n")
	}
	if err == nil && h.Context != nil {
		_, err = fmt.Fprintf(conn, "context %d\n%s", len(h.Context), h.Context)
	}
	if err != nil && !errors.Is(err, unix.EPIPE) && !errors.Is(err, unix.ECONNRESET) { // the daemon may have answered before it closed the connection
		conn.Close()
		return nil, err
	}
	return conn, nil
}
