package tools

import (
	"cmp"
	"context"
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
