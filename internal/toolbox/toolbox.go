// Package toolbox connects to an agent's tools: of a running daemon, of a daemon started for this client, or of a
// delegated task.
package toolbox

import (
	"context"
	"errors"
	"io"
	"net"

	"github.com/scopefs/scopefs/internal/bases"
	"github.com/scopefs/scopefs/internal/bridge"
	"github.com/scopefs/scopefs/internal/client"
	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/embedded"
	"github.com/scopefs/scopefs/scope"
)

// Toolbox is a connection to an agent's tools.
type Toolbox struct {
	given       config.Paths
	paths       config.Paths // of the running daemon
	id          scope.ID
	hello       client.Hello
	task        string // the socket of a delegated task, which is then the only source of tools; "": none
	In          io.Reader
	Out, Stderr io.Writer

	end    func() // stops the daemon that we started; nil: none
	opened bool   // by the user's daemon
}

// Of returns the toolbox of an agent.
func Of(p config.Paths, id scope.ID, hello client.Hello) *Toolbox {
	return &Toolbox{given: p, paths: p, id: id, hello: hello}
}

// OfTask returns the toolbox of a delegated task, by its socket.
func OfTask(socket string, hello client.Hello) *Toolbox { return &Toolbox{task: socket, hello: hello} }

// Move makes the toolbox connect to the daemon of the directories that f returns for those of Of.
func (t *Toolbox) Move(f func(config.Paths) (config.Paths, error)) error {
	at, err := f(t.given)
	if err == nil {
		t.given, t.paths = at, at
	}
	return err
}

// open connects to the tools until dial ends, and starts a daemon, which lives until ctx ends, if none runs.
func (t *Toolbox) open(ctx, dial context.Context) (*net.UnixConn, error) {
	if t.task != "" {
		return client.TaskTools(dial, t.task, t.hello)
	}
	var conn *net.UnixConn
	opened, err := bases.Retry(dial, t.given, func() (err error) {
		conn, err = client.Tools(dial, t.given, t.id, t.hello)
		return err
	})
	t.opened = t.opened || opened
	if !errors.Is(err, client.ErrNoDaemon) {
		return conn, err
	}
	p, end, err := embedded.Start(ctx, t.given, t.id, t.Stderr)
	if err != nil {
		return nil, err
	}
	t.paths, t.end = p, end
	if conn, err = client.Tools(dial, p, t.id, t.hello); err != nil {
		t.Close()
	}
	return conn, err
}

// reopen connects again. It starts no daemon in place of one that neither we nor the user's daemon has started: ours would
// not have its approvals.
func (t *Toolbox) reopen(ctx, dial context.Context) (*net.UnixConn, error) {
	if t.end == nil && t.task == "" && !t.opened {
		return client.Tools(dial, t.paths, t.id, t.hello)
	}
	t.Close()
	return t.open(ctx, dial)
}

// pulse returns the pulse of the connected daemon.
func (t *Toolbox) pulse() *client.Pulse {
	if t.task != "" {
		return client.NewPulse(t.task)
	}
	return client.NewPulse(t.paths.ToolSocket(string(t.id)))
}

// Close stops the daemon that open started, if any.
func (t *Toolbox) Close() {
	if t.end != nil {
		t.end()
		t.paths, t.end = t.given, nil
	}
}

// Relay connects the client on In and Out to the tools until the
// client's input ends. It reports whether it has connected.
func (t *Toolbox) Relay(ctx context.Context) (opened bool, err error) {
	defer t.Close()
	t.hello.Returns, t.hello.Continues = t.task == "", true
	return bridge.Relay(ctx, t.In, t.Out, t.Stderr, t.hello, func(dial context.Context, again bool, hello client.Hello) (*net.UnixConn, *client.Pulse, error) {
		open := t.open
		if again {
			open = t.reopen
		}
		t.hello = hello
		conn, err := open(ctx, dial)
		return conn, t.pulse(), err
	})
}
