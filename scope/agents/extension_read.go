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
	"github.com/scopefs/scopefs/internal/folder"
)

// readExtensions reads the extensions of a base directory and the definitions
// of their agents, in the order of their files. For an extension that does not
// load it uses the one in last.
func (s *Snapshot) readExtensions(base string, last *Snapshot) (agents []*parsed, errs []error) {
	fail := func(err error) ([]*parsed, []error) {
		s.extensions, s.extendDirs = last.extensions, nil
		return nil, []error{&fields.FileError{File: extensionsDir, Err: err}}
	}
	s.extensions, s.extendDirs = map[string]*extension{}, map[string]folder.Dated{extensionsDir: {}}
	dir, err := folder.Open(base, extensionsDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return fail(err)
	}
	defer dir.Close()
	at, err := folder.StampOf(int(dir.Fd()), "")
	if err != nil {
		return fail(err)
	}
	s.extendDirs[extensionsDir] = at
	names, err := dir.Names("")
	if err != nil {
		return fail(err)
	}
	for _, name := range names {
		read := s.readExtensionDir
		if _, ok := manifestName(name); ok {
			read = s.readExtension
		}
		more, err := read(base, dir, name, last)
		agents, errs = append(agents, more...), append(errs, err...)
	}
	return agents, errs
}

// readExtensionDir reads the extensions in a directory of extensions.d.
func (s *Snapshot) readExtensionDir(base string, parent folder.Folder, name string, last *Snapshot) (agents []*parsed, errs []error) {
	dir, err := parent.Sub(name)
	if errors.Is(err, unix.ENOTDIR) || errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil {
		defer dir.Close()
		s.extendDirs[dir.Rel], err = folder.StampOf(int(dir.Fd()), "")
	}
	var names []string
	if err == nil {
		names, err = dir.Names("")
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
func (s *Snapshot) readExtension(base string, dir folder.Folder, name string, last *Snapshot) (agents []*parsed, errs []error) {
	file := path.Join(dir.Rel, name)
	old := last.extensions[file]
	e, err := parsedExtension(base, dir, name, old)
	if err == nil {
		at := s.extendDirs[dir.Rel]
		e.place = fmt.Sprintf("%d:%d", at.Dev, at.Ino)
	}
	if err != nil {
		errs = fields.EachError(err)
		e = old
		at := s.extendDirs[dir.Rel]
		at.Taken = time.Time{} // the directory's stamp is no evidence for this file
		s.extendDirs[dir.Rel] = at
	}
	if e == nil {
		return nil, errs
	}
	s.extensions[file] = e
	for _, b := range e.brings {
		agent := readBrought(dir, b, last.files[b.id])
		if agent.def != nil {
			agent.def.Extension = e.name
		}
		agents = append(agents, agent)
	}
	return agents, errs
}

func parsedExtension(base string, dir folder.Folder, name string, old *extension) (*extension, error) {
	var was *folder.Text
	if old != nil {
		was = old.text
	}
	file := path.Join(dir.Rel, name)
	now, err := dir.Read(name, was)
	if err != nil {
		return nil, fields.ErrorAt(file, 0, "", err)
	}
	read := func(name string) (*folder.Text, error) {
		var was *folder.Text
		if old != nil {
			was = old.beside[name]
		}
		return dir.Read(name, was)
	}
	if now.Is(was) && old.sameBeside(read) {
		e := *old
		e.text = now
		return &e, nil
	}
	e, err := parseExtension(base, strings.TrimPrefix(file, extensionsDir+"/"), now.Data, read)
	if err == nil {
		e.text = now
	}
	return e, err
}

// sameBeside reports whether the other files that the extension was read from are as they were.
func (e *extension) sameBeside(read func(string) (*folder.Text, error)) bool {
	for name, was := range e.beside {
		now, err := read(name)
		if missing := errors.Is(err, fs.ErrNotExist); missing != (was == nil) || !missing && (err != nil || !now.Is(was)) {
			return false
		}
	}
	return true
}

// readBrought reads the definition of an agent of an extension. It follows no
// symbolic link in the path.
func readBrought(dir folder.Folder, b broughtAgent, last *loaded) *parsed {
	file := path.Join(dir.Rel, b.path)
	parts := strings.Split(b.path, "/")
	for _, part := range parts[:len(parts)-1] {
		sub, err := dir.Sub(part)
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
		if !at.StillIn(base, rel) {
			return false
		}
	}
	for file, e := range s.extensions {
		now, err := folder.StampAt(unix.AT_FDCWD, filepath.Join(base, file), unix.AT_SYMLINK_NOFOLLOW)
		if err != nil || !e.text.Still(now) {
			return false
		}
		for name, was := range e.beside { // the directory's stamp is that of names
			now, err := folder.StampAt(unix.AT_FDCWD, filepath.Join(base, path.Dir(file), name), unix.AT_SYMLINK_NOFOLLOW)
			if was != nil && (err != nil || !was.Still(now)) {
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
