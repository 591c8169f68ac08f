package approvals

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/scopefs/scopefs/scope"
	scoped "github.com/scopefs/scopefs/scope/context"
)

// lifetime is how long an approval waits for the operator, and then for the agent.
const lifetime = 15 * time.Minute

// The states of an approval.
const (
	Waits   = "waits"
	Granted = "approved"
	Denied  = "denied"
	Stands  = "stands" // a standing approval, for later requests: see Set.Stand
)

// Outcomes of requests that are no states.
const (
	TimedOut = "timed out" // nobody decided in time
	Changed  = "changed"   // what the request is about is not what the operator was shown
)

// Approval is a request that waits for the operator's decision: a tool call, a connection,
// or a use of a client's own tool. A grant covers one request: same agent, callers, tool,
// arguments, policy and, for a call about a file, the same object with the same content.
type Approval struct {
	ID             string          `json:"id"`
	State          string          `json:"state"`
	Agent          scope.ID        `json:"agent"`
	Chain          string          `json:"chain,omitempty"`   // agents from the first caller: a>b>c; "" outside of a task
	Session        string          `json:"session"`           // the first that asked; every session of the agent may use the approval
	Tool           string          `json:"tool"`              // or the kind of another request
	Version        string          `json:"version,omitempty"` // of the tool, and of the one that does the call
	Arguments      json.RawMessage `json:"arguments"`         // canonical
	Policy         string          `json:"policy"`            // version of the agent's rules
	Rule           string          `json:"rule"`              // that requires the approval
	Path           string          `json:"path,omitempty"`
	Object         Object          `json:"object,omitzero"`    // that Path led to when the call was made
	Content        string          `json:"content,omitempty"`  // hash of that file or directory; without Path, of the changes
	Paths          []string        `json:"paths,omitempty"`    // of approved changes: patterns of the part that is; none: all
	Replaced       string          `json:"replaced,omitempty"` // hash of the file that the call would replace
	ReplacedObject Object          `json:"replaced_object,omitzero"`
	Envelope       json.RawMessage `json:"envelope,omitempty"` // members of the call that are no parameters
	Context        []scoped.Part   `json:"context,omitempty"`  // the scopes that the call would see
	Granted        []string        `json:"granted,omitempty"`  // of an approved call: the scopes that it gets; nil: all of Context
	Preview        string          `json:"preview,omitempty"`  // of one approval, while its call waits: the beginning of what it would see
	Lasting        bool            `json:"lasting,omitempty"`  // of a host: the grant holds until Expires, for any number of uses
	Asked          time.Time       `json:"asked"`

	// Hash is the hash of what the operator is shown of a request: a decision may name it. See Answer.
	Hash    string    `json:"hash,omitempty"`
	By      string    `json:"by,omitempty"`     // who decided
	Decided time.Time `json:"decided,omitzero"` // when
	Reason  string    `json:"reason,omitempty"` // of a denial, for the agent

	Expires time.Time `json:"expires,omitzero"` // zero: a standing approval without end

	Changes *Changes `json:"changes,omitempty"` // what the call would do to Path

	Kind    Kind   `json:"kind,omitempty"`    // of the subject of patterns
	Subject string `json:"subject,omitempty"` // the command or the host
	Pattern string `json:"pattern,omitempty"` // of a standing approval; "": requests with these Arguments
	Ends    string `json:"ends,omitempty"`    // of a standing approval: the session with which it ends

	preview string        // never stored: content stays off the disk
	changed chan struct{} // see Changed
	taken   chan struct{} // a decision of the operator is being recorded; closed after that. nil: none is
	timer   *time.Timer   // at Expires
	again   func(context.Context) (Approval, error)
}

// SetAgain sets how the request is looked up again when the operator approves it: what the call would ask now. An error
// of again is ignored, because a use of the approval is bound to what was approved in any case, but [ErrRules].
func (a *Approval) SetAgain(again func(context.Context) (Approval, error)) { a.again = again }

