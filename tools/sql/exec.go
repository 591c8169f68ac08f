package sql

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/share"
	"github.com/scopefs/scopefs/tools/sandbox"
	"github.com/scopefs/scopefs/tools/sql/engine"
)

// Exec starts engine processes from the program scopefs-stores, which is an engine when its
// argv[0] is [engine.Name]. The caller needs CAP_SYS_ADMIN in its user namespace.
type Exec struct {
	// Files is where the databases are. The directory is made, for the daemon alone.
	Files share.File
	// Program is the path of the program.
	Program string
	// User returns the user and group of an agent's process and files. Nil is the
	// daemon's own.
	User func(scope.ID) (uid, gid uint32)
	// Stderr gets what a process prints when it crashes; nil is nothing.
	Stderr io.Writer
}

// Start starts the process of an agent. It is a [Start].
func (x Exec) Start(_ context.Context, agent scope.ID) (*Process, error) {
	name, err := x.Files.Apply(agent, "")
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return nil, err
	}
	uid, gid := -1, -1
	if x.User != nil {
		u, g := x.User(agent)
		uid, gid = int(u), int(g)
	}
	var files []*os.File
	defer func() {
		for _, f := range files {
			f.Close()
		}
	}()
	for _, suffix := range []string{"", "-journal"} {
		f, err := detached(name+suffix, uid, gid)
		if err != nil {
			return nil, fmt.Errorf("open the database: %w", err)
		}
		files = append(files, f)
	}
	cmd := exec.Command(x.Program)
	cmd.Args, cmd.Dir, cmd.Env, cmd.Stderr = []string{engine.Name}, "/", []string{"GOMAXPROCS=2"}, x.Stderr
	cmd.ExtraFiles = files
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setsid:     true, // the terminal's signals are the daemon's
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWPID,
	}
	if uid >= 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
		cmd.SysProcAttr.AmbientCaps = []uintptr{unix.CAP_SYS_ADMIN} // for its mounts; it drops it
	}
	return run(cmd)
}

// FileBytes returns what the file system has allocated for an agent's database and its journal.
func FileBytes(files share.File, agent scope.ID) (sum int64, err error) {
	name, err := files.Apply(agent, "")
	for _, suffix := range []string{"", "-journal"} {
		var st unix.Stat_t
		if err == nil && unix.Lstat(name+suffix, &st) == nil {
			sum += st.Blocks * 512
		}
	}
	return sum, err
}

// run starts the command with pipes.
func run(cmd *exec.Cmd) (*Process, error) {
	theirIn, in, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	out, theirOut, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, theirIn.Close(), in.Close())
	}
	cmd.Stdin, cmd.Stdout = theirIn, theirOut
	err = cmd.Start()
	theirIn.Close()
	theirOut.Close()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start: %w", err), in.Close(), out.Close())
	}
	p := &Process{In: in, Out: out, Kill: func() { _ = cmd.Process.Kill() }, Wait: cmd.Wait}
	if err := sandbox.Expendable(cmd.Process.Pid); err != nil {
		p.Kill()
		<-p.wait()
		return nil, err
	}
	return p, nil
}

// detached opens a regular file, makes it if it is not there, and returns a mount of it
// that is nowhere mounted; open_tree(2).
func detached(name string, uid, gid int) (*os.File, error) {
	fd, err := unix.Open(name, unix.O_RDWR|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Nlink != 1 {
		return nil, fmt.Errorf("%s: not a file of its own: remove it", name)
	}
	if uid >= 0 && (st.Uid != uint32(uid) || st.Gid != uint32(gid)) {
		if err := unix.Fchown(fd, uid, gid); err != nil {
			return nil, &os.PathError{Op: "chown", Path: name, Err: err}
		}
	}
	tree, err := unix.OpenTree(fd, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)
	if err != nil {
		return nil, &os.PathError{Op: "open_tree", Path: name, Err: err}
	}
	return os.NewFile(uintptr(tree), name), nil
}
