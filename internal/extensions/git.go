package extensions

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"
)

// gitTime bounds the commands of git for one repository.
const gitTime = time.Minute

// gitCommand returns a command of git with the given variables, and with no variable of the caller but PATH. It starts no hook, no monitor of files
// and no maintenance, asks for no password, and fetches no object that a partial clone lacks.
func gitCommand(ctx context.Context, env []string, words ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "git", append([]string{
		"-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=", "-c", "protocol.allow=never", "-c", "gc.auto=0",
		"-c", "maintenance.auto=false",
	}, words...)...)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH")}, env...)
	cmd.Env = append(cmd.Env, "LC_ALL=C", "GIT_ATTR_NOSYSTEM=1", "GIT_TERMINAL_PROMPT=0", "GIT_NO_LAZY_FETCH=1",
		"GIT_NO_REPLACE_OBJECTS=1", "GIT_OPTIONAL_LOCKS=0")
	cmd.WaitDelay = time.Second
	cmd.Stderr = &messages{}
	return cmd
}

// errOwner reports a repository of another user, which git does not open: see safe.directory in git-config(1).
var errOwner = errors.New("belongs to another user")

// runGit runs a command of gitCommand. Its error contains what git prints.
func runGit(cmd *exec.Cmd) error {
	err := cmd.Run()
	said := strings.TrimSpace(cmd.Stderr.(*messages).text.String())
	switch {
	case err == nil:
		return nil
	case strings.Contains(said, "dubious ownership"):
		return errOwner
	}
	return fmt.Errorf("git: %w: %.500s", err, said)
}

// messages keeps the first 4 KiB that git prints.
type messages struct{ text bytes.Buffer }

func (m *messages) Write(p []byte) (int, error) {
	m.text.Write(p[:min(len(p), 4096-m.text.Len())])
	return len(p), nil
}
