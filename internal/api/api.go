// Package api is the daemon's control API as its clients see it: requests,
// answers and errors, the connection, and the check whether the daemon is alive.
// It holds no state of the daemon.
//
// The API is HTTP with JSON bodies on a unix socket:
//
//	GET  /v1/agents            the agents defined and mounted: []Agent
//	GET  /v1/doors             where it serves agents' tools: []Door
//	GET  /v1/streams           the streams of the log: []Stream
//	GET  /v1/health            answers {} when nothing is stuck
//	GET  /v1/stores            the shared stores, their health and who reaches them: []Store
//	POST /v1/reload            read the definitions again: []Reloaded
//	POST /v1/agents/{id}/up    mount; body UpRequest
//	POST /v1/agents/{id}/down  end sandboxes and unmount
//	POST /v1/agents/{id}/flags    have agents.Flags, the body, hold until the client ends the request; 409 if the view is in use
//	POST /v1/agents/{id}/run   run a command; body RunRequest; see ToRun
//	POST /v1/agents/{id}/token a token of the agent for HTTP; body TokenRequest, answers TokenReply
//	GET  /v1/tokens            the tokens that have not ended: []Token
//	POST /v1/tokens/revoke     revoke some; body RevokeRequest, answers []Token
//	POST /v1/agents/{id}/history a request about the agent's history, and its answer: see fs/history
//	POST /v1/agents/{id}/grant make standing approvals, which no request precedes; body GrantRequest
//	POST /v1/agents/{id}/rule  a change of its definition, and to make it; body RuleRequest, answers Rule
//	GET  /v1/top               agents, sessions and what they use: Top; at most one look a second
//	GET  /v1/fleet             what the nodes of the daemon's fleet say of themselves: Fleet
//	POST /v1/sessions/{id}/kill end a session: Session
//	GET  /v1/events            the newest events that fit the filters of EventQuery: Events
//	GET  /v1/events/{seq}      one of them, and why: Event
//	GET  /v1/events/{seq}/proof its proof: tree.Proof
//	GET  /v1/denials           equal denials, and what would allow them: []Denial
//	GET  /v1/definitions       what is defined: []Definition
//	GET  /v1/definitions/{id}  with what it resolves to: Definition
//	POST /v1/console/link      a link that opens the daemon's web page once: LinkReply
//	POST /v1/console/devices   record that a device of it is paired or removed; body DeviceRequest
//	GET  /v1/proposals         texts of a repository and of programs that need the operator's word: []Proposal
//	POST /v1/proposals         accept or deny one; body ProposalRequest, answers ProposalReply; 409 if it is not what was shown
//	GET  /v1/console/push      how a device of it is woken, by ?device=ID: PushReply
//	POST /v1/console/push      set where it is woken; body PushRequest
//	POST /v1/volumes           record that a pod gets or loses the view of an agent; body VolumeRequest, answers VolumeReply
//	GET  /v1/approvals         calls that wait for the operator: []approvals.Approval, each Brief
//	GET  /v1/approvals/{id}    one of them
//	GET  /v1/approvals/watch   all of them, and then each change: lines of approvals.Update
//	POST /v1/approvals/{id}/approve, .../deny, .../revoke; body DecideRequest; 409 with what it is now, if somebody else has
//	                           decided, nobody in time, or the request has changed
//
// {run}/users/<uid>.sock serves the user of agents of a daemon of root: GET /v1/agents and
// run, for the agents that run as this user.
//
// {run}/user.sock is that of the user's daemon:
//
//	POST /v1/bases             serve a base; body BaseRequest; answers its directories when its daemon answers
//	POST /v1/stop              end it, and the daemons of all its bases
//
// An error is an Error with a status of 400 or above.
package api

import (
	"fmt"
	"strings"
	"time"

	"github.com/scopefs/scopefs/internal/client"
	"github.com/scopefs/scopefs/scope"
)

// MaxRequest bounds the body of a request, in bytes.
const MaxRequest = client.MaxRequest

