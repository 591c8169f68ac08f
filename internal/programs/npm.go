package programs

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
)

// needsOthers reports whether a package has a dependency that is installed, and not in
// the package's own node_modules.
func needsOthers(root string) bool {
	var manifest struct {
		Dependencies, OptionalDependencies map[string]string
	}
	text, err := os.ReadFile(filepath.Join(root, "package.json"))
	if err != nil || json.Unmarshal(text, &manifest) != nil {
		return true
	}
	return slices.ContainsFunc(slices.Concat(slices.Collect(maps.Keys(manifest.Dependencies)), slices.Collect(maps.Keys(manifest.OptionalDependencies))), func(name string) bool {
		return !exists(filepath.Join(root, "node_modules", name)) && existsAbove(root, name)
	})
}

// existsAbove reports whether node finds a package in a node_modules above.
func existsAbove(root, name string) bool {
	for dir := filepath.Dir(root); dir != "/"; dir = filepath.Dir(dir) {
		if filepath.Base(dir) == "node_modules" && exists(filepath.Join(dir, name)) {
			return true
		}
	}
	return false
}

func exists(name string) bool {
	_, err := os.Stat(name)
	return err == nil
}
