// Package confine takes from this process, for good, what it does not need: files, the network, capabilities and system
// calls.
package confine

import (
	"fmt"
	"math"
	"slices"

	"github.com/landlock-lsm/go-landlock/landlock"
	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/privileges"
	"github.com/scopefs/scopefs/internal/seccomp"
)

// Needs are what a process keeps.
type Needs struct {
	// Trees are detached mounts, open_tree(2), by their path in the root of the process: files, and
	// directories where Dirs has them.
	Trees    map[string]int
	Dirs     []string
	ReadOnly []string // of Trees
	Hidden   []string // files below Trees, which exist, that an empty file covers

	Memory    int64 // bytes of data, beside the pages of the program
	FileBytes int64 // of one file; 0: any number
	Files     uint64
	Calls     []uint32 // system calls beside those of the Go runtime and of existing files
}

// Confine leaves this process what it needs. It returns what confines; after an error the process must
// end. It works in a static binary only: in one with C libraries Go cannot change every thread.
func Confine(n Needs) ([]string, error) {
	if err := n.enter(); err != nil {
		return nil, err
	}
	if err := privileges.Drop(0); err != nil {
		return nil, err
	}
	if err := n.limit(); err != nil {
		return nil, err
	}
	abi, err := n.landlock()
	if err != nil {
		return nil, err
	}
	if err := filterCalls(seccomp.Calls(seccomp.Allow, n.Calls...)); err != nil {
		return nil, err
	}
	return []string{"capabilities: none", abi, "seccomp", "no_new_privs", "no network"}, nil
}

// InPlace leaves this process its open descriptors, the unix sockets in one directory and files of 4 MiB in another. Its file
// system stays the host's: Landlock closes it. A new socket is a unix socket. After an error the process must end. As with
// Confine, the binary must be static.
func InPlace(sockets, files string, memory int64) error {
	if err := unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return err
	}
	err := restrict(Needs{Memory: memory, FileBytes: 4 << 20}, func(abi int) []landlock.Rule {
		rules := []landlock.Rule{landlock.RWDirs(files)}
		if abi >= 9 { // which restricts connections to unix sockets
			rules = append(rules, landlock.PathAccess(landlock.AccessFSSet(ll.AccessFSResolveUnix), sockets))
		}
		return rules
	})
	if err != nil {
		return err
	}
	return filterCalls(append(seccomp.Calls(seccomp.Allow, slices.Concat(socketCalls, nameCalls)...),
		seccomp.Rule{Call: unix.SYS_SOCKET, Answer: seccomp.Allow, Uses: seccomp.One(0, unix.AF_UNIX)}))
}

// Descriptors leaves this process its open descriptors, those that it receives, and what calls allow for them. It opens no
// file, looks at none by a name and makes no socket. memory is in bytes. After an error the process must end. As with Confine, the binary must be static.
func Descriptors(memory int64, calls []seccomp.Rule) error {
	if err := restrict(Needs{Memory: memory}, func(int) []landlock.Rule { return nil }); err != nil {
		return err
	}
	return seccomp.Only(calls)
}

// restrict confines this process where it is, but for its system calls: to the files of the rules, which depend on Landlock's ABI.
func restrict(n Needs, rules func(abi int) []landlock.Rule) error {
	if err := privileges.Drop(0); err != nil {
		return err
	}
	open := unix.Rlimit{}
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &open); err != nil {
		return fmt.Errorf("limits: %w", err)
	}
	n.Files = open.Max
	if err := n.limit(); err != nil {
		return err
	}
	config, abi, err := privileges.Landlocked()
	if err != nil {
		return err
	}
	if err := config.Restrict(rules(abi)...); err != nil {
		return fmt.Errorf("landlock: %w", err)
	}
	return privileges.NoNewPrivs()
}

// enter makes an empty read-only file system the root of this mount namespace, with the trees as mounts
// in it. pivot_root(2): "." may stand for both.
func (n Needs) enter() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	root, err := emptyRoot()
	if err != nil {
		return fmt.Errorf("make a root: %w", err)
	}
	if err := unix.MoveMount(root, "", unix.AT_FDCWD, "/", unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("mount the root: %w", err)
	}
	for path, fd := range n.Trees {
		if err := place(root, path, fd, slices.Contains(n.Dirs, path)); err != nil {
			return err
		}
	}
	if err := n.narrow(root); err != nil {
		return err
	}
	if err := unix.MountSetattr(root, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}); err != nil {
		return fmt.Errorf("make the root read-only: %w", err)
	}
	if err := unix.Fchdir(root); err != nil {
		return err
	}
	unix.Close(root)
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("enter the root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("leave the host's root: %w", err)
	}
	return unix.Chdir("/")
}

