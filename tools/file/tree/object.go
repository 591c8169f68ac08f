package tree

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/interrupted"
	"github.com/scopefs/scopefs/scope/beneath"
	"github.com/scopefs/scopefs/tools/file/message"
)

// object returns the object at a place: after every link, or at the name itself. A name
// that does not exist keeps the agent's spelling. A link that leads outside is an error,
// as for the tool itself, so that the call is not put to the operator.
func (t *tree) object(p place, follow bool, why message.Intent) (message.Object, error) {
	o, err := t.objectAt(p, follow)
	switch {
	case isCode(err, message.OutsideScope):
		return o, message.Outside(p.asked, why)
	case isCode(err, message.NotFound), isCode(err, message.Invalid):
		return message.Object{Path: p.rel}, nil
	}
	return o, err
}

// objectAt is object, but distinguishes a place outside from one that does not exist.
func (t *tree) objectAt(p place, follow bool) (message.Object, error) {
	for links := 0; follow; links++ {
		st, err := t.lstat(p, message.Writing)
		if isCode(err, message.NotFound) || err == nil && st.Mode&unix.S_IFMT != unix.S_IFLNK {
			break
		}
		if err == nil && links == 40 { // path_resolution(7)
			err = t.fail(p, unix.ELOOP, message.Writing)
		}
		if err == nil {
			p, err = t.follow(p)
		}
		if err != nil {
			return message.Object{}, err
		}
	}
	if p.top() {
		return message.Object{Path: p.rel}, nil
	}
	dir, rest := filepath.Dir(p.full), filepath.Base(p.full)
	fd, err := openPath(dir)
	for errors.Is(err, unix.ENOENT) && len(dir) > len(p.dir) { // the call will create it
		dir, rest = filepath.Dir(dir), filepath.Base(dir)+"/"+rest
		fd, err = openPath(dir)
	}
	if err != nil {
		return message.Object{}, t.fail(p, err, message.Writing)
	}
	defer unix.Close(fd)
	at, err := os.Readlink(fmt.Sprint(fdDir, fd))
	if err != nil {
		return message.Object{}, t.fail(p, err, message.Writing)
	}
	rel, ok := t.dirs.Resolve(at)
	if !ok {
		return message.Object{}, message.Outside(p.asked, message.Writing)
	}
	id, err := identity(fd, rest)
	if err != nil {
		return message.Object{}, t.fail(p, err, message.Writing)
	}
	return message.Object{Path: path.Join(rel, rest), ID: id}, nil
}

// fdDir has a magic link to the object of each open descriptor; proc(5).
const fdDir = "/proc/self/fd/"

// openPath opens a directory with O_PATH.
func openPath(dir string) (int, error) { return openFD(dir, unix.O_PATH|unix.O_DIRECTORY, 0) }

// identity returns the inode number and birth time of a name, or "" if it does not exist.
func identity(dir int, name string) (string, error) {
	var x unix.Statx_t
	err := interrupted.Retry(func() error {
		return unix.Statx(dir, name, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_INO|unix.STATX_BTIME, &x)
	})
	if errors.Is(err, unix.ENOENT) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("inode %d of %d.%09d", x.Ino, x.Btime.Sec, x.Btime.Nsec), nil
}

// hold finds an approved object again and keeps its directory open: the place is a name in
// that directory, whatever happens to the path. Another object there is a conflict.
func (t *tree) hold(asked, rel string, o message.Object) (place, error) {
	if p, ok := t.held[rel]; ok {
		p.asked = asked
		return p, nil
	}
	full, dir := t.dirs.Full(o.Path)
	p := place{asked: asked, rel: rel, full: dir, dir: dir, held: true}
	if full == dir {
		return p, nil
	}
	changed := message.Problem(message.Conflict, rel, "is not what was approved any more", "call again")
	top, err := openPath(p.dir)
	if err != nil {
		return place{}, t.fail(p, err, message.Reading)
	}
	root := beneath.NewRoot(top)
	defer root.Close()
	inner, ok := message.Within(p.dir, o.Path)
	if !ok {
		return place{}, changed
	}
	dir, rest := path.Dir(inner), path.Base(inner)
	fd, err := openBeneath(root, dir)
	for errors.Is(err, unix.ENOENT) && dir != "." && o.ID == "" {
		dir, rest = path.Dir(dir), path.Base(dir)+"/"+rest
		fd, err = openBeneath(root, dir)
	}
	if err != nil {
		return place{}, changed
	}
	t.holding = append(t.holding, fd)
	if id, err := identity(fd, rest); err != nil || id != o.ID {
		return place{}, changed
	}
	p.full = fmt.Sprint(fdDir, fd, "/", rest)
	if t.held == nil {
		t.held = map[string]place{}
	}
	t.held[rel] = p
	return p, nil
}

// holdAgain holds a place whose directories were created meanwhile.
func (t *tree) holdAgain(p place) (place, error) {
	o, ok := t.approved[p.rel]
	if !ok {
		return p, nil
	}
	delete(t.held, p.rel)
	return t.hold(p.asked, p.rel, o)
}

// letGo closes the directories held for a call.
func (t *tree) letGo() {
	for _, fd := range t.holding {
		unix.Close(fd)
	}
	t.holding, t.held = nil, nil
}

// openBeneath opens a directory by a path that has no link in it.
func openBeneath(root *beneath.Root, dir string) (int, error) {
	d, err := root.Dir(dir)
	return d.Self().FD(), err
}
