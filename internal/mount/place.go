package mount

import (
	"fmt"
	"os"
	"path"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// Place is where a file is in its file system, whatever mounts and links lead there.
type Place struct {
	Device string // the file system, MAJOR:MINOR of its mounts
	Path   string // from the root of the file system
}

// PlaceOf returns the place of an open file. all are the mounts of this process. It
// fails for a file that no mount shows.
func PlaceOf(all []*mountinfo.Info, fd int) (Place, error) {
	var st unix.Statx_t
	// The kernel fills in the mount for every mask. Any other than 0 asks the file system,
	// and that of a user's FUSE mount refuses root.
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, 0, &st); err != nil {
		return Place{}, fmt.Errorf("statx: %w", err)
	}
	name, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil {
		return Place{}, err
	}
	for _, m := range all {
		if uint64(m.ID) != st.Mnt_id {
			continue
		}
		rest, ok := strings.CutPrefix(name, strings.TrimSuffix(m.Mountpoint, "/"))
		if !ok || rest != "" && rest[0] != '/' {
			break
		}
		return Place{fmt.Sprintf("%d:%d", m.Major, m.Minor), path.Join(m.Root, rest)}, nil
	}
	return Place{}, fmt.Errorf("%q is in no mount of this process", name)
}

// Holds reports whether other is the same place or below it.
func (p Place) Holds(other Place) bool {
	return p.Device == other.Device && strings.HasPrefix(other.Path+"/", strings.TrimSuffix(p.Path, "/")+"/")
}
