package client

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/paths"
	"github.com/scopefs/scopefs/scope"
)

// TaskEnv is the environment variable that names the socket of a task.
const TaskEnv = "SCOPEFS_MCP"

// Tools connects to an agent's own socket, where a client speaks MCP, one JSON-RPC
// message a line. It needs no more rights than the agent's user has. While the daemon
// starts it waits for the agent, until ctx ends and for startTime at most.
func Tools(ctx context.Context, p paths.Paths, id scope.ID, first Hello) (*net.UnixConn, error) {
	late := time.Now().Add(startTime)
	for pause := startPause; ; pause = min(2*pause, longStartPause) {
		conn, err := tools(ctx, p, id, first)
		if !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ECONNREFUSED) {
			return conn, err
		}
		if err := New(p).whyNoTools(ctx, id); err != nil {
			return nil, err
		}
		if time.Now().After(late) {
			return nil, fmt.Errorf(
				"%q is starting for %v already: scopefs ps shows its state, and the daemon's log what it waits for", id, startTime)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, fmt.Errorf("%q is starting: %w", id, context.Cause(ctx))
		}
	}
}

// The bounds of the wait for an agent that is about to be mounted.
const (
	startTime      = time.Minute
	startPause     = 10 * time.Millisecond // between two attempts to connect
	longStartPause = 500 * time.Millisecond
)

// tools is Tools for an agent that does not start.
func tools(ctx context.Context, p paths.Paths, id scope.ID, first Hello) (*net.UnixConn, error) {
	conn, err := Connect(ctx, p.ToolSocket(string(id)))
	if err != nil {
		return nil, err
	}
	return first.send(conn)
}

// agent is what tells why an agent has no tools: see api.Agent.
type agent struct {
	ID        scope.ID `json:"agent"`
	State     string   `json:"state"`
	Mount     string   `json:"mount"`
	Error     string   `json:"error"`
	NotLoaded bool     `json:"not_loaded"`
}

// whyNoTools returns why an agent has no socket; nil: the daemon is about to make it.
func (c *Client) whyNoTools(ctx context.Context, id scope.ID) error {
	var all []agent
	if err := c.Call(ctx, "GET", "/v1/agents", struct{}{}, &all); err != nil {
		return err
	}
	i := slices.IndexFunc(all, func(a agent) bool { return a.ID == id })
	switch {
	case i < 0:
		var mounted struct{ At string }
		err := c.Call(ctx, "POST", "/v1/agents/"+string(id)+"/up", struct{}{}, &mounted) // its definition may be new
		if refused, ok := errors.AsType[*Error](err); err == nil || ok && refused.Kind != UnknownAgent {
			return err
		}
		var names []string
		for _, a := range all {
			names = append(names, string(a.ID))
		}
		return Unknown(id, names, "agents.d/"+string(id)+".md")
	case all[i].NotLoaded && all[i].Mount == "":
		return &NotLoadedError{Err: fmt.Errorf("%q is not mounted: %s", id, all[i].Error)}
	case all[i].Error != "":
		return fmt.Errorf("%q is not mounted: %s", id, all[i].Error)
	case all[i].State == "starting", all[i].State == "mounted": // by now
		return nil
	default:
		return fmt.Errorf("%q is not mounted: scopefs up %s", id, id)
	}
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

	FullSchemas bool // the client reads the schemas of results: see mcp.Options

	Returns bool    // the client returns to the next daemon: the first line that it gets is a SandboxLine, if its sandbox may live on
	Resume  *Resume // with Returns: it does so now

	// Continues reports, with Returns, whether the client resumes its calls: see rpc.KeptLine.
	Continues bool
}

// ReadHello reads what send writes. It calls given with the size of the context, which follows; the caller reads that.
func ReadHello(r *bufio.Reader, given func(size string) error) (h Hello, err error) {
	for {
		first, err := r.Peek(1)
		if err != nil || !strings.ContainsRune("pcdofr", rune(first[0])) {
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
		case word == fullSchemas && value == "":
			h.FullSchemas = true
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
			return h, fmt.Errorf(
				"%.40q is neither a message, nor a profile, nor a dir, nor once, nor full-schemas, nor returns, nor a context", line)
		}
	}
}

// fullSchemas is the line of a client with Hello.FullSchemas.
const fullSchemas = "full-schemas"

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
	if err == nil && h.FullSchemas {
		_, err = io.WriteString(conn, fullSchemas+"\n")
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
