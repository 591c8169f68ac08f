package account

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// nobody is the user of a program without a directory, in a daemon of root.
const nobody = 65534

// OfProgram returns the user of a store's program, and opens the program's directory, if it has one. The caller closes home. In a
// daemon of root the program runs as the owner of its directory.
func OfProgram(dir string, root bool) (owner User, home *os.File, err error) {
	owner = User{UID: nobody, GID: nobody}
	if !root {
		owner = User{UID: uint32(os.Geteuid()), GID: uint32(os.Getegid())}
	}
	if dir == "" {
		return owner, nil, nil
	}
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return owner, nil, fmt.Errorf("dir %q: %w", dir, err)
	}
	home = os.NewFile(uintptr(fd), dir)
	if !root {
		return owner, home, nil
	}
	var st unix.Stat_t
	if err = unix.Fstat(fd, &st); err != nil {
		err = fmt.Errorf("dir %q: %w", dir, err)
	} else if owner = (User{UID: st.Uid, GID: st.Gid}); owner.UID == 0 {
		err = fmt.Errorf("dir %q is root's, and the program runs as the owner: chown it to a user of its own", dir)
	} else {
		err = Chosen(dir, owner, "put it where root or that user alone can")
	}
	if err != nil {
		home.Close()
		return owner, nil, err
	}
	return owner, home, nil
}
