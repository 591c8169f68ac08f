// Package outlive has what a daemon leaves of its agents' sandboxes and sessions over HTTP to the next one, in places of the
// holder.
package outlive

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/contextfs"
	"github.com/scopefs/scopefs/internal/holder"
	"github.com/scopefs/scopefs/internal/holder/wire"
	"github.com/scopefs/scopefs/internal/ledger"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/hosts"
	"github.com/scopefs/scopefs/tools/sandbox"
)

// protocol is the number of Sandbox, of Command and of the messages of process 1. A daemon takes over sandboxes of the same number.
const protocol = 3

// maxMeta bounds a Sandbox in the holder. A longer one ends with its daemon.
const maxMeta = 32 << 10

// maxCommand bounds Sandbox.Command, in bytes. The log has less of it: see audit.Event.
const maxCommand = 4 << 10

// shortened cuts a command line after a word: the log would not know half a secret.
func shortened(command string) string {
	if len(command) <= maxCommand {
		return command
	}
	return command[:max(strings.LastIndexAny(command[:maxCommand], " \t\n"), 0)] + " …"
}

// Sandbox is what a daemon keeps about the sandbox of a scopefs run, or of an MCP client, for the next one.
type Sandbox struct {
	Protocol int       `json:"protocol"`
	Agent    scope.ID  `json:"agent"`
	Name     string    `json:"name"`              // in the log
	Parent   string    `json:"parent,omitempty"`  // the MCP client, in the log; "": it is of a run
	Token    string    `json:"token,omitempty"`   // by which the client returns
	By       *uint32   `json:"by,omitempty"`      // the user of that client; nil: the operator
	Web      string    `json:"web,omitempty"`     // the clients over HTTP return by their tokens: Web.Claim
	Command  string    `json:"command,omitempty"` // of a run; in the log, too
	Started  time.Time `json:"started"`
	Expose   []string  `json:"expose,omitempty"`  // by the run's program
	Presets  []string  `json:"presets,omitempty"` // see session.Purpose
	Login    bool      `json:"login,omitempty"`   // the run's program uses its login
	Context  bool      `json:"context,omitempty"` // the last file is that of a Context
	View     int       `json:"view"`              // the view's process
	Home     int       `json:"home,omitempty"`    // the process of the view that serves HOME; 0: none does
	Print    string    `json:"print"`             // hash of what the sandbox was made by
	Task     *Task     `json:"task,omitempty"`    // that its program does for Parent, and the last file is its socket; nil: none

	Lent      []scope.ID          `json:"lent,omitempty"`    // see session.Purpose
	Publish   []hosts.Publication `json:"publish,omitempty"` // likewise
	HostPorts []uint16            `json:"host_ports,omitempty"`
	Roots     []int               `json:"roots,omitempty"` // the processes of the views of its roots
	Outliving sandbox.Outliving   `json:"outliving"`
}

// Task is what one agent has delegated to another: the only command of the sandbox does it.
type Task struct {
	Caller scope.ID `json:"caller"`
	Call   string   `json:"call"` // the caller's, which waits for the result
	Chain  string   `json:"chain"`
}

// Keep makes a sandbox outlive the daemon. The place closes the files: those of its session, and
// then that of a Context or of a task.
func Keep(h *holder.Holder, s Sandbox, files []*os.File) (*holder.Place, error) {
	s.Protocol, s.Command = protocol, shortened(s.Command)
	meta, err := json.Marshal(s)
	if err == nil && len(meta) > maxMeta {
		err = errors.New("what the next daemon must know of it is too long")
	}
	if err != nil {
		for _, f := range files {
			f.Close()
		}
		return nil, err
	}
	return h.Keep(wire.Sandbox, s.Outliving.PID, meta, files), nil
}

// Item is a sandbox that the last daemon has left.
type Item struct {
	Sandbox
	Place    *holder.Place
	Commands []*Command    // of an MCP client
	Mount    *holder.Place // of /context; nil: none

	taken  time.Time
	exited *sync.Once // records the command's end; of all copies
}

