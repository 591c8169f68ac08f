package tree

import (
	"context"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/tools/file/message"
)

// stat describes the name itself, or with follow the target of a link.
func (t *tree) stat(_ context.Context, in message.StatArgs) (message.StatResult, error) {
	p, err := t.at(in.Path, message.Reading)
	if err != nil {
		return message.StatResult{}, err
	}
	flags := unix.AT_SYMLINK_NOFOLLOW
	if in.Follow {
		flags = 0
	}
	st, err := statAt(unix.AT_FDCWD, p.full, flags)
	if err != nil {
		return message.StatResult{}, t.fail(p, err, message.Reading)
	}
	e := newEntry(p.rel, &st)
	r := message.StatResult{Path: e.Path, Type: e.Type, Size: e.Size, Modified: e.Modified, Mode: fmt.Sprintf("%04o", st.Mode&0o7777)}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		r.Target, _ = os.Readlink(p.full) // EACCES: outside
	case unix.S_IFREG:
		if in.Hash && st.Size <= maxWhole {
			b, err := t.whole(p, message.Reading)
			if err != nil {
				return message.StatResult{}, err
			}
			r.Hash = hashOf(b)
		}
	}
	return r, nil
}
