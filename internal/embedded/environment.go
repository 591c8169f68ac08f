package embedded

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/scopefs/scopefs/internal/paths"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/hosts/keys"
)

// environFile names the file of a run directory with the digests of the variables of the command that has started the daemon, which
// are the daemon's. Only the user reads it.
const environFile = "environ"

// digest returns the line of environFile for a variable.
func digest(name, value string) string {
	sum := sha256.Sum256([]byte(name + "=" + value))
	return name + " " + hex.EncodeToString(sum[:8])
}

// writeEnviron writes environFile.
func writeEnviron(dir string) error {
	var b strings.Builder
	for _, variable := range os.Environ() {
		if name, value, _ := strings.Cut(variable, "="); !strings.Contains(name, "\n") {
			b.WriteString(digest(name, value) + "\n")
		}
	}
	return os.WriteFile(filepath.Join(dir, environFile), []byte(b.String()), 0o600)
}

// named matches how definitions and settings name a variable.
var named = regexp.MustCompile(`\$\{([A-Za-z_][A-Za-z0-9_]*)\}|\benv["']?:\s*["']?([A-Za-z_][A-Za-z0-9_]*)`)

// sameEnviron returns an error if a daemon has another value of a variable that definitions name than this command: its sandboxes and
// servers would have that, and credentials would be another command's.
func sameEnviron(p, at paths.Paths, id scope.ID) error {
	text, err := os.ReadFile(filepath.Join(at.Run, environFile))
	if err != nil {
		return nil // it starts or ends, or is of a release before
	}
	theirs := map[string]string{}
	for line := range strings.Lines(string(text)) {
		name, _, _ := strings.Cut(line, " ")
		theirs[name] = strings.TrimSpace(line)
	}
	differs := func(name string) bool {
		value, set := os.LookupEnv(name)
		was, had := theirs[name]
		return set != had || set && was != digest(name, value)
	}
	for _, name := range keys.Builtin() { // of presets, which the agent may not use
		if os.Getenv(name) != "" && theirs[name] != "" && differs(name) {
			return otherValue(id, name)
		}
	}
	for _, dir := range []string{p.Base, p.User} {
		for _, below := range []string{"scopefs.yaml", "agents.d", "presets.d", "extensions.d"} {
			if dir == "" {
				continue
			}
			err := filepath.WalkDir(filepath.Join(dir, below), func(file string, d fs.DirEntry, err error) error {
				if err != nil || !d.Type().IsRegular() {
					return nil
				}
				text, _ := os.ReadFile(file)
				for _, found := range named.FindAllSubmatch(text, -1) {
					if name := string(found[1]) + string(found[2]); differs(name) {
						return otherValue(id, name)
					}
				}
				return nil
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

func otherValue(id scope.ID, name string) error {
	return fmt.Errorf("another command of %s runs, with another value of %s in its environment: wait for its end, or set the same value",
		id, name)
}
