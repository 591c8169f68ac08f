package agents

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/scope/beneath"
)

// Path returns the path of the directory that OpenRoot opens.
func (d *Definition) Path(base string) string {
	return cmp.Or(d.Dir, filepath.Join(base, cmp.Or(d.Branch, d.Name).Dir()))
}

// OpenRoot opens the directory that the agent's view is of: Dir, or the agent's own
// below the base directory. The error wraps ENOENT if it does not exist.
func (d *Definition) OpenRoot(base string) (*beneath.Root, error) {
	if d.Dir == "" {
		return beneath.OpenRoot(base, cmp.Or(d.Branch, d.Name).Dir())
	}
	root, err := beneath.OpenDir(d.Dir)
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil, fmt.Errorf("dir: %q: %w: make it, or correct the definition", d.Dir, unix.ENOENT)
	case errors.Is(err, unix.ENOTDIR):
		return nil, fmt.Errorf("dir: %q is no directory: correct the definition", d.Dir)
	case errors.Is(err, unix.ELOOP):
		remedy := "write the path without links"
		if real, err := filepath.EvalSymlinks(d.Dir); err == nil {
			remedy = "write " + real
		}
		return nil, fmt.Errorf("dir: %q leads through a symbolic link: %s", d.Dir, remedy)
	case err != nil:
		return nil, fmt.Errorf("dir: %w", err)
	}
	return root, nil
}
