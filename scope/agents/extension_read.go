package agents

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/fields"
)

// readExtensions reads the extensions of a base directory and the definitions
// of their agents, in the order of their files. For an extension that does not
// load it uses the one in last.
func (s *Snapshot) readExtensions(base string, last *Snapshot) (agents []*parsed, errs []error) {
	fail := func(err error) ([]*parsed, []error) {
		s.extensions, s.extendDirs = last.extensions, nil
		return nil, []error{&fields.FileError{File: extensionsDir, Err: err}}
	}
	s.extensions, s.extendDirs = map[string]*extension{}, map[string]dated{extensionsDir: {}}
	dir, err := openFolder(base, extensionsDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return fail(err)
	}
	defer dir.Close()
	at, err := stampOf(int(dir.Fd()), "")
	if err != nil {
		return fail(err)
	}
	s.extendDirs[extensionsDir] = at
	names, err := dir.names("")
	if err != nil {
		return fail(err)
	}
	for _, name := range names {
		if _, ok := manifestName(name); ok {
			more, err := s.readExtension(base, dir, name, last)
			agents, errs = append(agents, more...), append(errs, err...)
			continue
		}
		more, err := s.readExtensionDir(base, dir, name, last)
		agents, errs = append(agents, more...), append(errs, err...)
	}
	return agents, errs
}

// readExtensionDir reads the extensions in a directory of extensions.d.
func (s *Snapshot) readExtensionDir(base string, parent folder, name string, last *Snapshot) (agents []*parsed, errs []error) {
	dir, err := parent.sub(name)
	if errors.Is(err, unix.ENOTDIR) || errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil {
		defer dir.Close()
		s.extendDirs[dir.rel], err = stampOf(int(dir.Fd()), "")
	}
	var names []string
	if err == nil {
		names, err = dir.names("")
	}
	if err != nil {
		return nil, []error{&fields.FileError{File: path.Join(extensionsDir, name), Err: fmt.Errorf("%w: make it a directory the daemon may read", err)}}
	}
	for _, file := range names {
		if _, ok := manifestName(name + "/" + file); ok {
			more, err := s.readExtension(base, dir, file, last)
			agents, errs = append(agents, more...), append(errs, err...)
		}
	}
	return agents, errs
}

// readExtension reads an extension and the definitions of its agents.
func (s *Snapshot) readExtension(base string, dir folder, name string, last *Snapshot) (agents []*parsed, errs []error) {
	file := path.Join(dir.rel, name)
	old := last.extensions[file]
	e, err := parsedExtension(base, dir, name, old)
	if err == nil {
		at := s.extendDirs[dir.rel]
		e.place = fmt.Sprintf("%d:%d", at.dev, at.ino)
	}
	if err != nil {
		errs = fields.EachError(err)
		e = old
		at := s.extendDirs[dir.rel]
		at.taken = time.Time{} // the directory's stamp is no evidence for this file
		s.extendDirs[dir.rel] = at
	}
	if e == nil {
		return nil, errs
	}
	s.extensions[file] = e
	for _, b := range e.brings {
		agents = append(agents, readBrought(dir, b, last.files[b.id]))
	}
	return agents, errs
}

func parsedExtension(base string, dir folder, name string, old *extension) (*extension, error) {
	var was *text
	if old != nil {
		was = old.text
	}
	file := path.Join(dir.rel, name)
	now, err := dir.read(name, was)
	if err != nil {
		return nil, fields.ErrorAt(file, 0, "", err)
	}
	read := func(name string) (*text, error) {
		var was *text
		if old != nil {
			was = old.beside[name]
		}
		return dir.read(name, was)
	}
	if now.is(was) && old.sameBeside(read) {
		e := *old
		e.text = now
		return &e, nil
	}
	e, err := parseExtension(base, strings.TrimPrefix(file, extensionsDir+"/"), now.data, read)
	if err == nil {
		e.text = now
	}
	return e, err
}

// sameBeside reports whether the other files that the extension was read from are as they were.
func (e *extension) sameBeside(read func(string) (*text, error)) bool {
	for name, was := range e.beside {
		now, err := read(name)
		if missing := errors.Is(err, fs.ErrNotExist); missing != (was == nil) || !missing && (err != nil || !now.is(was)) {
			return false
		}
	}
	return true
}

// readBrought reads the definition of an agent of an extension. It follows no
// symbolic link in the path.
func readBrought(dir folder, b broughtAgent, last *loaded) *parsed {
	file := path.Join(dir.rel, b.path)
	parts := strings.Split(b.path, "/")
	for _, part := range parts[:len(parts)-1] {
		sub, err := dir.sub(part)
		if err != nil {
			return &parsed{id: b.id, file: file, err: fields.ErrorAt(file, 0, b.id, fmt.Errorf("open: %w: correct path in the extension", err))}
		}
		defer sub.Close()
		dir = sub
	}
	return readAgent(dir, parts[len(parts)-1], b.id, last)
}

// currentExtensions reports whether readExtensions would certainly find the
// same manifests.
func (s *Snapshot) currentExtensions(base string) bool {
	if s.extendDirs == nil {
		return false
	}
	for rel, at := range s.extendDirs {
		if !at.stillIn(base, rel) {
			return false
		}
	}
	for file, e := range s.extensions {
		now, err := stampAt(unix.AT_FDCWD, filepath.Join(base, file), unix.AT_SYMLINK_NOFOLLOW)
		if err != nil || !e.text.still(now) {
			return false
		}
		for name, was := range e.beside { // the directory's stamp is that of names
			now, err := stampAt(unix.AT_FDCWD, filepath.Join(base, path.Dir(file), name), unix.AT_SYMLINK_NOFOLLOW)
			if was != nil && (err != nil || !was.still(now)) {
				return false
			}
		}
	}
	return true
}

// Directories returns the directories below extensions.d that have extensions
// and definitions, relative to the base directory. The daemon watches them.
func (s *Snapshot) Directories() []string {
	dirs := map[string]bool{}
	for rel := range s.extendDirs {
		dirs[rel] = true
	}
	for _, f := range s.files {
		dirs[path.Dir(f.file)] = true
	}
	delete(dirs, extensionsDir)
	delete(dirs, agentsDir)
	return slices.Sorted(maps.Keys(dirs))
}
