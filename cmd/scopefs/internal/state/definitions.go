package state

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

const (
	definitionsDir = "definitions"
	seenFile       = "seen.json"
	maxSeen        = 64 << 20
)

// Seen returns the SHA-256 of the definitions that have loaded, by file, as
// KeepSeen was last given them; none when they cannot be read.
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

// KeepSeen keeps them for the next daemon. After a power loss they may be older
// ones, or none: then a name that was removed is an error, as a mistyped one is.
func KeepSeen(state string, seen map[string]string) error {
	root, err := open(state, definitionsDir)
	if err != nil {
		return err
	}
	defer root.Close()
	text, err := json.Marshal(seen)
	if err == nil {
		err = root.WriteFile("."+seenFile, text, 0o600)
	}
	if err == nil { // not synced: a reload does not wait for the disk
		err = root.Rename("."+seenFile, seenFile)
	}
	if err != nil {
		return fmt.Errorf("state: definitions: %w", err)
	}
	return nil
}
