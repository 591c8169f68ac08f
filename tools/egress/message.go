package egress

import (
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/network"
)

// Op is what a [Request] is about. Each is answered with one [Reply].
type Op string

// The requests.
const (
	OpAdmit    Op = "admit"    // Case: decide, and record; answered with Admitted or a Refusal
	OpJudge    Op = "judge"    // Case: decide alone; answered with a Refusal, or nothing
	OpDeny     Op = "deny"     // Case, Refusal: record; answered with a Refusal, for the client
	OpEnd      Op = "end"      // Case.ID, Ended, perhaps Refusal: record the end of an admitted case
	OpDial     Op = "dial"     // Case.ID: connect to its host; answered with the socket and CA, or a Refusal
	OpUpward   Op = "upward"   // Case.ID: may the upstream proxy connect to its host?
	OpUpstream Op = "upstream" // Case.ID: connect to the upstream proxy for it
	OpSecret   Op = "secret"   // Name and Source of a Credential; answered with its Value
	OpLeaf     Op = "leaf"     // Name of a host, Key; answered with a Chain of certificates
	OpLease    Op = "lease"    // Least; answered with Bytes, or a Refusal
	OpPeer     Op = "peer"     // Case.Way, At, Port, with a connection that a port has accepted: may it use the port?
	OpLead     Op = "lead"     // Case.ID, of a connection to a port: connect to where the port leads
)

// Request is what a proxy in another process asks of its [Monitor].
type Request struct {
	Op      Op       `json:"op"`
	Case    Case     `json:"case,omitzero"`
	Refusal *Refusal `json:"refusal,omitempty"`
	Ended   *Ended   `json:"ended,omitempty"`
	Name    string   `json:"name,omitempty"`
	Source  string   `json:"source,omitempty"`
	Key     []byte   `json:"key,omitempty"` // a public key, PKIX
	Least   int64    `json:"least,omitempty"`
	Again   bool     `json:"again,omitempty"` // an earlier daemon may have had it
}

// Reply is the answer to a [Request].
type Reply struct {
	Refusal  *Refusal  `json:"refusal,omitempty"`
	Admitted *Admitted `json:"admitted,omitempty"`
	CA       string    `json:"ca,omitempty"` // PEM certificates that sign the host's; "": the proxy's roots do
	Remote   string    `json:"remote,omitempty"`
	Value    string    `json:"value,omitempty"`
	Chain    [][]byte  `json:"chain,omitempty"`
	Bytes    int64     `json:"bytes,omitempty"`
}

// Case is a connection or a request, as its proxy sees it.
type Case struct {
	ID         uint64    `json:"id,omitempty"` // chosen by the proxy, never twice
	Op         string    `json:"op,omitempty"` // connect or request, or a Way
	Way        Way       `json:"way,omitempty"`
	At         uint16    `json:"at,omitempty"` // see Port
	Host       string    `json:"host,omitempty"`
	Port       uint16    `json:"port,omitempty"`
	Scheme     string    `json:"scheme,omitempty"`
	Method     string    `json:"method,omitempty"`
	Path       string    `json:"path,omitempty"`
	Field      string    `json:"field,omitempty"`     // that some servers take for the method or the path
	Parameter  bool      `json:"parameter,omitempty"` // the query has such a parameter
	Watched    bool      `json:"watched,omitempty"`   // the body may have one: see Admitted.Divided
	Many       bool      `json:"many,omitempty"`      // it stands for requests that differ
	Unrecorded int64     `json:"unrecorded,omitempty"`
	Call       string    `json:"call,omitempty"`
	Known      bool      `json:"known,omitempty"` // Call is what the Monitor has said of the connection
	Spent      *Refusal  `json:"spent,omitempty"` // why it may move no byte
	Began      time.Time `json:"began,omitzero"`
}

