package tools

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/scope"
	scoped "github.com/scopefs/scopefs/scope/context"
)

// How long an approval waits for the operator, and then for the agent.
const approvalTime = 15 * time.Minute

// The bounds of the approvals of one agent.
const (
	maxWaiting      = 64
	maxWaitingBytes = 16 << 20 // of their arguments
	maxPreviews     = 32 << 20 // bytes of contexts that are kept for previews
)

// ErrNoApproval reports that no approval with the id is waiting.
var ErrNoApproval = errors.New("no such approval waits, it was decided, used, or its time is over: see scopefs approvals list")

// The states of an approval.
const (
	ApprovalWaits   = "waits"
	ApprovalGranted = "approved"
	ApprovalDenied  = "denied"
	ApprovalStands  = "stands" // a standing approval, for later calls: see Stand
)

// Approval is a call that waits for the operator's decision. A grant covers one call:
// same agent, callers, tool, arguments, policy and, for a call about a file, the same
// object with the same content.
type Approval struct {
	ID             string          `json:"id"`
	State          string          `json:"state"`
	Agent          scope.ID        `json:"agent"`
	Chain          string          `json:"chain,omitempty"` // agents from the first caller; see Gate
	Session        string          `json:"session"`         // the first that asked; every session of the agent may use the approval
	Tool           string          `json:"tool"`
	Version        string          `json:"version,omitempty"` // of the tool, and of the one that does the call
	Arguments      json.RawMessage `json:"arguments"`         // canonical
	Policy         string          `json:"policy"`            // version of the agent's rules
	Rule           string          `json:"rule"`              // that requires the approval
	Path           string          `json:"path,omitempty"`
	Object         Object          `json:"object,omitzero"`    // that Path led to when the call was made
	Content        string          `json:"content,omitempty"`  // hash of that file or directory
	Replaced       string          `json:"replaced,omitempty"` // hash of the file that the call would replace
	ReplacedObject Object          `json:"replaced_object,omitzero"`
	Envelope       json.RawMessage `json:"envelope,omitempty"` // members of the call that are no parameters
	Context        []scoped.Part   `json:"context,omitempty"`  // the scopes that the call would see
	Granted        []string        `json:"granted,omitempty"`  // of an approved call: the scopes that it gets; nil: all of Context
	Preview        string          `json:"preview,omitempty"`  // of one approval, while its call waits: the beginning of what it would see
	Lasting        bool            `json:"lasting,omitempty"`  // of a host: the grant holds until Expires, for any number of uses
	Asked          time.Time       `json:"asked"`
	Expires        time.Time       `json:"expires,omitzero"` // zero: a standing approval without end

	Changes *Changes `json:"changes,omitempty"` // what the call would do to Path

	Kind    Kind   `json:"kind,omitempty"`    // of the subject of patterns
	Subject string `json:"subject,omitempty"` // the command or the host
	Pattern string `json:"pattern,omitempty"` // of a standing approval; "": calls with these Arguments
	Ends    string `json:"ends,omitempty"`    // of a standing approval: the session with which it ends

	given   scoped.Scoped   // never stored: content stays off the disk
	changed <-chan struct{} // closed at the approval's next change: see Approvals.wake
	taken   bool            // a decision of the operator is being recorded
}

// Whose returns the chain of agents, or the agent outside of a task.
func (a *Approval) Whose() string { return cmp.Or(a.Chain, string(a.Agent)) }

// key returns all that an approval is bound to. A standing approval returns its id, which
// no call has as its key.
func (a *Approval) key() string {
	if a.State == ApprovalStands {
		return a.ID
	}
	text, _ := json.Marshal([]string{string(a.Agent), a.Chain, a.Tool, string(a.Arguments), a.Policy, a.Path, a.Content, a.Replaced,
		a.Object.Path, a.Object.ID, a.ReplacedObject.Path, a.ReplacedObject.ID, string(a.Envelope), fmt.Sprint(a.Context), a.Version})
	return hash(text)
}

// ApprovalStore stores approvals for the next daemon. When a method returns nil, the
// change is on the disk.
type ApprovalStore interface {
	Put(Approval) error    // replaces the approval with the same ID
	Remove(Approval) error // fs.ErrNotExist: it was removed before
}