// UpRequest is the body of up, and its answer.
type UpRequest struct {
	At string `json:"at,omitempty"` // the mount point; absolute
}

// TokenRequest is the body of token.
type TokenRequest struct {
	For    time.Duration `json:"for,omitempty"`    // until the token ends; 0: 30 days
	Origin *uint32       `json:"origin,omitempty"` // see Token
}

// Token is a token of an agent for HTTP.
type Token struct {
	ID     string    `json:"id"`
	Agent  scope.ID  `json:"agent"`
	Origin *uint32   `json:"origin,omitempty"` // the user for whose processes it is; nil: the agent's user
	Made   time.Time `json:"made"`
	Ends   time.Time `json:"ends"`
}

// From names the user of Origin.
func (t Token) From() string {
	if t.Origin == nil {
		return "the agent's user"
	}
	return fmt.Sprintf("uid %d", *t.Origin)
}

// RevokeRequest is the body of the revocation of tokens.
type RevokeRequest struct {
	Name string `json:"name"` // the id of a token, or an agent for all of its
}

// TokenReply is the answer of token.
type TokenReply struct {
	Token string    `json:"token"`
	ID    string    `json:"id"` // see Token
	Ends  time.Time `json:"ends"`
}

// Agent is the state of one agent.
type Agent struct {
	ID        scope.ID `json:"agent,omitempty"` // empty: an error of no agent of its own
	State     State    `json:"state"`
	Mount     string   `json:"mount,omitempty"`
	ViewPID   int      `json:"view_pid,omitempty"`
	Program   string   `json:"view_program,omitempty"` // version of the view's program, where that is another build than the daemon's
	Sandboxes []int    `json:"sandbox_pids,omitempty"`
	Sessions  []string `json:"sessions,omitempty"`
	Hidden    int      `json:"hidden,omitempty"` // entries of the mount point that the view hides
	Holds     bool     `json:"holds,omitempty"`  // the view holds changes, all or those of rules: the definition may say otherwise since
	Shared    *Shared  `json:"shared,omitempty"` // nil: only this host changes the agent's directory
	Late      string   `json:"late,omitempty"`   // why the view shows changes by other processes up to a second late; "": at once
	Lease     *Lease   `json:"lease,omitempty"`  // with placement: one; nil: this node does not want it
	Waits     []string `json:"waits,omitempty"`  // keys of the definition that hold only after down and up
	Error     string   `json:"error,omitempty"`
	Disk      *Quota   `json:"disk,omitempty"`       // nil: it has no limits
	NotLoaded bool     `json:"not_loaded,omitempty"` // the error is of the definition, or of another file of the operator's
	Base      string   `json:"base,omitempty"`       // of the daemon, where several are listed
}

// Shared describes the file system of an agent's directory if other hosts may change its files.
type Shared struct {
	Type  string `json:"type"`            // as in /proc/mounts: nfs4, ceph
	Stale bool   `json:"stale,omitempty"` // the definition has the kernel cache what other hosts may change
}

func (s *Shared) String() string {
	if s.Stale {
		return fmt.Sprintf("on %s; with cache: coherent what other hosts change is stale for a minute: remove it", s.Type)
	}
	return "on " + s.Type + ", not cached: other hosts may change it"
}

// Lease says which node of the fleet may change an agent's files.
type Lease struct {
	Node string  `json:"node,omitempty"` // "": the server was not heard
	Left float64 `json:"left,omitempty"` // seconds until the end of this node's lease; 0: it has none
}

func (l *Lease) String() string {
	switch {
	case l.Left > 0:
		return fmt.Sprintf("lease of this node, renewed until in %.0f s", l.Left)
	case l.Node == "":
		return "no lease: the server of the fleet has not answered"
	}
	return "no lease: node " + l.Node + " has it, or had it last"
}

// Quota is what an agent takes and may take. 0 is no limit.
type Quota struct {
	Bytes    int64 `json:"bytes"`
	MaxBytes int64 `json:"max_bytes,omitempty"`
	Files    int64 `json:"files"`
	MaxFiles int64 `json:"max_files,omitempty"`
	Counting bool  `json:"counting,omitempty"` // the first count goes on
	Stores   int64 `json:"stores,omitempty"`   // bytes of it that stores hold
}