// Admitted is what a proxy needs of a decision.
type Admitted struct {
	Rule      string          `json:"rule,omitempty"`
	Intercept bool            `json:"intercept,omitempty"` // the requests of the connection are decided one by one
	Upward    bool            `json:"upward,omitempty"`    // the upstream proxy connects to the host
	Local     bool            `json:"local,omitempty"`     // the rule has an address of this host's loopback
	Divided   bool            `json:"divided,omitempty"`   // the rules do not allow every method
	Secret    string          `json:"secret,omitempty"`    // the name of the credential that the request gets
	Call      string          `json:"call,omitempty"`
	State     json.RawMessage `json:"state,omitempty"` // for Monitor.Continue
}

// Ended is how a case has ended.
type Ended struct {
	Status int           `json:"status,omitempty"` // of HTTP
	Sent   int64         `json:"sent,omitempty"`
	Got    int64         `json:"got,omitempty"`
	Remote string        `json:"remote,omitempty"`
	Took   time.Duration `json:"took,omitempty"`
}

// Refusal says why a connection or a request is not made, or has failed.
type Refusal struct {
	Message    string        `json:"message"`
	Rule       string        `json:"rule,omitempty"`
	Hint       string        `json:"hint,omitempty"`
	Remedy     string        `json:"remedy,omitempty"`
	ApprovalID string        `json:"approval_id,omitempty"`
	Status     int           `json:"status,omitempty"`
	Verdict    audit.Verdict `json:"verdict,omitempty"` // "": a failure of what was allowed
	Kind       scope.Kind    `json:"kind,omitempty"`
	Cause      string        `json:"cause,omitempty"` // for the log alone
	Unmade     bool          `json:"unmade,omitempty"`
	Keyless    bool          `json:"keyless,omitempty"`
	Address    bool          `json:"address,omitempty"` // the cause is ErrAddress
}

// An Item is a case that was admitted and has not ended.
type Item struct {
	Case   Case            `json:"case"`
	Remote string          `json:"remote,omitempty"`
	State  json.RawMessage `json:"state,omitempty"`
}

// Credential is a [Secret] without its value.
type Credential struct {
	Name        string   `json:"name"`
	Placeholder string   `json:"placeholder"`
	Header      string   `json:"header,omitempty"`
	Format      string   `json:"format,omitempty"`
	Without     []string `json:"without,omitempty"`
	Source      string   `json:"source,omitempty"` // see Secret: here it only differs where that does
}

// state is Admitted.State.
type state struct {
	Rule   string        `json:"rule"`
	Kind   scope.Kind    `json:"kind"`
	Route  network.Route `json:"route,omitzero"`
	Secret string        `json:"secret,omitempty"`
	Upward bool          `json:"upward,omitempty"` // the upstream proxy connects to the host
	Asked  bool          `json:"asked,omitempty"`  // the operator has approved it
	Seal   []byte        `json:"seal,omitempty"`   // see Monitor.Seal
}

func (r *refusal) wire() *Refusal {
	if r == nil {
		return nil
	}
	w := &Refusal{Message: clip(r.Message), Rule: clip(r.Rule), Hint: clip(r.Hint), Remedy: clip(r.remedy), ApprovalID: r.ApprovalID, Status: r.status,
		Verdict: r.verdict, Kind: r.kind, Unmade: r.unmade, Keyless: r.keyless, Address: errors.Is(r.cause, ErrAddress)}
	if r.cause != nil {
		w.Cause = clip(r.cause.Error())
	}
	return w
}

// clip returns at most maxClip bytes of a text. A host chooses how long an error is that quotes it.
func clip(text string) string {
	text = strings.ToValidUTF8(text[:min(len(text), maxClip)], "?")
	return strings.ToValidUTF8(text[:min(len(text), maxClip)], "")
}

// refusal returns a refusal of another process.
func (w *Refusal) refusal() *refusal {
	if w == nil {
		return nil
	}
	r := &refusal{Message: w.Message, Rule: w.Rule, Hint: w.Hint, remedy: w.Remedy, ApprovalID: w.ApprovalID, status: w.Status, verdict: w.Verdict,
		kind: w.Kind, unmade: w.Unmade, keyless: w.Keyless}
	switch {
	case w.Address:
		r.cause = &farError{w.Cause, ErrAddress}
	case w.Cause != "":
		r.cause = &farError{w.Cause, nil}
	}
	return r
}

