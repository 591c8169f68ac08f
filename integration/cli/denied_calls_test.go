package cli

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/seccomp"
)

func init() {
	harness.Roles["without"] = func(args []string) error {
		var numbers []uint32
		for word := range strings.FieldsSeq(args[0]) {
			n, err := strconv.ParseUint(word, 10, 32)
			if err != nil {
				return err
			}
			numbers = append(numbers, uint32(n))
		}
		rules := seccomp.Calls(seccomp.Fail(unix.Errno(numbers[0])), numbers[1:]...)
		filter := seccomp.Filter{Rules: rules, Else: seccomp.Allow, Foreign: seccomp.Allow}
		if err := filter.Load(); err != nil {
			return err
		}
		return syscall.Exec(args[1], args[1:], os.Environ())
	}
}

// without is a command on a host whose kernel, or whose container, does not have
// some system calls: they fail with errno.
func without(errno unix.Errno, calls []uint32, argv ...string) *exec.Cmd {
	numbers := fmt.Sprintf("%d %s", uint32(errno), strings.Trim(fmt.Sprint(calls), "[]"))
	cmd := harness.Role("without", append([]string{numbers}, argv...)...)
	cmd.Stderr = nil
	return cmd
}
