package file

import (
	"context"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/tools"
)

// StatArgs are the arguments of stat.
type StatArgs struct {
	Path   string `json:"path" jsonschema:"relative to the workspace"`
	Hash   bool   `json:"hash,omitempty" jsonschema:"also hash the content of a file of at most 8 MiB"`
	Follow bool   `json:"follow,omitempty" jsonschema:"of a link, tell of what it leads to"`
}

// About implements tools.Scoped.
func (a StatArgs) About() tools.About { return about(reading, a.Path) }

// StatResult is the result of stat.
type StatResult struct {
	Path     string `json:"path" limit:"len=8192"`
	Type     string `json:"type" limit:"enum=file|directory|link|fifo|socket|device"`
	Size     int64  `json:"size" jsonschema:"in bytes"`
	Mode     string `json:"mode" jsonschema:"permissions, octal"`
	Modified string `json:"modified"`
	Target   string `json:"target,omitempty" limit:"len=8192" jsonschema:"what a link that leads nowhere outside says"`
	Hash     string `json:"hash,omitempty" jsonschema:"of the content; for if_match"`
}

// stat describes the name itself, or with follow the target of a link.
func (t *tree) stat(_ context.Context, in StatArgs) (StatResult, error) {
	p, err := t.at(in.Path, reading)
	if err != nil {
		return StatResult{}, err
	}
	flags := unix.AT_SYMLINK_NOFOLLOW
	if in.Follow {
		flags = 0
	}
	st, err := statAt(unix.AT_FDCWD, p.full, flags)
	if err != nil {
		return StatResult{}, t.fail(p, err, reading)
	}
	e := newEntry(p.rel, &st)
	r := StatResult{Path: e.Path, Type: e.Type, Size: e.Size, Modified: e.Modified, Mode: fmt.Sprintf("%04o", st.Mode&0o7777)}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		r.Target, _ = os.Readlink(p.full) // EACCES: outside
	case unix.S_IFREG:
		if in.Hash && st.Size <= maxWhole {
			b, err := t.whole(p, reading)
			if err != nil {
				return StatResult{}, err
			}
			r.Hash = hashOf(b)
		}
	}
	return r, nil
}
