package account

import (
	"context"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/scopefs/scopefs/tools/sandbox"
)

// gitTime bounds the question for the user of git.
const gitTime = 5 * time.Second

// Git is the name and address that the daemon's user has for git, read on first use.
type Git struct {
	once sync.Once
	user sandbox.GitUser
}

// Get returns the name and address of git's global configuration; empty ones without git
// or a configuration. Nothing else of it reaches a sandbox. git-config(1) runs no program
// to read one, and / has no repository with a configuration of its own.
func (g *Git) Get() sandbox.GitUser {
	g.once.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), gitTime)
		defer cancel()
		cmd := exec.CommandContext(ctx, "git", "config", "--global", "--includes", "--null", "--get-regexp", `^user\.(name|email)$`)
		cmd.Dir, cmd.WaitDelay = "/", time.Second
		out, err := cmd.Output()
		if err != nil || len(out) > 4096 {
			return
		}
		for entry := range strings.SplitSeq(string(out), "\x00") {
			switch key, value, _ := strings.Cut(entry, "\n"); key { // the last one holds
			case "user.name":
				g.user.Name = value
			case "user.email":
				g.user.Email = value
			}
		}
	})
	return g.user
}
