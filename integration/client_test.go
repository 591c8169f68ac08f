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

// churn returns operations that create, rename, look up and remove a file.
func churn(at, to string) []func() error {
	return []func() error{
		func() error { return os.WriteFile(at, []byte("x"), 0o644) },
		func() error { return os.Rename(at, to) },
		func() error { _, err := os.Stat(to); return err },
		func() error { return os.Remove(to) },
	}
}