// Items returns what the holder of the last daemon has handed over. It ends what this daemon cannot continue with.
func Items(places []*holder.Place, logger *slog.Logger) (all []Item) {
	var commands []*Command
	var contexts []*holder.Place
	for _, p := range places {
		if p.Kind == wire.Context {
			contexts = append(contexts, p)
			continue
		}
		if p.Kind == wire.Command {
			commands = append(commands, commandOf(p))
			continue
		}
		i := Item{Place: p, taken: time.Now(), exited: new(sync.Once)}
		err := json.Unmarshal(p.Meta, &i.Sandbox)
		if err == nil && i.Protocol != protocol {
			err = fmt.Errorf("its protocol is number %d, this daemon's %d", i.Protocol, protocol)
		}
		if err != nil {
			logger.Warn("a sandbox of the last daemon ends", "agent", i.Agent, "session", i.Name, "err", err)
			p.End()
			continue
		}
		all = append(all, i)
	}
	for _, c := range commands {
		n := slices.IndexFunc(all, func(i Item) bool { return c.of(&i) })
		if n < 0 {
			c.place.Remove()
			continue
		}
		all[n].Commands = append(all[n].Commands, c)
	}
	for _, p := range contexts {
		n := slices.IndexFunc(all, func(i Item) bool { return contextfs.Of(p) == i.Outliving.PID && i.Mount == nil })
		if n < 0 {
			p.End()
			continue
		}
		all[n].Mount = p
	}
	return all
}

// Seeing returns the ids of the calls that go on and see a context.
func (i *Item) Seeing() (calls []string) {
	for _, c := range i.Commands {
		if !c.Job.Answered && len(c.Job.Begun.Context) > 0 {
			calls = append(calls, c.Job.Begun.Call)
		}
	}
	return calls
}

// Calls returns the ids of the calls that go on.
func Calls(all []Item) (ids []string) {
	for _, i := range all {
		for _, c := range i.Commands {
			ids = append(ids, c.Job.Begun.Call)
		}
	}
	return ids
}

// Adopt continues with the sandbox, and with the command of a run.
func (i *Item) Adopt(h *sandbox.Host, outOfMemory func(*sandbox.Session)) (s *sandbox.Session, run *sandbox.Process, err error) {
	var commands []sandbox.Outlived
	for _, c := range i.Commands {
		o := c.Process
		if o.Files, err = duplicates(c.place.Files[stdoutFile:tapesFile]); err != nil {
			return nil, nil, err
		}
		o.Exit = c.Job.Exit
		commands = append(commands, o)
	}
	files := i.Place.Files
	if i.Context || i.Task != nil {
		files = files[:max(len(files)-1, 0)]
	}
	if i.Task != nil && len(commands) != 1 {
		return nil, nil, errors.New("the task had not begun")
	}
	s, all, err := h.Adopt(i.Agent, i.Outliving, files, commands, outOfMemory)
	if err != nil {
		return nil, nil, err
	}
	for n, c := range i.Commands {
		c.process = all[n]
	}
	if i.Outliving.Command != nil {
		run = all[len(all)-1]
	}
	return s, run, nil
}

// Last returns the last file of the place of a sandbox of Adopt.
func (i *Item) Last() *os.File { return i.Place.Files[len(i.Place.Files)-1] }

// End ends the sandbox.
func (i *Item) End() {
	i.Drop()
	if i.Mount != nil {
		i.Mount.End()
	}
	i.Place.End()
}

// Drop removes the commands from the holder.
func (i *Item) Drop() {
	for _, c := range i.Commands {
		c.place.Remove()
	}
}

