package state

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/scopefs/scopefs/internal/durable"
)

const (
	definitionsDir = "definitions"
	seenFile       = "seen.json"
	maxSeen        = 64 << 20
)

// Seen returns the SHA-256 of each definition that has loaded, by file, as last stored by KeepSeen. It returns nil if
// they cannot be read.
func Seen(state string) map[string]string {
	root, err := os.OpenRoot(filepath.Join(state, definitionsDir))
	if err != nil {
		return nil
	}
	defer root.Close()
	var seen map[string]string
	if text, err := read(root, seenFile, maxSeen); err != nil || json.Unmarshal(text, &seen) != nil {
		return nil
	}
	return seen
}

// KeepSeen stores the hashes for the next daemon. A power loss may lose them or restore older ones. Then a removed
// name in a definition is an error, like a mistyped name.
func KeepSeen(state string, seen map[string]string) error {
	root, err := open(state, definitionsDir)
	if err != nil {
		return err
	}
	defer root.Close()
	text, err := json.Marshal(seen)
	if err == nil { // not synced: a reload must not wait for the disk
		err = durable.Replace(root, seenFile, text, durable.Options{Unsynced: true})
	}
	if err != nil {
		return fmt.Errorf("state: definitions: %w", err)
	}
	return nil
}
