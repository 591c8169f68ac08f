package sandbox

import (
	"errors"
	"fmt"
	"os"
	"strings"
)

// Expendable sets the oom_score_adj of a child to 0, the default, so that the child does
// not inherit the daemon's; proc_pid_oom_score_adj(5). To lower a score may take
// CAP_SYS_RESOURCE. A child with a higher score is not spared, so that is no error.
func Expendable(pid int) error {
	name := fmt.Sprintf("/proc/%d/oom_score_adj", pid)
	score, err := os.ReadFile(name)
	if err != nil || string(score) == "0\n" {
		return err
	}
	err = os.WriteFile(name, []byte("0"), 0)
	if errors.Is(err, os.ErrPermission) && !strings.HasPrefix(string(score), "-") {
		return nil
	}
	return err
}