// Approvals holds the approvals of one daemon. Its methods are safe for concurrent use.
type Approvals struct {
	now   func() time.Time
	store ApprovalStore // nil: they end with the process

	// Ended records that a standing approval ended without the operator, and why. Nil
	// records nothing.
	Ended func(p Approval, why string)

	// mu guards the fields below. Calls of all agents wait for it: nothing is recorded under it. Use lock.
	mu      sync.Mutex
	over    []ending // standing approvals that have ended, which unlock records
	byKey   map[string]*Approval
	waking  map[string]chan struct{} // Approval.changed by key
	held    map[scope.ID]int         // calls that wait, see Set.permit
	closing chan struct{}            // closed by Close

	watchers map[chan ApprovalChange]struct{}
}

// ending is the end of a standing approval.
type ending struct {
	of  Approval
	why string
}

// lock locks mu. unlock unlocks it, then records the approvals that ended.
func (a *Approvals) lock() (unlock func()) {
	a.mu.Lock()
	return func() {
		over := a.over
		a.over = nil
		a.mu.Unlock()
		for _, e := range over {
			if a.Ended != nil {
				a.Ended(e.of, e.why)
			}
		}
	}
}

// NewApprovals returns the approvals of a store. Without a store they are in memory
// only.
func NewApprovals(store ApprovalStore, kept ...Approval) *Approvals {
	a := &Approvals{now: time.Now, store: store, byKey: map[string]*Approval{}, waking: map[string]chan struct{}{}, held: map[scope.ID]int{}, closing: make(chan struct{}), watchers: map[chan ApprovalChange]struct{}{}}
	for _, p := range kept {
		a.add(p.key(), &p)
	}
	return a
}

// add adds an approval that is stored. The caller holds the lock.
func (a *Approvals) add(key string, p *Approval) {
	a.byKey[key] = p
	a.wake(key)
}

// wake wakes all calls that wait for an approval. The caller holds the lock.
func (a *Approvals) wake(key string) {
	if c := a.waking[key]; c != nil {
		close(c)
		delete(a.waking, key)
	}
	if p := a.byKey[key]; p != nil {
		c := make(chan struct{})
		a.waking[key], p.changed = c, c
	}
}

// put stores an approval; remove deletes it. The caller holds the lock.
func (a *Approvals) put(p Approval) error {
	if a.store == nil {
		return nil
	}
	return a.store.Put(p)
}

func (a *Approvals) remove(key string) error {
	p := a.byKey[key]
	delete(a.byKey, key)
	a.wake(key)
	if a.store == nil {
		return nil
	}
	return a.store.Remove(*p)
}

// over reports whether an approval has expired. An approval that expires later than
// possible was made before the clock was set back, and has expired, too.
func (a *Approval) over(now time.Time) bool {
	if a.State == ApprovalStands {
		return !a.Expires.IsZero() && now.After(a.Expires) || a.Asked.After(now.Add(approvalTime))
	}
	return now.After(a.Expires) || a.Expires.After(now.Add(approvalTime))
}

// sweep removes expired approvals. It ignores errors: a file that stays is expired for
// the next daemon, too. The caller holds the lock.
func (a *Approvals) sweep() {
	for key, p := range a.byKey {
		if p.over(a.now()) {
			_ = a.remove(key)
			a.ended(p, "expired")
		}
	}
}

