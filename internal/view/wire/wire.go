// Package wire has the messages between a daemon and the process that serves a view, and the descriptors of that process.
package wire

import (
	"encoding/json"
	"errors"
	"io"
	"time"

	"github.com/scopefs/scopefs/audit/event"
	"github.com/scopefs/scopefs/fs"
	"github.com/scopefs/scopefs/fs/echo"
	"github.com/scopefs/scopefs/fs/history"
	"github.com/scopefs/scopefs/internal/peer"
	"github.com/scopefs/scopefs/internal/reconnect"
	"github.com/scopefs/scopefs/scope"
)

// The daemon and a view exchange JSON messages over a socket pair, one a frame.
// An agent may have compromised the view. The daemon therefore limits what it
// reads, and takes no identity from a message.

// The descriptors that the daemon passes to a view process.
const (
	RootFD    = 3 + iota // the scope's directory, a detached mount: see beneath.Root.Detach; or in MountFD
	FuseFD               // /dev/fuse, mounted; not with Config.Offline
	WireFD               // socket pair to the daemon
	HeartFD              // non-blocking socket pair to the daemon: see heart.Heart
	StatFD               // the daemon's proc_pid_stat(5)
	SpoolFD              // with Config.Spool: a file in memory, append-only: see spool
	HistoryFD            // with Config.History: the directory of the history
	MountFD              // with Config.History: the detached mount that holds RootFD and HistoryFD: see mounts.Pair

	HolderFD  = reconnect.HolderFD  // with Config.Grace
	ControlFD = reconnect.ControlFD // likewise
	QuotaFD   = ControlFD + 1       // with Config.Quota: the page of package quota
)

const _ uint = HolderFD - MountFD - 1 // it is behind them

// These limit messages, in bytes. The daemon handles many messages of a view at a time.
const (
	MaxToView   = 4 << 20   // a policy
	MaxFromView = 256 << 10 // an event: the ends of two paths, and a rule that names one

	MaxHistoryRequest = 128 << 10 // the paths of versions: see query.Request
	MaxHistoryAnswer  = 200 << 10 // as a message has it, with <, > and & escaped
)

// Config is the first message to a view. See fs.Options for the fields.
type Config struct {
	Policy      scope.PolicySpec `json:"policy"`
	Record      scope.Record     `json:"record"`
	Passthrough bool             `json:"passthrough"` // use kernel passthrough for file data if available
	Mediated    bool             `json:"mediated"`
	Caller      bool             `json:"caller"` // identity: caller
	Remote      bool             `json:"remote,omitempty"`
	Patience    time.Duration    `json:"patience,omitempty"`
	Timeout     time.Duration    `json:"timeout"`
	Watch       bool             `json:"watch"`  // cache metadata until a watch reports a change
	Shared      bool             `json:"shared"` // users other than the agent's may access the view
	Sole        bool             `json:"sole"`   // the daemon is an ordinary user's
	Shown       []string         `json:"shown"`  // see beneath.Root
	XAttrs      bool             `json:"xattrs"`
	Trace       bool             `json:"trace"`
	Spin        bool             `json:"spin"`  // do not count a request's time on a processor
	Spool       bool             `json:"spool"` // SpoolFD is a spool
	Limits      fs.Limits        `json:"limits"`
	History     *HistoryConfig   `json:"history,omitempty"` // HistoryFD and MountFD are open; nil: the view keeps nothing
	Offline     bool             `json:"offline,omitempty"` // serve no mount, only requests about the history or the branch
	Hold        bool             `json:"hold,omitempty"`    // HistoryFD, with hold.StateName or, with Whole or Offline, itself; and MountFD
	Whole       bool             `json:"whole,omitempty"`   // with Hold: every change is held
	Quota       *int             `json:"quota,omitempty"`   // QuotaFD is open; the slot of its page
	Leased      bool             `json:"leased,omitempty"`  // placement: one
	Lease       time.Duration    `json:"lease,omitempty"`   // with Leased: see ToView
	Grace       time.Duration    `json:"grace,omitempty"`   // ControlFD is open; how long the view goes on without a daemon

	Gate   bool   `json:"gate,omitempty"` // see fs.Options
	Beside Beside `json:"beside,omitzero"`
}

// HistoryConfig bounds a history. See agents.History for the fields.
type HistoryConfig struct {
	Bytes   int64         `json:"bytes,omitempty"`
	Percent float64       `json:"percent,omitempty"`
	Age     time.Duration `json:"age"`
	Exclude []string      `json:"exclude,omitempty"`
	Unkept  bool          `json:"unkept,omitempty"`

	Optional bool `json:"optional,omitempty"` // without the history the view keeps nothing, and Ready has Unkept
}

