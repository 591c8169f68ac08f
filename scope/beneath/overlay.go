package beneath

import (
	"errors"
	"fmt"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// overlayDev is the device of the overlay that this process has a Root of; 0: none.
var overlayDev atomic.Uint64

// Overlay describes a mount that shows a directory with changes, which another
// directory gets: Documentation/filesystems/overlayfs.rst.
type Overlay struct {
	Lower       *Root  // the directory, which the mount does not change
	Upper, Work *Root  // on one file system
	Source      string // what mount(8) shows as its source
	User        bool   // CAP_SYS_ADMIN is that of a user namespace: directories of Lower cannot be renamed (EXDEV)
}

// Mount mounts the overlay on a directory, which is empty, and returns the root of the mount. Upper must be in no other
// mounted overlay.
func (o Overlay) Mount(on *Root) (*Root, error) {
	fs, err := unix.Fsopen("overlay", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("overlay: %w", err)
	}
	defer unix.Close(fs)
	at := func(r *Root) string { return fmt.Sprintf("/proc/self/fd/%d", r.fd) }
	options := [][2]string{
		{"source", o.Source}, {"lowerdir", at(o.Lower)}, {"upperdir", at(o.Upper)}, {"workdir", at(o.Work)},
		{"index", "off"}, {"metacopy", "off"},
	}
	if !o.User {
		options = append(options, [2]string{"redirect_dir", "on"})
	}
	for _, option := range options {
		if err := unix.FsconfigSetString(fs, option[0], option[1]); err != nil {
			return nil, fmt.Errorf("overlay: %s: %w", option[0], err)
		}
	}
	if o.User {
		if err := unix.FsconfigSetFlag(fs, "userxattr"); err != nil {
			return nil, fmt.Errorf("overlay: userxattr: %w", err)
		}
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return nil, fmt.Errorf("overlay: %w", errors.Join(err, said(fs)))
	}
	fd, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOSUID)
	if err != nil {
		return nil, fmt.Errorf("overlay: %w", err)
	}
	if err := unix.MoveMount(fd, "", on.fd, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("overlay: %w", err)
	}
	return &Root{fd: fd}, nil
}

// said returns what the kernel reports about a file system context: fsopen(2).
func said(fs int) error {
	text := make([]byte, 1024)
	n, err := unix.Read(fs, text)
	if err != nil || n <= 2 {
		return nil
	}
	return errors.New(string(text[2:n])) // after "e "
}