// farError is an error of another process.
type farError struct {
	text string
	is   error
}

func (e *farError) Error() string { return e.text }

func (e *farError) Unwrap() error { return e.is }

func (a *access) wire() Case {
	call, known := a.in.learned()
	return Case{ID: a.id, Op: a.op, Way: a.way, At: a.at, Host: a.host, Port: a.port, Scheme: a.scheme, Method: a.method, Path: a.path, Field: a.field,
		Parameter: a.parameter, Watched: a.watched, Many: a.many, Unrecorded: a.unrecorded, Call: call, Known: known, Spent: a.spent.wire(),
		Began: a.began}
}

// access returns a case of another process.
func (c Case) access() *access {
	return &access{id: c.ID, op: c.Op, way: c.Way, at: c.At, host: c.Host, port: c.Port, scheme: c.Scheme, method: c.Method, path: c.Path,
		field: c.Field, parameter: c.Parameter, watched: c.Watched, many: c.Many, unrecorded: c.Unrecorded, spent: c.Spent.refusal(), began: c.Began,
		in: &incoming{call: c.Call, known: c.Known}}
}

// The bounds of texts, in bytes. maxText is of a request's target and fields, maxClip of each text of a refusal. All are larger in JSON.
const (
	maxText  = 24 << 10
	maxClip  = 2 << 10
	maxShort = 300
)

// long reports whether the texts of an access have more than maxText bytes.
func (a *access) long() bool { return len(a.scheme)+len(a.method)+len(a.path)+len(a.field) > maxText }

// errNonsense is the error of what no proxy of ours asks.
var errNonsense = errors.New("its request makes no sense")

// check returns an error for a case that no proxy has. Of a refusal it may have no host.
func (c Case) check(refused bool) error {
	bad := false
	switch {
	case c.Way != "":
		bad = c.Way != Published && c.Way != HostPort || c.Op != string(c.Way) || c.Host != localhost || c.Method != "" || c.Scheme != ""
	case c.Op != "connect" && c.Op != "request":
		bad = true
	case refused && c.Host == "":
	default:
		host, err := network.ParseHost(c.Host)
		bad = err != nil || host != c.Host || c.Port == 0
	}
	if bad || c.Unrecorded < 0 || len(c.Call) > maxShort || len(c.Scheme)+len(c.Method)+len(c.Path)+len(c.Field) > maxText {
		return errNonsense
	}
	return nil
}

// Check returns an error for a request whose texts are longer than those of our proxies.
func (q *Request) Check() error {
	c := &q.Case
	if len(c.Op)+len(c.Way)+len(c.Host)+len(q.Name)+len(q.Source)+len(q.Key) > 4*maxShort || len(c.Call) > maxShort ||
		len(c.Scheme)+len(c.Method)+len(c.Path)+len(c.Field) > maxText || q.Ended != nil && len(q.Ended.Remote) > maxShort {
		return errNonsense
	}
	return errors.Join(q.Refusal.check(), c.Spent.check())
}

func (w *Refusal) check() error {
	switch {
	case w == nil:
		return nil
	case w.Verdict != "" && w.Verdict != audit.Deny && w.Verdict != audit.Violation, len(w.Kind) > maxShort, w.ApprovalID != "",
		max(len(w.Message), len(w.Rule), len(w.Hint), len(w.Remedy), len(w.Cause)) > maxClip:
		return errNonsense
	}
	return nil
}

func (e *Ended) check() error {
	if e == nil || e.Sent < 0 || e.Got < 0 || e.Took < 0 || e.Status < 0 || e.Status > 999 || len(e.Remote) > maxShort {
		return errNonsense
	}
	return nil
}