// ToView is a message from the daemon to a view.
type ToView struct {
	Config *Config           `json:"config,omitempty"`
	Policy *scope.PolicySpec `json:"policy,omitempty"` // a new policy; the view responds with Ack
	Log    *string           `json:"log,omitempty"`    // why the log fails; empty when it works again
	ID     uint64            `json:"id,omitempty"`     // the ID of the request this answers
	Error  string            `json:"error,omitempty"`
	Spool  bool              `json:"spool,omitempty"` // with the answer to an event or a drain: the view may use its spool
	Groups []uint32          `json:"groups,omitempty"`
	Actor  *history.Actor    `json:"actor,omitempty"`

	Granted bool         `json:"granted,omitempty"` // of Ask: decide again
	Outside bool         `json:"outside,omitempty"` // of Ask: the process is in no sandbox
	Grant   *scope.Grant `json:"grant,omitempty"`   // of the operator: adds to the rules; not answered

	Lease time.Duration `json:"lease,omitempty"` // when the view's lease ends, by CLOCK_BOOTTIME; it changes nothing from then on

	Beside *Beside `json:"beside,omitempty"` // of the sandboxes that start now; answered as History

	Echoes []EchoReply `json:"echoes,omitempty"` // of Echo

	Freeze *bool `json:"freeze,omitempty"` // keeps clients from changing what rules hold, or no more; answered as History

	// History is a request about the history. The view answers it with Answer, the ID of this message.
	History json.RawMessage `json:"history,omitempty"`
}

// FromView is a message from a view to the daemon.
type FromView struct {
	Ready  []string     `json:"ready,omitempty"` // the view is confined, by these measures, and about to serve
	Failed string       `json:"failed,omitempty"`
	Unkept string       `json:"unkept,omitempty"` // with Ready: why the history could not be opened
	Late   string       `json:"late,omitempty"`   // with Ready: why Config.Watch was not possible
	ID     uint64       `json:"id,omitempty"`
	Event  *event.Event `json:"event,omitempty"`  // an event to record; the daemon responds with ID
	Began  time.Time    `json:"began,omitzero"`   // with Event: a daemon that has ended may have recorded it, since then
	Path   []byte       `json:"path,omitempty"`   // path of the event: a JSON string can hold only UTF-8
	Target []byte       `json:"target,omitempty"` // target of the event, likewise
	Drain  bool         `json:"drain,omitempty"`  // append all that the spool has; the daemon responds with ID
	Reset  bool         `json:"reset,omitempty"`  // with Drain: then empty the spool. The view writes nothing meanwhile
	Groups uint32       `json:"groups,omitempty"` // the process whose groups the view needs; the daemon responds with ID
	Ack    uint64       `json:"ack,omitempty"`    // the policy with this ID is in force
	Who    uint32       `json:"who,omitempty"`    // the process whose Actor the view needs; the daemon responds with ID

	Ask    *Ask   `json:"ask,omitempty"`    // an operation that needs an approval; the daemon responds with ID
	Cancel uint64 `json:"cancel,omitempty"` // the client of the Ask with this ID no longer waits

	Echo *Echo `json:"echo,omitempty"` // for the sandboxes that have the view; the daemon responds with ID

	// Pruned says what the history has given up: an event to record, as Event. The view waits for no answer with a request.
	Pruned *Pruned `json:"pruned,omitempty"`

	Answer  uint64          `json:"answer,omitempty"`  // the ID of the request that History or Failed answers
	History json.RawMessage `json:"history,omitempty"` // at most MaxHistoryAnswer
}

// Beside is where the agent's directory is in its sandboxes, and what is beside it: see beneath.Root.
type Beside struct {
	Place string   `json:"place,omitempty"`
	Dirs  []string `json:"dirs,omitempty"`
}

// Ask is an fs.Question.
type Ask struct {
	Path  []byte `json:"path"`
	Write bool   `json:"write,omitempty"`
	Whole bool   `json:"whole,omitempty"`
	PID   uint32 `json:"pid"`
	Wait  bool   `json:"wait,omitempty"` // the client waits for the decision
}

// Echo is a request of package echo.
type Echo struct {
	To      string       `json:"to,omitempty"` // an EchoReply.From; "": all
	Request echo.Request `json:"request"`
}

// EchoReply is what a sandbox answers.
type EchoReply struct {
	From  string     `json:"from"`
	Reply echo.Reply `json:"reply"`
}

// Pruned is the oldest part of a history that was given up.
type Pruned struct {
	Generations int    `json:"generations"` // 0: it is about to be
	Why         string `json:"why"`
}

// MaxRequests is how many requests of the daemon a view has under way. More wait.
const MaxRequests = 8

// ErrNoHistory is the error of a request to a view that keeps nothing.
var ErrNoHistory = errors.New("no history: write view: {changes: kept} into the definition")

// Conn sends and receives messages. Send is safe for concurrent use; Receive is
// not.
type Conn struct {
	out *peer.Writer
	in  *peer.Reader
}

// New returns a Conn over a stream. most limits the messages that it receives: MaxToView or MaxFromView.
func New(rw io.ReadWriter, most int) *Conn {
	return &Conn{peer.NewWriter(rw, MaxToView, 0), peer.NewReader(rw, most)}
}

// Send writes one message. It returns an error if the message exceeds MaxToView.
func (c *Conn) Send(msg any) error {
	text, err := json.Marshal(msg)
	if err != nil {
		return err
	}
	return c.out.Write(text)
}

// Receive reads one message. It returns io.EOF when the other end is closed.
func (c *Conn) Receive(msg any) error {
	var text []byte
	if err := c.in.Read(&text); err != nil {
		return err
	}
	return json.Unmarshal(text, msg)
}