// Digest returns the hash of what an operator is shown of a request, except of its preview. It does not change while the request
// waits. Who has the request of another process compares it with Hash.
func (a Approval) Digest() string {
	of := a
	of.State, of.Hash, of.Granted, of.Paths, of.Preview, of.By, of.Reason = "", "", nil, nil, "", "", ""
	of.Asked, of.Expires, of.Decided = time.Time{}, time.Time{}, time.Time{}
	text, _ := json.Marshal(of) // cannot fail: canonical arguments are JSON
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// Object identifies the file at a path of a call. An approval is bound to the object,
// not to the path: a link may change while the operator decides.
type Object struct {
	Path string `json:"path"`         // with every link resolved, relative to the view; "" outside of it
	ID   string `json:"id,omitempty"` // inode number and birth time; "" if nothing exists there

	// Content is the hash of a file's content, or of a directory's entries if the tool
	// wants them; else "".
	Content string `json:"-"`
}

// Changes shows the operator what a call would change in a file. It comes from the
// agent's sandbox, which the daemon does not trust.
type Changes struct {
	Diff string `json:"diff,omitempty"` // unified; see diff(1)
	Cut  int    `json:"cut,omitempty"`  // bytes of it that are left out at its end
	Note string `json:"note,omitempty"` // why there is no diff, or what it does not show

	Content string `json:"-"` // of the file that Diff applies to, as in Object
}

// maxPreview bounds the preview of a context, in bytes.
const maxPreview = 4 << 10

// SetContext sets the context that the request would see, if there is one.
func (a *Approval) SetContext(c scoped.Scoped) {
	if c.Empty() {
		return
	}
	a.Context, a.preview = c.Parts(), string(c.JSON())
	if len(a.preview) > maxPreview {
		a.preview = strings.ToValidUTF8(a.preview[:maxPreview], "") + "…"
	}
}

// Changed returns a channel that is closed at the next change of an approval from
// [Set.Ask], or when the request may be decided otherwise.
func (a *Approval) Changed() <-chan struct{} { return a.changed }

// wake wakes all requests that wait for the approval. The caller holds the set's lock.
func (a *Approval) wake() {
	close(a.changed)
	a.changed = make(chan struct{})
}

// Whose returns the chain of agents, or the agent outside of a task.
func (a *Approval) Whose() string { return cmp.Or(a.Chain, string(a.Agent)) }

// About returns the paths of a call as it names them, with the resolved paths where they
// differ.
func (a *Approval) About(target string) string {
	text := a.Object.where(a.Path)
	if target != "" {
		text += " -> " + a.ReplacedObject.where(target)
	}
	return text
}

// where returns a path of a call, with the resolved path if that differs.
func (o Object) where(rel string) string {
	if o.Path == "" || o.Path == cmp.Or(rel, ".") {
		return rel
	}
	return rel + " (is " + o.Path + ")"
}

// Text returns an argument that is a text. ok is false if the arguments have none of the name, or several whose names differ
// in case at most: a reader could take another one than the tool does.
func (a Approval) Text(name string) (text string, ok bool) {
	in := json.NewDecoder(bytes.NewReader(a.Arguments))
	if t, err := in.Token(); err != nil || t != json.Delim('{') {
		return "", false
	}
	for in.More() {
		var value json.RawMessage
		key, _ := in.Token()
		is, _ := key.(string)
		if in.Decode(&value) != nil || strings.EqualFold(is, name) && (ok || is != name || json.Unmarshal(value, &text) != nil) {
			return "", false
		}
		ok = ok || is == name
	}
	return text, ok
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

// key returns all that an approval is bound to. A standing approval returns its id, which
// no request has as its key.
func (a *Approval) key() string {
	if a.State == Stands {
		return a.ID
	}
	text, _ := json.Marshal([]string{string(a.Agent), a.Chain, a.Tool, string(a.Arguments), a.Policy, a.Path, a.Content, a.Replaced,
		a.Object.Path, a.Object.ID, a.ReplacedObject.Path, a.ReplacedObject.ID, string(a.Envelope), fmt.Sprint(a.Context), a.Version})
	sum := sha256.Sum256(text)
	return string(sum[:])
}

// over reports whether an approval has expired. An approval that expires later than
// possible was made before the clock was set back, and has expired, too.
func (a *Approval) over(now time.Time) bool {
	if a.State == Stands {
		return !a.Expires.IsZero() && now.After(a.Expires) || a.Asked.After(now.Add(lifetime))
	}
	return now.After(a.Expires) || a.Expires.After(now.Add(lifetime))
}

// concerns reports whether one of ids is the approval's agent, or in its chain.
func (a *Approval) concerns(ids []scope.ID) bool {
	return slices.ContainsFunc(strings.Split(a.Whose(), ">"), func(id string) bool { return slices.Contains(ids, scope.ID(id)) })
}

// bound reports whether the request is approved for changes that no path names.
func (a *Approval) bound() bool { return a.Content != "" && a.Path == "" }

// part sets the patterns of the changes that the operator grants. None grants all.
func (a *Approval) part(paths []string) error {
	if len(paths) > 0 && !a.bound() {
		return fmt.Errorf("the call %s has no set of changes: approve it without --allow-paths", a.ID)
	}
	for _, p := range paths {
		if err := (scope.PathRule{Pattern: p}).Check(); err != nil {
			return fmt.Errorf("--allow-paths %q: %w", p, err)
		}
	}
	a.Paths = paths
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