// ask returns the operator's decision about a call, and uses a grant up. A new call
// becomes an approval that waits if count counts it against the agent's rates; it is not
// counted again when it is granted.
func (a *Approvals) ask(p Approval, count func() *Error) (said Approval, first bool, err *Error) {
	defer a.lock()()
	a.sweep()
	key := p.key()
	if known := a.byKey[key]; known != nil {
		if known.taken { // a decision is being recorded: the call waits for it
			said = *known
			said.State = ApprovalWaits
			return said, false, nil
		}
		if known.State == ApprovalGranted && !known.Lasting {
			if err := a.remove(key); err != nil { // after a crash it could be used again
				return p, false, notRun("the use of the approval cannot be stored", err)
			}
			a.tell("used", *known)
		}
		return *known, false, nil
	}
	if standing := a.standing(&p); standing != nil {
		if err := count(); err != nil {
			return p, false, err
		}
		a.tell("used", *standing)
		return *standing, false, nil
	}
	waiting, size, previews := 0, len(p.Arguments), p.given.Size()
	for _, other := range a.byKey {
		if other.Agent == p.Agent && other.State != ApprovalStands {
			waiting++
			size += len(other.Arguments)
			previews += other.given.Size()
		}
	}
	if waiting >= maxWaiting || size > maxWaitingBytes {
		return p, false, &Error{Code: RateLimited, Message: fmt.Sprintf("%d calls wait for the operator already", waiting)}
	}
	if err := count(); err != nil {
		return p, false, err
	}
	p.ID, p.State, p.Asked = newID(), ApprovalWaits, a.now()
	p.Expires = p.Asked.Add(approvalTime)
	if previews > maxPreviews {
		p.given = scoped.Scoped{}
	}
	if err := a.put(p); err != nil {
		return p, false, notRun("what the operator is to approve cannot be stored", err)
	}
	a.add(key, &p)
	a.tell(ApprovalWaits, p)
	return p, true, nil
}

// Forget removes an agent's approvals except standing ones, when the agent is taken down.
// They are gone even after an error, but the next daemon may find some of them.
func (a *Approvals) Forget(agent scope.ID) error {
	return a.forget(func(p *Approval) bool { return p.Agent == agent })
}

// ForgetSession is Forget for the calls of one session.
func (a *Approvals) ForgetSession(agent scope.ID, session string) error {
	return a.forget(func(p *Approval) bool { return p.Agent == agent && p.Session == session })
}

