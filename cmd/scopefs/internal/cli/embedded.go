package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/cmd/scopefs/internal/config"
	"github.com/scopefs/scopefs/cmd/scopefs/internal/mount"
	"github.com/scopefs/scopefs/scope"
)

// leashFD is where an embedded daemon finds its leash.
const leashFD = 3

// startEmbedded starts a daemon in a mount namespace of its own, which for an
// ordinary user is in a user namespace of his own as well: there he may mount,
// and needs no setuid helper for it. It ends when we do, however we do. What goes
// wrong once it is ready is told.
func startEmbedded(ctx context.Context, p config.Paths, id scope.ID, lock *os.File, told io.Writer) (end func(), err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "leash"), os.NewFile(uintptr(pair[1]), "leash")
	var says overheard
	cmd := exec.Command("/proc/self/exe", "daemon", "--base", p.Base, "--state", p.State, "--run", p.Run,
		"--only", string(id), "--leash", fmt.Sprint(leashFD))
	cmd.Stderr = &says
	cmd.ExtraFiles = []*os.File{theirs, lock} // held as long as it lives; see daemon.NewRun
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setsid:     true, // the terminal's signals come to us alone
		Cloneflags: unix.CLONE_NEWNS,
	}
	if uid, gid := os.Geteuid(), os.Getegid(); uid != 0 {
		cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: uid, Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: gid, Size: 1}}
	}
	err = cmd.Start()
	theirs.Close() // or the leash would not end with the daemon
	if err != nil {
		ours.Close()
		return nil, noNamespaces(err)
	}
	stop := context.AfterFunc(ctx, func() { ours.Close() })
	line, err := bufio.NewReader(ours).ReadString('\n')
	if err != nil || line != "ready\n" {
		ours.Close()
		_ = cmd.Wait()
		stop()
		text := strings.TrimPrefix(strings.TrimSpace(says.held.String()), "scopefs: ")
		if i := strings.LastIndexByte(text, '\n'); i >= 0 {
			text = strings.TrimPrefix(text[i+1:], "scopefs: ")
		}
		return nil, errors.New(text)
	}
	says.pass(told)
	return func() {
		ours.Close()
		kill := time.AfterFunc(10*time.Second, func() { _ = cmd.Process.Kill() })
		_ = cmd.Wait()
		kill.Stop()
		stop()
	}, nil
}

// noNamespaces says why a daemon of our own has none.
func noNamespaces(err error) error {
	var errno unix.Errno
	if !errors.As(err, &errno) {
		return err
	}
	if os.Geteuid() == 0 {
		return fmt.Errorf("make a mount namespace: %w: %s", errno, mount.NeedsPrivilege)
	}
	return fmt.Errorf("make a user namespace: %w: allow them (sysctl user.max_user_namespaces above 0, kernel.apparmor_restrict_unprivileged_userns=0), or run as root", errno)
}

// overheard is what a daemon of ours says: until it is ready, why it does not
// start; then what goes wrong, which nobody else would tell.
type overheard struct {
	mu   sync.Mutex
	held strings.Builder
	to   io.Writer
}

func (o *overheard) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.to != nil {
		return o.to.Write(b)
	}
	return o.held.Write(b)
}

func (o *overheard) pass(to io.Writer) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.to = to
}
