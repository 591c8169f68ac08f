package state

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/scopefs/scopefs/internal/durable"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/agents"
)

// lentRoot is the format of the file of a root that a command has lent to an agent. Its changes can be undone later.
type lentRoot struct {
	Agent scope.ID    `json:"agent"`
	Root  agents.Root `json:"root"`
}

const (
	rootsDir = "roots"
	maxRoot  = 64 << 10 // bytes of a file
)

// LentFile returns the path of the file of a lent root.
func LentFile(state string, root scope.ID) string {
	return filepath.Join(state, rootsDir, lentName(root))
}

func lentName(root scope.ID) string { return string(root) + ".json" }

// Lend stores a root that a command lends to an agent.
func Lend(state string, of scope.ID, r agents.Root) error {
	root, err := open(state, rootsDir)
	if err != nil {
		return err
	}
	defer root.Close()
	text, err := json.Marshal(lentRoot{of, r})
	if err == nil {
		err = durable.Replace(root, lentName(agents.RootID(of, r)), text, durable.Options{Shared: true})
	}
	if err != nil {
		return fmt.Errorf("state: roots: %w", err)
	}
	return nil
}

// Lent returns the roots of Lend by their agent. A file that cannot be read is none.
func Lent(state string) map[scope.ID][]agents.Root {
	root, err := os.OpenRoot(filepath.Join(state, rootsDir))
	if err != nil {
		return nil
	}
	defer root.Close()
	entries, _ := fs.ReadDir(root.FS(), ".")
	all := map[scope.ID][]agents.Root{}
	for _, e := range entries {
		var l lentRoot
		if text, err := read(root, e.Name(), maxRoot); err == nil && json.Unmarshal(text, &l) == nil &&
			e.Name() == lentName(agents.RootID(l.Agent, l.Root)) {
			all[l.Agent] = append(all[l.Agent], l.Root)
		}
	}
	return all
}
