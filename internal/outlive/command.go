package outlive

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/holder"
	"github.com/scopefs/scopefs/internal/holder/wire"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/bash"
	"github.com/scopefs/scopefs/tools/sandbox"
)

// Command is a command of an MCP client that the last daemon has left.
type Command struct {
	kept
	place   *holder.Place
	process *sandbox.Process
	resumed bool // the client has returned
}

// kept is what a daemon keeps about a command, in a place beside that of its sandbox.
type kept struct {
	Protocol int              `json:"protocol"`
	Sandbox  int              `json:"sandbox"` // process 1
	Process  sandbox.Outlived `json:"process"`
	Job      bash.Kept        `json:"job"`
}

// The files of the place of a command: a pidfd of process 1, then these.
const (
	stdoutFile = wire.PIDFD + 1
	tapesFile  = stdoutFile + 2 // and on
)

// Commands are the places of the commands of one sandbox. The zero value has none.
type Commands struct {
	mu     sync.Mutex
	places map[*place]struct{}
	closed bool
}

// place implements bash.Place.
type place struct {
	of *Commands
	at *holder.Place

	mu   sync.Mutex
	kept kept
}

var errKeeps = errors.New("the sandbox ends with the daemon")

// Keep makes a command outlive the daemon, as its sandbox does. The place closes the tapes.
func (c *Commands) Keep(h *holder.Holder, p *sandbox.Process, k bash.Kept, tapes []*os.File) (bash.Place, error) {
	made, files, err := p.Outlive()
	files = append(files, tapes...)
	all := kept{Protocol: protocol, Sandbox: p.Session().PID(), Process: made, Job: k}
	var meta []byte
	if err == nil {
		meta, err = all.meta()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil && c.closed {
		err = errKeeps
	}
	if err != nil {
		closeAll(files)
		return nil, err
	}
	at := &place{of: c, at: h.Keep(wire.Command, all.Sandbox, meta, files), kept: all}
	c.add(at)
	return at, nil
}

// add registers a place. The caller holds mu.
func (c *Commands) add(p *place) {
	if c.places == nil {
		c.places = map[*place]struct{}{}
	}
	c.places[p] = struct{}{}
}

// Close removes all places.
func (c *Commands) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for p := range c.places {
		p.at.Remove()
	}
	clear(c.places)
}

func (k kept) meta() ([]byte, error) {
	meta, err := json.Marshal(k)
	if err == nil && len(meta) > maxMeta {
		err = errors.New("its context has too many scopes")
	}
	return meta, err
}

// Set replaces what is kept about the command.
func (p *place) Set(k bash.Kept) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.kept.Job = k
	if meta, err := p.kept.meta(); err == nil {
		p.at.Hold(p.kept.Sandbox, meta, p.at.Files)
	}
}

// Remove makes the command end with the daemon.
func (p *place) Remove() {
	p.of.mu.Lock()
	defer p.of.mu.Unlock()
	delete(p.of.places, p)
	p.at.Remove()
}

func commandOf(p *holder.Place) *Command {
	c := &Command{place: p}
	if json.Unmarshal(p.Meta, &c.kept) != nil {
		c.kept = kept{}
	}
	return c
}

// of reports whether a command is of a sandbox, and this daemon can continue with it.
func (c *Command) of(i *Item) bool {
	if c.Protocol != protocol || c.Sandbox != i.Outliving.PID || i.Parent == "" || len(c.place.Files) < tapesFile {
		return false
	}
	return true
}

// Continue gives the commands of a sandbox of Adopt to the shell of its client, which has returned, and set what that client has
// set. They stay in their places, which are in all from now on.
func (i *Item) Continue(s *bash.Shell, all *Commands, set *Context) error {
	switch {
	case i.Context:
		if err := set.adopt(i.Last()); err != nil {
			return err
		}
	case i.Token != "": // of a release without Context
		f, err := set.File()
		if err != nil {
			return err
		}
		i.Context = true
		meta, err := json.Marshal(i.Sandbox)
		if err != nil {
			return err
		}
		i.Place.Hold(i.Outliving.PID, meta, append(i.Place.Files, f))
	}
	for _, c := range i.Commands {
		tapes, err := duplicates(c.place.Files[tapesFile:])
		if err == nil {
			at := &place{of: all, at: c.place, kept: c.kept}
			all.mu.Lock()
			all.add(at)
			all.mu.Unlock()
			c.resumed = true
			err = s.Adopt(c.Job, c.process, tapes, at)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// duplicates returns other descriptors of the same files.
func duplicates(files []*os.File) (own []*os.File, err error) {
	for _, f := range files {
		raw, err := f.SyscallConn() // Fd would make it a blocking one
		if err == nil {
			failed := raw.Control(func(fd uintptr) {
				n, e := unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0)
				if err = e; e == nil {
					own = append(own, os.NewFile(uintptr(n), f.Name()))
				}
			})
			err = errors.Join(err, failed)
		}
		if err != nil {
			closeAll(own)
			return nil, err
		}
	}
	return own, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// Client is a client of an agent's tools, as the log names it.
type Client struct {
	Agent   scope.ID
	Session string
	Log     Log
	Dir     string // of the log
}

// Keep makes the commands of the client's shell outlive the daemon with their sandbox, if it has a place for them: see of. leaves
// reports whether the daemon leaves the client's sandboxes to the next one now. end is called for a call of an earlier daemon whose
// work has ended without a result. resume is that of the client's gate.
func (c Client) Keep(shell *bash.Shell, h *holder.Holder, of func(*sandbox.Session) *Commands, leaves func() bool,
	end func(call string)) (resume func(call string) *tools.Resumed) {
	shell.Keep = func(p *sandbox.Process, k bash.Kept, tapes []*os.File) (bash.Place, error) {
		commands := of(p.Session())
		if commands == nil {
			closeAll(tapes)
			return nil, errKeeps
		}
		return commands.Keep(h, p, k, tapes)
	}
	shell.Leaves = leaves
	shell.Unclaimed = func(call tools.Begun) {
		c.RecordLost(call, unclaimed)
		end(call.Call)
	}
	return func(call string) *tools.Resumed {
		was := shell.Resume(call)
		if was != nil {
			kill := was.End
			was.End = func() { kill(); end(call) }
			was.Recorded = func() bool { return c.Recorded(was.Begun) }
		}
		return was
	}
}

const unclaimed = "its client has not asked for the result"

// Recorded reports whether the log has the end of a call.
func (c Client) Recorded(call tools.Begun) bool {
	filter := audit.Filter{Agent: string(c.Agent), Session: c.Session, Call: call.Call, Since: call.At.Add(-time.Minute)}
	for e, err := range audit.Read(context.Background(), c.Dir, filter, false) {
		if err == nil && e.Event == audit.KindCall && e.Outcome != audit.OutcomeBegin {
			return true
		}
	}
	return false
}

// RecordLost records the end of a call whose client gets no result, unless the daemon before has recorded it.
func (c Client) RecordLost(call tools.Begun, why string) {
	if !c.Recorded(call) {
		c.Log.Event(audit.Event{Event: audit.KindCall, Agent: string(c.Agent), Session: c.Session, Call: call.Call,
			Op: call.Tool, Verdict: audit.Allow,
			Rule: call.Rule, RuleKind: string(call.Kind), Outcome: string(tools.Unavailable), Detail: why,
			DurationUS: time.Since(call.At).Microseconds()})
	}
}
