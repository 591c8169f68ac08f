package integration

import (
	"os"
	"os/exec"
)

// client returns a command that runs a role of this test binary.
func client(role string, args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), roleEnv+"="+role)
	cmd.Stderr = os.Stderr
	return cmd
}
