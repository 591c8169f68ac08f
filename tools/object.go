package tools

import (
	"cmp"
	"context"
	"errors"
)

// Object is what stands at a path of a call. An approval is bound to it, not to
// the path: a link may be pointed elsewhere while the operator decides.
type Object struct {
	Path string `json:"path"`         // after every link, relative to the view; "" outside of it
	ID   string `json:"id,omitempty"` // inode number and time of birth; "" where nothing stands

	// Content is the hash of a file's content, or of what a directory holds if that
	// was asked for; "" of anything else.
	Content string `json:"-"`
}

type approvedKey struct{}

// Approved returns the objects for which the call of ctx was approved, by the
// paths of its arguments. A tool must act on these or on nothing.
func Approved(ctx context.Context) map[string]Object {
	objects, _ := ctx.Value(approvedKey{}).(map[string]Object)
	return objects
}

// objectsOf asks for the objects that a call is about, and notes them in an
// approval of it.
func (s *Set) objectsOf(ctx context.Context, r *request, p *Approval) error {
	if r.path == "" || s.gate.Object == nil {
		return nil
	}
	writes := r.tool.Hints.Writes
	object, err := s.gate.Object(ctx, r.name, r.path, writes)
	if err != nil {
		return err
	}
	r.objects = map[string]Object{r.path: object}
	p.Object, p.Content = object, object.Content
	if r.target == "" || !writes {
		return nil
	}
	if object, err = s.gate.Object(ctx, r.name, r.target, true); err != nil {
		return err
	}
	r.objects[r.target] = object
	p.ReplacedObject, p.Replaced = object, object.Content
	return nil
}

// Changes are what a call would do to a file, for the operator to see before it is
// approved. It comes from the agent's sandbox, which the daemon does not trust.
type Changes struct {
	Diff string `json:"diff,omitempty"` // unified; see diff(1)
	Cut  int    `json:"cut,omitempty"`  // bytes of it that are left out at its end
	Note string `json:"note,omitempty"` // why there is no diff, or what it does not show

	Content string `json:"-"` // of the file that Diff applies to, as in Object
}

// The bounds of changes, in bytes. A diff is cut where it is made.
const (
	maxChanges = 128 << 10
	maxNote    = 8 << 10
)

// preview notes in an approval how its call would change the content that the approval
// is bound to. It skips a call that has asked already.
func (s *Set) preview(ctx context.Context, r *request, p *Approval) *Error {
	if s.gate.Preview == nil || r.path == "" || s.gate.Approvals.knows(p.key()) {
		return nil
	}
	changes, err := s.gate.Preview(ctx, r.name, r.args.canonical)
	switch {
	case err != nil && ctx.Err() != nil:
		return cancelled(ctx)
	case err != nil:
		p.Changes = &Changes{Note: "the call would fail: " + Clip(asError(err).Error(), maxNote)}
		return nil
	case changes == (Changes{}):
		return nil
	case changes.Content != p.Content:
		return &Error{Code: Conflict, Message: "the file has changed meanwhile", Path: p.Path, Hint: "call again"}
	case len(changes.Diff) > maxChanges || len(changes.Note) > maxNote || changes.Cut < 0:
		return &Error{Code: Internal, Message: "the tool failed", cause: errors.New("a preview beyond its bounds")}
	}
	p.Changes = &changes
	return nil
}

// knows reports whether an approval is there.
func (a *Approvals) knows(key string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.byKey[key] != nil
}

// where says what a path is, where that is something else.
func (o Object) where(rel string) string {
	if o.Path == "" || o.Path == cmp.Or(rel, ".") {
		return rel
	}
	return rel + " (is " + o.Path + ")"
}

// About says which files a call is about: as it names them, and what they are if
// that is something else.
func (a *Approval) About(target string) string {
	text := a.Object.where(a.Path)
	if target != "" {
		text += " -> " + a.ReplacedObject.where(target)
	}
	return text
}
