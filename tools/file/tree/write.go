package tree

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/tools/file/message"
)

func (t *tree) write(ctx context.Context, in message.WriteArgs) (message.WriteResult, error) {
	p, err := t.at(in.Path, message.Writing)
	if err != nil {
		return message.WriteResult{}, err
	}
	if in.Mode == message.ModeAppend {
		return t.append(p, in)
	}
	target, there, err := t.target(p)
	if err != nil {
		return message.WriteResult{}, err
	}
	if there && in.Mode == message.ModeCreate {
		return message.WriteResult{}, message.Problem(message.Conflict, p.rel, "exists already", "use mode overwrite, or edit_file")
	}
	if err := t.matches(target, there, in.IfMatch); err != nil {
		return message.WriteResult{}, err
	}
	if err := ctx.Err(); err != nil {
		return message.WriteResult{}, t.fail(p, err, message.Writing)
	}
	content := []byte(in.Content)
	if there && t.marked(target) && !strings.HasPrefix(in.Content, bom) {
		content = append([]byte(bom), content...) // which read_file does not show
	}
	r := message.WriteResult{Path: p.rel, Bytes: len(content), Created: !there, Hash: hashOf(content)}
	if there {
		r.InPlace, err = t.replace(target, content)
	} else {
		r.InPlace, err = t.create(target, content, in.Mode != message.ModeCreate)
	}
	if err != nil {
		return message.WriteResult{}, t.fail(target, err, message.Writing)
	}
	return r, nil
}

// marked reports whether a file begins with a byte order mark.
func (t *tree) marked(p place) bool {
	f, _, err := t.open(p, os.O_RDONLY, message.Reading)
	if err != nil {
		return false
	}
	defer f.Close()
	var first [len(bom)]byte
	n, _ := f.Read(first[:])
	return string(first[:n]) == bom
}

// target follows links to the file that a write will change. there reports whether it
// exists and is a regular file.
func (t *tree) target(p place) (target place, there bool, err error) {
	for range 40 { // the kernel's bound (path_resolution(7))
		st, err := t.lstat(p, message.Writing)
		if isCode(err, message.NotFound) {
			return p, false, nil
		}
		if err != nil {
			return p, false, err
		}
		if st.Mode&unix.S_IFMT != unix.S_IFLNK {
			if err := regular(p, st.Mode); err != nil {
				return p, true, t.fail(p, err, message.Writing)
			}
			return p, true, nil
		}
		if p, err = t.follow(p); err != nil {
			return p, false, err
		}
	}
	return p, false, t.fail(p, unix.ELOOP, message.Writing)
}

// follow returns the target of a link.
func (t *tree) follow(p place) (place, error) {
	to, err := os.Readlink(p.full)
	if err != nil {
		return p, t.fail(p, err, message.Writing)
	}
	if !filepath.IsAbs(to) {
		dir, err := filepath.EvalSymlinks(filepath.Dir(p.full))
		if err != nil {
			return p, t.fail(p, err, message.Writing)
		}
		to = dir + "/" + to
	}
	next, err := t.at(to, message.Writing)
	if err != nil {
		return p, message.Outside(p.asked, message.Writing)
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
		return message.Problem(message.Conflict, p.rel, "if_match: there is no such file", "")
	}
	b, err := t.whole(p, message.Writing)
	if err != nil {
		return err
	}
	return sameHash(p, b, hash)
}

func sameHash(p place, content []byte, want string) error {
	if now := hashOf(content); want != "" && now != want {
		return message.Problem(message.Conflict, p.rel, "if_match: the content has changed, its hash is "+now, "read it again")
	}
	return nil
}

// append appends to a file, with one write(2) unless the kernel writes less.
func (t *tree) append(p place, in message.WriteArgs) (message.WriteResult, error) {
	r := message.WriteResult{Path: p.rel, Bytes: len(in.Content), InPlace: true}
	if in.IfMatch != "" {
		b, err := t.whole(p, message.Writing)
		if err == nil {
			err = sameHash(p, b, in.IfMatch)
		}
		if err != nil {
			return message.WriteResult{}, err
		}
	}
	f, _, err := t.open(p, os.O_RDWR|os.O_APPEND, message.Writing)
	if isCode(err, message.Denied) { // the file may be writable though not readable
		f, _, err = t.open(p, os.O_WRONLY|os.O_APPEND, message.Writing)
	}
	if isCode(err, message.NotFound) {
		r.Created = true
		t.touch(p.full)
		f, err = newFile(p.full, os.O_RDWR|os.O_APPEND, 0o666)
	}
	if err != nil {
		return message.WriteResult{}, t.fail(p, err, message.Writing)
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
		return message.WriteResult{}, t.fail(p, err, message.Writing)
	}
	return r, nil
}

// isCode reports whether err has a code.
func isCode(err error, code message.Code) bool {
	e, ok := errors.AsType[*message.Error](err)
	return ok && e.Code == code
}

// parents creates the directories above a place.
func (t *tree) parents(p place) (place, error) {
	dir := filepath.Dir(p.full)
	if !p.held && (p.top()) {
		return p, nil
	}
	if err := t.makeDirs(dir, p.dir); err != nil || !p.held {
		return p, err
	}
	return t.holdAgain(p)
}