func (a *Approvals) forget(of func(*Approval) bool) error {
	if a == nil {
		return nil
	}
	defer a.lock()()
	var errs []error
	for key, p := range a.byKey {
		if of(p) && p.State != ApprovalStands {
			a.tell("ended", *p)
			if err := a.remove(key); !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

// Brief returns the approval for a list: it cuts long arguments, as a text, and omits
// the changes.
func (a Approval) Brief() Approval {
	a.Changes = nil
	const most = 1 << 10 // bytes
	if len(a.Arguments) > most {
		a.Arguments, _ = json.Marshal(string(a.Arguments[:most]) + "...") // cannot fail
	}
	return a
}

// List returns all approvals, the oldest first.
func (a *Approvals) List() []Approval {
	defer a.lock()()
	a.sweep()
	list := []Approval{}
	for _, p := range a.byKey {
		list = append(list, *p)
	}
	slices.SortFunc(list, func(x, y Approval) int { return cmp.Or(x.Asked.Compare(y.Asked), strings.Compare(x.ID, y.ID)) })
	return list
}

// Get returns the approval with an id, with a preview of the context.
func (a *Approvals) Get(id string) (Approval, error) {
	for _, p := range a.List() {
		if p.ID == id {
			if !p.given.Empty() {
				p.Preview = Clip(string(p.given.JSON()), maxPreview)
			}
			return p, nil
		}
	}
	return Approval{}, ErrNoApproval
}

// maxPreview bounds the preview of a context, in bytes.
const maxPreview = 4 << 10

// Decide makes the operator's decision about a call that waits. If scopes is not nil,
// the call gets only these scopes of its context. record is called before the decision
// holds; after its error, or the store's, nothing is decided. Meanwhile another decision
// about the call fails.
func (a *Approvals) Decide(id string, grant bool, scopes []string, record func(Approval) error) (Approval, error) {
	p, decided, err := a.decide(id, grant, scopes)
	if err != nil {
		return decided, err
	}
	err = record(decided)
	defer a.lock()()
	p.taken = false
	key := p.key()
	switch {
	case err != nil:
		return decided, err
	case a.byKey[key] != p: // the approval ended meanwhile
		return decided, ErrNoApproval
	}
	return decided, a.settle(key, p, decided)
}

// decide marks a waiting call as taken, and returns the approval with the decision.
func (a *Approvals) decide(id string, grant bool, scopes []string) (p *Approval, decided Approval, err error) {
	defer a.lock()()
	a.sweep()
	if p, err = a.find(id, ApprovalWaits); err != nil {
		return nil, Approval{}, err
	}
	decided = *p
	decided.State, decided.Expires = ApprovalDenied, a.now().Add(approvalTime)
	if err := decided.narrow(scopes); err != nil {
		return nil, decided, err
	}
	if grant {
		decided.State = ApprovalGranted
	}
	p.taken = true
	return p, decided, nil
}

// find returns the approval with an id in one of the states. It returns an error while a
// decision about the approval is being recorded. The caller holds the lock.
func (a *Approvals) find(id string, states ...string) (*Approval, error) {
	for _, p := range a.byKey {
		switch {
		case p.ID != id || !slices.Contains(states, p.State):
		case p.taken:
			return nil, fmt.Errorf("approval %s: another decision is being recorded: try again", id)
		default:
			return p, nil
		}
	}
	return nil, ErrNoApproval
}

// settle stores a decision after it was recorded. The caller holds the lock.
func (a *Approvals) settle(key string, p *Approval, decided Approval) error {
	if err := a.put(decided); err != nil {
		return fmt.Errorf("store the decision: %w", err)
	}
	*p = decided
	a.wake(key)
	a.tell(decided.State, decided)
	return nil
}

// narrow sets the scopes that the operator grants. Nil grants all.
func (a *Approval) narrow(scopes []string) error {
	if scopes == nil {
		return nil
	}
	if len(scopes) == 0 {
		return errors.New("no scope is granted: deny the call instead")
	}
	for _, name := range scopes {
		if !slices.ContainsFunc(a.Context, func(p scoped.Part) bool { return p.Name == name }) {
			return fmt.Errorf("the call %s does not ask for the scope %q: see scopefs approvals show", a.ID, name)
		}
	}
	a.Granted = slices.Compact(slices.Sorted(slices.Values(scopes)))
	return nil
}

// approved returns nil for a call that the operator has granted.
func (s *Set) approved(ctx context.Context, r *request, d scope.Decision, policy string, count func() *Error) *Error {
	if s.gate.Approvals == nil {
		return &Error{Code: Denied, Message: fmt.Sprintf("%s must be approved, and nobody is here who could", r.name), Hint: s.gate.Nobody, by: d}
	}
	p := Approval{Agent: s.gate.Agent, Chain: s.gate.Chain, Session: s.gate.Session, Tool: r.name, Version: r.tool.Version + r.doing, Arguments: r.args.canonical, Policy: policy, Rule: d.Rule, Path: r.path}
	if err := r.about(&p); err != nil {
		return asError(err)
	}
	p.Kind, p.Subject = r.kind, r.command
	if err := s.objectsOf(ctx, r, &p); err != nil {
		return asError(err)
	}
	if err := s.preview(ctx, r, &p); err != nil {
		return err
	}
	if s.rules().Version() != policy { // hashing a large file takes long, and the agent chooses the file
		return &Error{Code: Conflict, Message: "the rules have changed meanwhile", Hint: "call again", by: d}
	}
	ctx = context.WithoutCancel(ctx) // record it even if the client has disconnected
	said, first, refused := s.gate.Approvals.ask(p, count)
	if refused != nil {
		refused.by = cmp.Or(refused.by, d)
		return refused
	}
	event := audit.Event{Event: audit.KindApproval, Agent: string(p.Agent), Session: p.Session, Call: r.id, Op: p.Tool, Path: p.Path, Target: r.target, Rule: d.Rule, Detail: said.ID}
	r.describe(&event)
	switch said.State {
	case ApprovalGranted, ApprovalStands:
		if refused := r.narrow(said.Granted); refused != nil {
			return refused
		}
		event.Outcome, event.Context = "used", nil
		r.describe(&event)
	case ApprovalDenied:
		return &Error{Code: Denied, Message: fmt.Sprintf("the operator has denied this call of %s", r.name), ApprovalID: said.ID, by: d}
	default:
		if first {
			event.Outcome = "asked"
			if err := s.gate.Record(ctx, event); err != nil {
				return notRun("the call cannot be recorded", err)
			}
		}
		return &Error{Code: ApprovalRequired, Message: fmt.Sprintf("this call of %s must be approved by the operator", r.name),
			Hint: "call again with the same arguments when it is", ApprovalID: said.ID, by: d, changed: said.changed}
	}
	if err := s.gate.Record(ctx, event); err != nil {
		return notRun("the call cannot be recorded", err)
	}
	return nil
}
