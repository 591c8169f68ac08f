package cli

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"

	"github.com/elastic/go-seccomp-bpf"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/integration/harness"
)

func init() {
	harness.Roles["without"] = func(args []string) error {
		errno, names := unix.ENOSYS, args[0]
		if rest, ok := strings.CutPrefix(names, "EPERM:"); ok {
			errno, names = unix.EPERM, rest
		}
		filter := seccomp.Filter{NoNewPrivs: true, Flag: seccomp.FilterFlagTSync, Policy: seccomp.Policy{
			DefaultAction: seccomp.ActionAllow,
			Syscalls:      []seccomp.SyscallGroup{{Names: strings.Split(names, ","), Action: seccomp.Action(unix.SECCOMP_RET_ERRNO | uint32(errno))}},
		}}
		if err := seccomp.LoadFilter(filter); err != nil {
			return fmt.Errorf("filter: %w", err)
		}
		return syscall.Exec(args[1], args[1:], os.Environ())
	}
}

// without is a command on a host whose kernel, or whose container, does not have
// some system calls: they fail with ENOSYS, or after "EPERM:" with that.
func without(calls string, argv ...string) *exec.Cmd {
	cmd := harness.Role("without", append([]string{calls}, argv...)...)
	cmd.Stderr = nil
	return cmd
}
