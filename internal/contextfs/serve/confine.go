package serve

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/privileges"
	"github.com/scopefs/scopefs/internal/seccomp"
)

// confined leaves this process the descriptors that are open or received: it drops every capability, all access to files by name,
// and all system calls but those of the Go runtime and recvmsg(2). It returns the measures in effect, for the log. On an error the
// process must exit. It works only in a static binary.
func confined() ([]string, error) {
	if err := privileges.Drop(0); err != nil {
		return nil, err
	}
	all, abi, err := privileges.Landlocked()
	if err != nil {
		return nil, err
	}
	// No rule: each right that the kernel's ABI knows is denied everywhere.
	if err := all.Restrict(); err != nil {
		return nil, fmt.Errorf("landlock: %w", err)
	}
	if err := privileges.NoNewPrivs(); err != nil {
		return nil, err
	}
	if err := seccomp.Only(seccomp.Calls(seccomp.Allow, unix.SYS_RECVMSG)); err != nil {
		return nil, err
	}
	return []string{"no files", "capabilities: none", fmt.Sprintf("landlock: ABI %d", abi), "seccomp", "no_new_privs", "no network"}, nil
}
