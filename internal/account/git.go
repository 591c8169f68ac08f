package account

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
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
// or a configuration, which starts no git. Nothing else of it reaches a sandbox. git-config(1) runs no program
// to read one, and / has no repository with a configuration of its own.
func (g *Git) Get() sandbox.GitUser {
	g.once.Do(func() {
		if !configured() {
			return
		}
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

// configured reports whether git may have a global configuration: git-config(1), FILES.
func configured() bool {
	files := []string{os.Getenv("GIT_CONFIG_GLOBAL")}
	if files[0] == "" {
		home := os.Getenv("HOME")
		files = []string{filepath.Join(home, ".gitconfig"),
			filepath.Join(cmp.Or(os.Getenv("XDG_CONFIG_HOME"), filepath.Join(home, ".config")), "git/config")}
	}
	return slices.ContainsFunc(files, func(name string) bool {
		_, err := os.Stat(name)
		return !errors.Is(err, fs.ErrNotExist)
	})
}
