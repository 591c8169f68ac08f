// Package front is the command as most starts need it: it asks a daemon that runs, or starts one for a run, and prints. It reads no
// definition. Whatever is not that it leaves to scopefsd, before it has read anything that can be read only once.
package front

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/scopefs/scopefs/internal/command"
	"github.com/scopefs/scopefs/internal/paths"
	"github.com/scopefs/scopefs/scope"
)

// errLeft is the error of a command that scopefsd has to do.
var errLeft = errors.New("scopefsd does it")

// front is one command.
type front struct{ command.Places }

// Main does a command and returns its exit status; done is false if it is left to scopefsd.
func Main(ctx context.Context, args []string) (status int, done bool) {
	var f front
	root := &cobra.Command{Use: "scopefs"}
	f.Add(root)
	f.addRun(root)
	f.addCall(root)
	f.addMCP(root)
	c, rest, err := root.Find(args)
	if err != nil || c == root || c.ParseFlags(rest) != nil { // help and usage are scopefsd's
		return 0, false
	}
	c.SetContext(ctx)
	if err = c.RunE(c, c.Flags().Args()); errors.Is(err, errLeft) {
		return 0, false
	}
	return command.Print(os.Stderr, err), true
}

// agent returns the directories and the agent of a command that starts something for an agent. A project without an agent, or with
// texts that are to be decided about, is left. alone says that the command does without a daemon that runs.
func (f *front) agent(name string, alone bool) (paths.Paths, *paths.Project, scope.ID, error) {
	p, project, err := f.Where(paths.Finder{})
	if err != nil || f.Branch != "" || f.Root != "" {
		return p, nil, "", errLeft
	}
	if project == nil {
		id, err := scope.ParseID(name)
		if err != nil || f.Flags.Base == "" && !defined(p, id) { // it may be the name of a project
			err = errLeft
		}
		return p, nil, id, err
	}
	if p, err = p.Complete(); err != nil || !alone && !served(p) { // nothing to ask: scopefsd looks at the rest
		return p, nil, "", errLeft
	}
	if !project.Exists() || project.Above != nil || project.Below != "" || project.Proposes() ||
		name != "" && name != string(project.ID) || project.Make(true) != nil {
		return p, nil, "", errLeft
	}
	return p, project, project.ID, nil
}

// defined reports whether a base may have the usual file of an agent.
func defined(p paths.Paths, id scope.ID) bool {
	_, err := os.Lstat(filepath.Join(p.Base, "agents.d", string(id)+".md"))
	return !errors.Is(err, fs.ErrNotExist)
}

// served reports whether a daemon may serve the directories.
func served(p paths.Paths) bool {
	for _, socket := range []string{p.Socket(), p.UserSocket(uint32(os.Geteuid()))} {
		if _, err := os.Lstat(socket); !errors.Is(err, fs.ErrNotExist) {
			return true
		}
	}
	return false
}
