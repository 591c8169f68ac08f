package programs

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// tree makes files below a directory: a text, or "-> TARGET" for a link. All are
// executable.
func tree(t *testing.T, files map[string]string) string {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	for name, text := range files {
		at := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(at), 0o755))
		if target, ok := strings.CutPrefix(text, "-> "); ok {
			require.NoError(t, os.Symlink(target, at))
			continue
		}
		require.NoError(t, os.WriteFile(at, []byte(strings.ReplaceAll(text, "DIR", dir)), 0o755))
	}
	return dir
}

// TestFind: a program is found as its installer leaves it, and no more is shown than it
// needs.
func TestFind(t *testing.T) {
	const elf, script, cli = "\x7fELF", "#!/usr/bin/env node\n", "/lib/node_modules/@x/cli"
	for name, c := range map[string]struct {
		files                 map[string]string
		path                  string // directories of PATH
		file, expose, addPath string // relative to the tree; a path that begins with / is of the system
		wrong                 string
	}{
		"static": {
			files: map[string]string{"bin/p": "-> ../versions/1", "versions/1": elf},
			path:  "bin", file: "versions/1", expose: "versions/1",
		},
		"nvm": {
			files: map[string]string{"v22/bin/p": "-> .." + cli + "/cli.js", "v22" + cli + "/cli.js": script, "v22" + cli + "/package.json": `{"optionalDependencies": {"absent": "1"}}`, "v22/bin/node": elf},
			path:  "v22/bin", file: "v22" + cli + "/cli.js", expose: "v22" + cli + " v22/bin/node", addPath: "v22/bin",
		},
		"npm global, with the dependencies inside": {
			files: map[string]string{"bin/p": "-> .." + cli + "/cli.js", cli + "/cli.js": "#!/bin/sh\n", cli + "/package.json": `{"dependencies": {"@y/dep": "1"}}`, cli + "/node_modules/@y/dep/index.js": "", "lib/node_modules/@y/dep/index.js": ""},
			path:  "bin", file: cli[1:] + "/cli.js", expose: cli[1:],
		},
		"npm local, with the dependencies beside it": {
			files: map[string]string{"node_modules/.bin/p": "-> ../p/cli", "node_modules/p/cli": elf, "node_modules/p/package.json": `{"optionalDependencies": {"dep": "1"}}`, "node_modules/dep/index.js": ""},
			path:  "node_modules/.bin", file: "node_modules/p/cli", expose: "node_modules",
		},
		"a package that nothing is known of": {
			files: map[string]string{"node_modules/p/p": elf},
			path:  "node_modules/p", file: "node_modules/p/p", expose: "node_modules",
		},
		"asdf": {
			files: map[string]string{"shims/p": "#!/usr/bin/env bash\n# asdf-plugin: nodejs 22\nexec asdf exec \"p\" \"$@\"\n", "shims/node": "#!/usr/bin/env bash\nexec asdf exec \"node\" \"$@\"\n",
				"bin/asdf": "#!/bin/sh\n[ \"$1 $PWD\" = \"which $HOME\" ] || exit 1\necho DIR/installs/nodejs/bin/$2\n", "installs/nodejs/bin/p": "-> .." + cli + "/cli.js", "installs/nodejs" + cli + "/cli.js": script, "installs/nodejs" + cli + "/package.json": "{}", "installs/nodejs/bin/node": elf},
			path: "shims bin", file: "installs/nodejs" + cli + "/cli.js", expose: "installs/nodejs" + cli + " installs/nodejs/bin/node", addPath: "installs/nodejs/bin",
		},
		"mise": {
			files: map[string]string{"shims/p": "-> ../bin/mise", "bin/mise": "#!/bin/sh\necho DIR/installs/$2\n", "installs/p": elf},
			path:  "shims bin", file: "installs/p", expose: "installs/p",
		},
		"pyenv": {
			files: map[string]string{"shims/p": "#!/usr/bin/env bash\nexec \"DIR/libexec/pyenv\" exec \"$program\" \"$@\"\n", "libexec/pyenv": "#!/bin/sh\necho DIR/versions/3.12.1/bin/$2\n",
				"versions/3.12.1/bin/p": "#!DIR/versions/3.12.1/bin/python3.12\n", "versions/3.12.1/bin/python3.12": elf, "versions/3.12.1/lib/python3.12/os.py": "", "versions/3.12.1/lib/libpython3.12.so.1.0": elf, "versions/3.12.1/lib/other": ""},
			path: "shims", file: "versions/3.12.1/bin/p", addPath: "versions/3.12.1/bin",
			expose: "versions/3.12.1/bin/p versions/3.12.1/bin/python3.12 versions/3.12.1/lib/libpython3.12.so.1.0 versions/3.12.1/lib/python3.12",
		},
		"pipx, with the system's python": {
			files: map[string]string{"bin/p": "-> ../pipx/venvs/p/bin/p", "pipx/venvs/p/bin/p": "#!DIR/pipx/venvs/p/bin/python\n", "pipx/venvs/p/bin/python": "-> /usr/bin/env", "pipx/venvs/p/pyvenv.cfg": ""},
			path:  "bin", file: "pipx/venvs/p/bin/p", expose: "pipx/venvs/p", addPath: "pipx/venvs/p/bin",
		},
		"uv, with a python behind links": {
			files: map[string]string{"bin/p": "-> ../tools/p/bin/p", "tools/p/bin/p": "#!DIR/tools/p/bin/python3\n", "tools/p/bin/python3": "-> python", "tools/p/bin/python": "-> ../../../python/3.12/bin/python3.12", "tools/p/pyvenv.cfg": "",
				"python/3.12": "-> 3.12.7", "python/3.12.7/bin/python3.12": elf, "python/3.12.7/lib/python3.12/os.py": ""},
			path: "bin", file: "tools/p/bin/p", expose: "tools/p python/3.12/bin/python3.12 python/3.12/lib/python3.12", addPath: "tools/p/bin",
		},
		"a script of its own venv": {
			files: map[string]string{"bin/p": "#!DIR/venv/bin/python\n", "venv/bin/python": "-> /usr/bin/env", "venv/pyvenv.cfg": ""},
			path:  "bin", file: "bin/p", expose: "bin/p venv", addPath: "venv/bin",
		},
		"pnpm": {
			files: map[string]string{".local/share/pnpm/p": "#!/bin/sh\nif [ -x \"$basedir/node\" ]; then\n  exec \"$basedir/node\"  \"$basedir/global/p.js\" \"$@\"\nelse\n  exec node  \"$basedir/global/p.js\" \"$@\"\nfi\n", "bin/node": elf},
			path:  ".local/share/pnpm bin", file: ".local/share/pnpm/p", expose: ".local/share/pnpm bin/node", addPath: "bin",
		},
		"a script beside its files": {
			files: map[string]string{"bin/p": "-> ../.local/share/p/versions/1/p", ".local/share/p/versions/1/p": "#!/bin/sh\nexec \"$(dirname \"$0\")/node\"\n", "other": ""},
			path:  "bin", file: ".local/share/p/versions/1/p", expose: ".local/share/p",
		},
		"in the home directory as a venv": {
			files: map[string]string{"bin/p": "#!DIR/bin/python\n", "bin/python": "-> /usr/bin/env", "pyvenv.cfg": ""},
			path:  "bin", wrong: "which holds your home directory: install it in a directory of its own",
		},
		"env with options": {
			files: map[string]string{"bin/p": "#!/usr/bin/env -S A=1 node --flag\n", "bin/node": elf},
			path:  "bin", file: "bin/p", expose: "bin/p bin/node", addPath: "bin",
		},
		"of the system":           {path: "/usr/bin", file: "/usr/bin/env"},
		"missing":                 {path: "bin", wrong: "p is not in PATH"},
		"without its interpreter": {files: map[string]string{"bin/p": script}, path: "bin", wrong: "p needs node, which is not in PATH"},
		"in a circle":             {files: map[string]string{"bin/p": "#!DIR/bin/p\n"}, path: "bin", wrong: "p leads through more than 8 interpreters"},
		"asdf without a version":  {files: map[string]string{"shims/p": "exec asdf exec \"p\"\n", "shims/asdf": "#!/bin/sh\nexit 126\n"}, path: "shims", wrong: "asdf which p: exit status 126: choose a version"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := tree(t, c.files)
			in := func(list string) (all []string) {
				for _, name := range strings.Fields(list) {
					if !strings.HasPrefix(name, "/") {
						name = filepath.Join(dir, name)
					}
					all = append(all, name)
				}
				return all
			}
			t.Setenv("PATH", strings.Join(in(c.path), ":"))
			t.Setenv("HOME", dir)
			command := "p"
			if name == "of the system" {
				command = "env"
			}
			found, err := Find(t.Context(), command, none)
			if c.wrong != "" {
				assert.ErrorContains(t, err, c.wrong)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, in(c.file), []string{found.File})
			assert.Equal(t, in(c.expose), found.Expose)
			assert.Equal(t, in(c.addPath), found.Path)
		})
	}
}