func (q *Quota) String() string {
	var parts []string
	if q.MaxBytes > 0 {
		parts = append(parts, fmt.Sprintf("%.1f of %.1f MiB", float64(q.Bytes)/(1<<20), float64(q.MaxBytes)/(1<<20)))
	}
	if q.MaxFiles > 0 {
		parts = append(parts, fmt.Sprintf("%d of %d files", q.Files, q.MaxFiles))
	}
	if q.Counting {
		parts = append(parts, "counting")
	}
	return strings.Join(parts, ", ")
}

// Part returns the larger part of a limit that is used, in percent.
func (q *Quota) Part() (most int64) {
	for _, limit := range [][2]int64{{q.Bytes, q.MaxBytes}, {q.Files, q.MaxFiles}} {
		if limit[1] > 0 {
			most = max(most, int64(float64(limit[0])/float64(limit[1])*100))
		}
	}
	return most
}

// Door is an address at which a daemon serves agents' tools.
type Door struct {
	By      string `json:"by"` // what names the agent there: socket or token
	Address string `json:"address"`
	Base    string `json:"base,omitempty"` // of the daemon, where several are listed
}

// Stream is a receiver of the log.
type Stream struct {
	Name  string  `json:"stream"`
	Sent  uint64  `json:"sent"`            // the number of the last event that it has; 0: not known yet
	Lag   uint64  `json:"lag"`             // events of the log behind it
	Age   float64 `json:"age"`             // seconds that the oldest of them has waited
	Late  bool    `json:"late"`            // the log has an alarm
	Error string  `json:"error,omitempty"` // why the last attempt failed
	Base  string  `json:"base,omitempty"`  // of the daemon, where several are listed
}

// Session is a command, a client of the tools, a task, or an MCP server of an agent.
type Session struct {
	ID      string      `json:"session"` // as in the log; scopefs kill takes it
	Agent   scope.ID    `json:"agent"`
	Kind    SessionKind `json:"kind"`
	Parent  string      `json:"parent,omitempty"`  // the session that it works for
	Command string      `json:"command,omitempty"` // of a run or a task; text of the client's
	Since   time.Time   `json:"since"`
	PID     int         `json:"pid,omitempty"` // of process 1 of its sandbox; 0: it has none now
}

// SessionKind is what a session is for.
type SessionKind string

// The kinds of session.
const (
	RunSession    SessionKind = "run"    // a command of scopefs run
	ClientSession SessionKind = "client" // a client of the agent's socket
	WebSession    SessionKind = "http"   // all HTTP requests of the agent
	TaskSession   SessionKind = "task"   // the runner of a delegated task, or the program of a declared call
	ServerSession SessionKind = "server" // an MCP server
)

// Store is a shared store that scopefs.yaml configures.
type Store struct {
	Name   string   `json:"store"`
	Kind   string   `json:"kind"`
	Tools  []string `json:"tools"`
	Agents []string `json:"agents"`          // that may call one of the tools
	Error  string   `json:"error,omitempty"` // "": it works
}

// State is the state of an agent's view.
type State string

// The states of a view.
const (
	Starting State = "starting"
	Mounted  State = "mounted"
	Failed   State = "failed"
	Down     State = "down"
)

// Reloaded is what a reload did with one agent, or why it did nothing. A reload
// omits agents that have not changed.
type Reloaded struct {
	Agent   scope.ID `json:"agent,omitempty"`
	File    string   `json:"file,omitempty"` // the file, where it belongs to no agent
	Outcome string   `json:"outcome"`
	Waits   []string `json:"waits,omitempty"`   // keys of the definition that hold only after down and up
	Restart bool     `json:"restart,omitempty"` // what the file says does not hold before a restart of the daemon
	Error   string   `json:"error,omitempty"`
	Warning string   `json:"warning,omitempty"`
}