// narrow makes trees read-only, and covers files in them.
func (n Needs) narrow(root int) error {
	for _, path := range n.ReadOnly {
		if err := unix.MountSetattr(root, path[1:], 0, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}); err != nil {
			return fmt.Errorf("make %s read-only: %w", path, err)
		}
	}
	for _, path := range n.Hidden {
		at, err := unix.Openat(root, "nothing", unix.O_CREAT|unix.O_RDONLY|unix.O_CLOEXEC, 0o400)
		if err != nil {
			return fmt.Errorf("make an empty file: %w", err)
		}
		unix.Close(at)
		cover, err := unix.OpenTree(root, "nothing", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_SYMLINK_NOFOLLOW)
		if err != nil {
			return fmt.Errorf("cover %s: %w", path, err)
		}
		err = unix.MoveMount(cover, "", root, path[1:], unix.MOVE_MOUNT_F_EMPTY_PATH)
		unix.Close(cover)
		if err != nil {
			return fmt.Errorf("cover %s: %w", path, err)
		}
	}
	return nil
}

// place moves a tree to a path in the root.
func place(root int, path string, fd int, dir bool) error {
	var err error
	if dir {
		err = unix.Mkdirat(root, path[1:], 0o700)
	} else {
		var at int
		if at, err = unix.Openat(root, path[1:], unix.O_CREAT|unix.O_EXCL|unix.O_RDONLY|unix.O_CLOEXEC, 0o600); err == nil {
			unix.Close(at)
		}
	}
	if err != nil {
		return fmt.Errorf("make %s: %w", path, err)
	}
	if err := unix.MoveMount(fd, "", root, path[1:], unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("mount %s: %w", path, err)
	}
	return unix.Close(fd)
}

// emptyRoot returns a detached tmpfs.
func emptyRoot() (int, error) {
	fs, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, err
	}
	defer unix.Close(fs)
	for key, value := range map[string]string{"size": "64k", "nr_inodes": "8", "mode": "0700"} {
		if err := unix.FsconfigSetString(fs, key, value); err != nil {
			return -1, err
		}
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return -1, err
	}
	return unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC)
}

// limit sets the resource limits. setrlimit(2).
func (n Needs) limit() error {
	file := uint64(unix.RLIM_INFINITY)
	if n.FileBytes > 0 {
		file = uint64(n.FileBytes)
	}
	for resource, n := range map[int]uint64{
		unix.RLIMIT_DATA: uint64(n.Memory), unix.RLIMIT_FSIZE: file, unix.RLIMIT_NOFILE: n.Files, unix.RLIMIT_CORE: 0,
	} {
		if err := unix.Setrlimit(resource, &unix.Rlimit{Cur: n, Max: n}); err != nil {
			return fmt.Errorf("limit resource %d: %w", resource, err)
		}
	}
	return nil
}

// landlock confines file access to the trees, with all that this kernel's Landlock can deny.
// landlock(7).
func (n Needs) landlock() (string, error) {
	config, used, err := privileges.Landlocked()
	if err != nil {
		return "", err
	}
	var rules []landlock.Rule
	for path := range n.Trees {
		var rule landlock.FSRule
		switch dir := slices.Contains(n.Dirs, path); {
		case slices.Contains(n.ReadOnly, path) && dir:
			rule = landlock.RODirs(path)
		case slices.Contains(n.ReadOnly, path):
			rule = landlock.ROFiles(path)
		case dir:
			rule = landlock.RWDirs(path)
			if used >= privileges.RenameABI {
				rule = rule.WithRefer()
			}
		default:
			rule = landlock.RWFiles(path)
		}
		rules = append(rules, rule)
	}
	if err := config.Restrict(rules...); err != nil {
		return "", fmt.Errorf("landlock: %w", err)
	}
	return fmt.Sprintf("landlock: ABI %d", used), privileges.NoNewPrivs()
}

// filterCalls leaves the system calls that the Go runtime and SQLite use, and more.
func filterCalls(more []seccomp.Rule) error {
	return seccomp.Only(more, seccomp.Calls(seccomp.Allow, fileCalls...), seccomp.Calls(seccomp.Allow, oldFileCalls...),
		[]seccomp.Rule{seccomp.Fcntl(unix.F_GETLK, unix.F_SETLK, unix.F_SETLKW, unix.F_OFD_GETLK, unix.F_OFD_SETLK, unix.F_OFD_SETLKW)})
}

// fileCalls are SQLite's, on files that Landlock allows. They include none that makes,
// removes or renames a name.
var fileCalls = []uint32{
	unix.SYS_MREMAP, unix.SYS_OPENAT, unix.SYS_NEWFSTATAT, unix.SYS_FSTAT, unix.SYS_FACCESSAT, unix.SYS_READLINKAT, unix.SYS_GETCWD,
	unix.SYS_LSEEK, unix.SYS_PWRITE64, unix.SYS_WRITEV, unix.SYS_READV, unix.SYS_FTRUNCATE, unix.SYS_FSYNC, unix.SYS_FDATASYNC,
	unix.SYS_GETEUID, unix.SYS_GETUID, unix.SYS_GETTIMEOFDAY,
}

// socketCalls are those of a server that listens already, beside socket.
var socketCalls = []uint32{
	unix.SYS_ACCEPT4, unix.SYS_CONNECT, unix.SYS_GETPEERNAME, unix.SYS_GETSOCKNAME, unix.SYS_GETSOCKOPT, unix.SYS_SETSOCKOPT,
	unix.SYS_SHUTDOWN,
}

// nameCalls replace a file under a lock, in the directory that Landlock allows.
var nameCalls = []uint32{unix.SYS_FLOCK, unix.SYS_RENAMEAT, unix.SYS_UNLINKAT}