// Is reports whether a client with a name and a token has a sandbox. by is the user of the client; nil: the operator.
func (s *Sandbox) Is(name, token string, by *uint32) bool {
	return s.Web == "" && s.Task == nil && cmp.Or(s.Parent, s.Name) == name &&
		subtle.ConstantTimeCompare([]byte(s.Token), []byte(token)) == 1 &&
		(by == nil) == (s.By == nil) && (by == nil || *by == *s.By)
}

// A Log records what happens to a sandbox.
type Log interface{ Event(audit.Event) }

// The outcomes of events.
const (
	Taken     = "taken over"    // a daemon continues with a sandbox
	Ended     = "ended"         // a sandbox
	EndedWith = "sandbox ended" // a command: the event of the sandbox's end says why
)

// RecordExit records the end of the command of a run or of a task, once, unless the daemon before has. dir has the log.
func (i *Item) RecordExit(log Log, dir, outcome string) {
	if i.Parent != "" && i.Task == nil {
		return
	}
	i.exited.Do(func() {
		i.record(log, dir, audit.Event{Op: ledger.Exec, Target: i.Command, UID: i.By, Outcome: outcome}, i.began())
	})
}

// began returns when the command of a run or of a task began; the zero time for a client's sandbox.
func (i *Item) began() (t time.Time) {
	if c := i.Outliving.Command; c != nil {
		t = c.Began
	}
	if i.Task != nil {
		t = i.Started
	}
	return t
}

// RecordEnd records the end of the sandbox, and of the calls that nobody has resumed, unless the daemon before has.
func (i *Item) RecordEnd(log Log, dir, detail string) {
	caller := i.Agent
	if i.Task != nil {
		i.RecordExit(log, dir, EndedWith)
		caller = i.Task.Caller
	}
	for _, c := range i.Commands {
		if !c.resumed && !c.Job.Answered {
			Client{caller, i.Parent, log, dir}.RecordLost(c.Job.Begun, EndedWith)
		}
	}
	i.record(log, dir, audit.Event{Outcome: Ended, Detail: detail}, i.Started)
}

func (i *Item) record(log Log, dir string, e audit.Event, began time.Time) {
	if time.Since(i.taken) < recordedTime && i.recorded(dir, e) {
		return
	}
	e.Event, e.Agent, e.Session, e.DurationUS = audit.KindSandbox, string(i.Agent), i.Name, time.Since(began).Microseconds()
	if e.Parent = i.Parent; i.Task != nil {
		e.Chain = i.Task.Chain
	}
	log.Event(e)
}

const (
	recentTime   = 15 * time.Minute // before a take-over: the longest grace, and the time of a start
	recordedTime = time.Minute      // after it: what the daemon before can have recorded is known by then
)

// recorded reports whether the log has an end. The daemon before may have recorded it, and died before it removed the
// sandbox from the holder.
func (i *Item) recorded(dir string, end audit.Event) bool {
	filter := audit.Filter{Agent: string(i.Agent), Session: i.Name, Since: i.began()}
	if recent := i.taken.Add(-recentTime); recent.After(filter.Since) {
		filter.Since = recent
	}
	for e, err := range audit.Read(context.Background(), dir, filter, false) {
		if err == nil && e.Event == audit.KindSandbox && e.Op == end.Op &&
			(e.Op == ledger.Exec && e.Outcome != audit.OutcomeBegin || e.Outcome == Ended) {
			return true
		}
	}
	return false
}

// Print returns a hash of what makes a sandbox: of a Spec without descriptors but its HOME, and whether it has the host's network.
// A sandbox that would be made by something else now ends. runner is what else makes that of a task; nil: it is of none.
func Print(spec sandbox.Spec, host bool, runner any) string {
	home := spec.Home != nil
	spec.Home, spec.OutOfMemory, spec.Git = nil, nil, sandbox.GitUser{}
	text, err := json.Marshal(struct {
		sandbox.Spec
		OutOfMemory bool // a function has no JSON
		Home, Host  bool
		Runner      any `json:",omitempty"`
	}{spec, false, home, host, runner})
	if err != nil {
		return "" // cannot happen
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}
