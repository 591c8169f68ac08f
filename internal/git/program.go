// Package git runs the git program on repositories that may be anybody's, and reads what a commit of one defines. No program that
// such a repository names is run.
package git

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

// MaxTime bounds the commands of git for one repository.
const MaxTime = time.Minute

// Command returns a command of git, with these variables and none of the caller's but PATH. It starts no hook, no monitor of files
// and no maintenance, asks for no password, and fetches no object that a partial clone lacks.
func Command(ctx context.Context, env []string, words ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "git", append([]string{
		"-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=", "-c", "protocol.allow=never", "-c", "gc.auto=0", "-c", "maintenance.auto=false",
	}, words...)...)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH")}, env...)
	cmd.Env = append(cmd.Env, "LC_ALL=C", "GIT_ATTR_NOSYSTEM=1", "GIT_TERMINAL_PROMPT=0", "GIT_NO_LAZY_FETCH=1", "GIT_NO_REPLACE_OBJECTS=1", "GIT_OPTIONAL_LOCKS=0")
	cmd.WaitDelay = time.Second
	cmd.Stderr = &messages{}
	return cmd
}

// ErrOwner reports a repository of another user, which git does not open: see safe.directory in git-config(1).
var ErrOwner = errors.New("belongs to another user")

// Run runs a command. Its error has what git says.
func Run(cmd *exec.Cmd) error { return Explain(cmd, cmd.Run()) }

// Explain returns the error of a command that has ended, with what git says.
func Explain(cmd *exec.Cmd, err error) error {
	said := strings.TrimSpace(cmd.Stderr.(*messages).text.String())
	switch {
	case err == nil:
		return nil
	case strings.Contains(said, "dubious ownership"):
		return ErrOwner
	}
	return fmt.Errorf("git: %w: %.500s", err, said)
}

// messages keeps the first of what git says.
type messages struct{ text bytes.Buffer }

func (m *messages) Write(p []byte) (int, error) {
	m.text.Write(p[:min(len(p), 4096-m.text.Len())])
	return len(p), nil
}
