package sandbox

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Expendable has the kernel choose a child like any process when memory runs out,
// and not spare it because it inherited the daemon's oom_score_adj;
// proc_pid_oom_score_adj(5). A child of an unprotected parent stays as it is.
func Expendable(pid int) error {
	name := fmt.Sprintf("/proc/%d/oom_score_adj", pid)
	text, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	if score, err := strconv.Atoi(strings.TrimSpace(string(text))); err != nil || score >= 0 {
		return err
	}
	return os.WriteFile(name, []byte("0"), 0)
}
