package file

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/tools"
)

type writeMode string

// ModeCreate creates a new file, and fails if the name exists.
const (
	ModeCreate    writeMode = "create"
	modeOverwrite writeMode = "overwrite"
	modeAppend    writeMode = "append"
)

// WriteArgs are the arguments of write_file.
type WriteArgs struct {
	Path    string    `json:"path" jsonschema:"the file, relative to the workspace"`
	Content string    `json:"content" limit:"len=4194304" jsonschema:"the whole new content, or what to append"`
	Mode    writeMode `json:"mode,omitempty" limit:"enum=create|overwrite|append,default=\"overwrite\"" jsonschema:"create fails when the file exists; append adds to its end; create and overwrite make missing directories"`
	IfMatch string    `json:"if_match,omitempty" limit:"len=100" jsonschema:"the hash that a read gave: nothing is written when the file has another one now"`
}

// About implements tools.Scoped.
func (a WriteArgs) About() tools.About { return about(writing, a.Path) }

func (a *WriteArgs) detach() []byte {
	b := []byte(a.Content)
	a.Content = ""
	return b
}

func (a *WriteArgs) attach(b []byte) error {
	a.Content = string(b)
	return nil
}

// WriteResult is the result of write_file.
type WriteResult struct {
	Path    string `json:"path" limit:"len=8192"`
	Bytes   int    `json:"bytes" jsonschema:"written"`
	Created bool   `json:"created"`
	Hash    string `json:"hash,omitempty" jsonschema:"of the whole file; for if_match"`
	InPlace bool   `json:"in_place,omitempty" jsonschema:"the file was written over, not replaced at once: it has other names, another owner, or its directory takes no new files"`
}

func (r WriteResult) Content() []tools.Content {
	what := "wrote"
	if r.Created {
		what = "created"
	}
	text := fmt.Sprintf("%s %s, %d bytes", what, tools.Quote(r.Path), r.Bytes)
	if r.InPlace {
		text += " (in place)"
	}
	return []tools.Content{{Text: text}}
}

func (t *tree) write(ctx context.Context, in WriteArgs) (WriteResult, error) {
	p, err := t.at(in.Path, writing)
	if err != nil {
		return WriteResult{}, err
	}
	if in.Mode == modeAppend {
		return t.append(p, in)
	}
	target, there, err := t.target(p)
	if err != nil {
		return WriteResult{}, err
	}
	if there && in.Mode == ModeCreate {
		return WriteResult{}, problem(tools.Conflict, p.rel, "exists already", "use mode overwrite, or edit_file")
	}
	if err := t.matches(target, there, in.IfMatch); err != nil {
		return WriteResult{}, err
	}
	if err := ctx.Err(); err != nil {
		return WriteResult{}, t.fail(p, err, writing)
	}
	content := []byte(in.Content)
	r := WriteResult{Path: p.rel, Bytes: len(content), Created: !there, Hash: hashOf(content)}
	if there {
		r.InPlace, err = t.replace(target, content)
	} else {
		r.InPlace, err = t.create(target, content, in.Mode != ModeCreate)
	}
	if err != nil {
		return WriteResult{}, t.fail(target, err, writing)
	}
	return r, nil
}

// target follows links to the file that a write will change. there reports whether it
// exists and is a regular file.
func (t *tree) target(p place) (target place, there bool, err error) {
	for range 40 { // the kernel's bound (path_resolution(7))
		st, err := t.lstat(p, writing)
		if isCode(err, tools.NotFound) {
			return p, false, nil
		}
		if err != nil {
			return p, false, err
		}
		if st.Mode&unix.S_IFMT != unix.S_IFLNK {
			if err := regular(p, st.Mode); err != nil {
				return p, true, t.fail(p, err, writing)
			}
			return p, true, nil
		}
		if p, err = t.follow(p); err != nil {
			return p, false, err
		}
	}
	return p, false, t.fail(p, unix.ELOOP, writing)
}

// follow returns the target of a link.
func (t *tree) follow(p place) (place, error) {
	to, err := os.Readlink(p.full)
	if err != nil {
		return p, t.fail(p, err, writing)
	}
	if !filepath.IsAbs(to) {
		dir, err := filepath.EvalSymlinks(filepath.Dir(p.full))
		if err != nil {
			return p, t.fail(p, err, writing)
		}
		to = dir + "/" + to
	}
	next, err := t.at(to, writing)
	if err != nil {
		return p, outside(p.asked, writing)
	}
	next.asked = p.asked
	return next, nil
}

// matches compares the present content with a hash. "" is no condition.
func (t *tree) matches(p place, there bool, hash string) error {
	if hash == "" {
		return nil
	}
	if !there {
		return problem(tools.Conflict, p.rel, "if_match: there is no such file", "")
	}
	b, err := t.whole(p, writing)
	if err != nil {
		return err
	}
	return sameHash(p, b, hash)
}

func sameHash(p place, content []byte, want string) error {
	if now := hashOf(content); want != "" && now != want {
		return problem(tools.Conflict, p.rel, "if_match: the content has changed, its hash is "+now, "read it again")
	}
	return nil
}

// append appends to a file, with one write(2) unless the kernel writes less.
func (t *tree) append(p place, in WriteArgs) (WriteResult, error) {
	r := WriteResult{Path: p.rel, Bytes: len(in.Content), InPlace: true}
	if in.IfMatch != "" {
		b, err := t.whole(p, writing)
		if err == nil {
			err = sameHash(p, b, in.IfMatch)
		}
		if err != nil {
			return WriteResult{}, err
		}
	}
	f, _, err := t.open(p, os.O_RDWR|os.O_APPEND, writing)
	if isCode(err, tools.Denied) { // the file may be writable though not readable
		f, _, err = t.open(p, os.O_WRONLY|os.O_APPEND, writing)
	}
	if isCode(err, tools.NotFound) {
		r.Created = true
		t.touch(p.full)
		f, err = newFile(p.full, os.O_RDWR|os.O_APPEND, 0o666)
	}
	if err != nil {
		return WriteResult{}, t.fail(p, err, writing)
	}
	_, err = f.WriteString(in.Content)
	if err == nil {
		err = t.sync(f)
	}
	if info, serr := f.Stat(); err == nil && serr == nil && info.Size() <= maxWhole {
		if _, err := f.Seek(0, 0); err == nil {
			if b, ok, err := slurp(f, info.Size()); ok && err == nil {
				r.Hash = hashOf(b)
			}
		}
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return WriteResult{}, t.fail(p, err, writing)
	}
	return r, nil
}

// isCode reports whether err has a code.
func isCode(err error, code tools.Code) bool {
	e, ok := errors.AsType[*tools.Error](err)
	return ok && e.Code == code
}

// parents creates the directories above a place.
func (t *tree) parents(p place) (place, error) {
	dir := filepath.Dir(p.full)
	if !p.held && (len(dir) <= len(t.root) || !strings.HasPrefix(dir, t.root)) {
		return p, nil
	}
	if err := t.makeDirs(dir); err != nil || !p.held {
		return p, err
	}
	return t.holdAgain(p)
}