// TestFindRelative: what lies in the working directory, which an agent may write, is not
// run for it.
func TestFindRelative(t *testing.T) {
	t.Chdir(tree(t, map[string]string{"p": "\x7fELF"}))
	for _, path := range []string{".", "", ":/nowhere"} {
		t.Setenv("PATH", path)
		_, err := Find(t.Context(), "p", none)
		assert.ErrorIs(t, err, ErrNotFound, path)
	}
}

func none(string) bool { return false }

// TestFindForeign: nothing that agents may write is executed or found.
func TestFindForeign(t *testing.T) {
	dir := tree(t, map[string]string{
		"project/node_modules/.bin/p": "#!/bin/sh\nexec asdf exec p\n", "project/node_modules/.bin/asdf": "#!/bin/sh\ntouch DIR/ran\n",
		"shims/q": "#!/bin/sh\nexec DIR/project/node_modules/.bin/asdf exec q\n",
		"bin/r":   "-> ../project/node_modules/.bin/p",
		"bin/s":   "#!/usr/bin/env asdf\n",
		"bin/v":   "#!DIR/project/venv/bin/python\n", "project/venv/bin/python": "-> /usr/bin/env", "project/venv/pyvenv.cfg": "",
		"bin/u": "#!DIR/venv/bin/python\n", "venv/bin/python": "-> ../../project/python", "project/python": "-> /usr/bin/env", "venv/pyvenv.cfg": "",
	})
	require.NoError(t, syscall.Mkfifo(filepath.Join(dir, "bin", "f"), 0o755))
	t.Setenv("PATH", strings.Join([]string{dir + "/project/node_modules/.bin", dir + "/shims", dir + "/bin", os.Getenv("PATH")}, ":"))
	foreign := func(name string) bool { return strings.HasPrefix(name+"/", dir+"/project/") }
	for command, want := range map[string]string{
		"p": "p is not in PATH", "q": "asdf is a file that agents may write", "r": "which agents may write",
		"s": "needs asdf, which is not in PATH", "v": "which agents may write", "u": "which agents may write", "f": "is no regular file",
	} {
		_, err := Find(t.Context(), command, foreign)
		assert.ErrorContains(t, err, want, command)
	}
	assert.NoFileExists(t, filepath.Join(dir, "ran"))
}
