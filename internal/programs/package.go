package programs

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
)

// packageOf returns what must be shown of a program: the directory of its npm package, or node_modules if it needs packages
// beside it; its virtual environment of Python; of a script its directory in /opt or ~/.local/share; else the file alone.
func packageOf(file, start string) string {
	if dir, ok := modulesOf(file); ok {
		return dir
	}
	if venv := venvOf(file); venv != "" {
		return venv
	}
	if dir := ownDir().FindString(file); dir != "" && strings.HasPrefix(start, "#!") {
		return strings.TrimSuffix(dir, "/")
	}
	return file
}

// ownDir matches a directory that holds one program with its files.
var ownDir = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^(/opt|/.*/\.local/share)/[^/]+/`) })

// modulesOf returns the directory of the npm package that a file is in, or node_modules.
func modulesOf(file string) (dir string, ok bool) {
	const modules = "/node_modules/"
	i := strings.LastIndex(file, modules)
	if i < 0 {
		return "", false
	}
	words := strings.SplitN(file[i+len(modules):], "/", 3)
	if len(words) == 1 {
		return "", false
	}
	name := words[0]
	if strings.HasPrefix(name, "@") {
		name += "/" + words[1]
	}
	root := file[:i] + modules + name
	if needsOthers(root) {
		return file[:strings.Index(file, modules)] + strings.TrimSuffix(modules, "/"), true
	}
	return root, true
}

// venvOf returns the virtual environment of Python whose bin/ a file is in; "" if there is none.
func venvOf(file string) string {
	dir := filepath.Dir(filepath.Dir(file))
	if !exists(filepath.Join(dir, "pyvenv.cfg")) {
		return ""
	}
	return dir
}

// interpreterFiles returns the file of an interpreter, or a link to it, and for Python what is installed with it.
func interpreterFiles(name string) []string {
	if venv := venvOf(name); venv != "" {
		return []string{venv}
	}
	paths := []string{name}
	if !strings.HasPrefix(filepath.Base(name), "python") {
		return paths
	}
	lib := filepath.Join(filepath.Dir(filepath.Dir(name)), "lib")
	entries, err := os.ReadDir(lib)
	if err != nil {
		return paths
	}
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), "python3") || strings.HasPrefix(entry.Name(), "libpython3") {
			paths = append(paths, filepath.Join(lib, entry.Name()))
		}
	}
	return paths
}
