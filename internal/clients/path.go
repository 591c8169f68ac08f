package clients

import (
	"os"
	"os/exec"
	"path/filepath"
)

// InPath reports whether a shell finds this program by its name.
func InPath(program string) bool {
	found, err := exec.LookPath(filepath.Base(program))
	if err != nil {
		return false
	}
	a, errA := os.Stat(found)
	b, errB := os.Stat(program)
	return errA == nil && errB == nil && os.SameFile(a, b)
}
