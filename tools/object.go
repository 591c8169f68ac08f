package tools

import (
	"cmp"
	"context"
	"errors"
)

// Object identifies the file at a path of a call. An approval is bound to the object,
// not to the path: a link may change while the operator decides.
type Object struct {
	Path string `json:"path"`         // with every link resolved, relative to the view; "" outside of it
	ID   string `json:"id,omitempty"` // inode number and birth time; "" if nothing exists there

	// Content is the hash of a file's content, or of a directory's entries if the tool
	// wants them; else "".
	Content string `json:"-"`
}

type approvedKey struct{}

// Approved returns the objects for which the call of ctx was approved, by the paths in
// its arguments. A tool must act on these objects only.
func Approved(ctx context.Context) map[string]Object {
	objects, _ := ctx.Value(approvedKey{}).(map[string]Object)
	return objects
}

// objectsOf looks up the objects of a call's paths and stores them in its approval.
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

// Changes shows the operator what a call would change in a file. It comes from the
// agent's sandbox, which the daemon does not trust.
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

// preview stores in an approval how its call would change the content that the approval
// is bound to. It skips a call that has an approval already.
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

// knows reports whether an approval exists.
func (a *Approvals) knows(key string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.byKey[key] != nil
}

// where returns a path of a call, with the resolved path if that differs.
func (o Object) where(rel string) string {
	if o.Path == "" || o.Path == cmp.Or(rel, ".") {
		return rel
	}
	return rel + " (is " + o.Path + ")"
}

// About returns the paths of a call as it names them, with the resolved paths where they
// differ.
func (a *Approval) About(target string) string {
	text := a.Object.where(a.Path)
	if target != "" {
		text += " -> " + a.ReplacedObject.where(target)
	}
	return text
}
