package cli

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/integration/harness"
)

// TestRunDirKept: what a command destroys in the directory of a project comes back, without a flag and without a trace in the
// directory. Where no history can be kept the command works, and says so, unless --changes kept was given.
func TestRunDirKept(t *testing.T) {
	for name, uid := range map[string]int{"root": 0, "user": 1234} {
		t.Run(name, func(t *testing.T) {
			m := harness.Embed(t, uid, nil)
			state := filepath.Join(m.Base, "agents", "state")
			command := func(args ...string) *exec.Cmd {
				cmd := harness.AsUser(t, uid, append([]string{harness.Program}, args...)...)
				cmd.Env = append(cmd.Env, "TMPDIR="+m.Tmp, "HOME="+filepath.Join(m.Base, "agents"), "XDG_STATE_HOME="+state, "SCOPEFS_BASE=")
				return cmd
			}
			scopefs := func(args ...string) harness.Outcome { return harness.Finish(t, command(args...)) }
			project := func(below string) string {
				dir, err := os.MkdirTemp(below, "project")
				require.NoError(t, err)
				t.Cleanup(func() { os.RemoveAll(dir) })
				require.NoError(t, os.Chown(dir, uid, uid))
				return dir
			}

			dir := project(m.Base)
			o := scopefs("run", "-q", "--dir", dir, "--", "sh", "-c", "echo 1 >f; rm f; mkdir d; echo 2 >d/g; ls -A")
			assert.Equal(t, "d\n", o.Stdout)
			assert.Empty(t, o.Stderr)
			o = scopefs("undo", "--dir", dir, "--session", "last")
			assert.Zero(t, o.Code, o.Stderr)
			left, err := os.ReadDir(dir)
			require.NoError(t, err)
			assert.Empty(t, left)

			// While a command runs, another one lists and takes back what it has changed. A second run is kept, too.
			require.NoError(t, os.WriteFile(filepath.Join(dir, "f"), nil, 0o644))
			cmd := command("run", "--dir", dir, "--", "sh", "-c", "rm f; echo removed; read x")
			stdin, err := cmd.StdinPipe()
			require.NoError(t, err)
			stdout, err := cmd.StdoutPipe()
			require.NoError(t, err)
			require.NoError(t, cmd.Start())
			_, err = stdout.Read(make([]byte, 10))
			require.NoError(t, err)
			o = scopefs("changes", "--dir", dir, "--name-only")
			assert.Equal(t, "f\n", o.Stdout, o.Stderr)
			o = scopefs("undo", "--dir", dir, "--session", "last")
			assert.Zero(t, o.Code, o.Stderr)
			assert.FileExists(t, filepath.Join(dir, "f"))
			o = scopefs("run", "--dir", dir, "--", "rm", "f")
			assert.Zero(t, o.Code)
			assert.Contains(t, o.Stderr, "scopefs: 1 removed in")
			o = scopefs("undo", "--dir", dir, "--session", "last")
			assert.Zero(t, o.Code, o.Stderr)
			assert.FileExists(t, filepath.Join(dir, "f"))
			require.NoError(t, stdin.Close())
			_ = cmd.Wait() // read(1) has failed

			for what, spoil := range map[string]func(dir, base string){
				`no directory, or a symbolic link`: func(_, base string) { // of another who may write there
					require.NoError(t, os.Rename(filepath.Join(base, "history"), filepath.Join(base, "moved")))
					require.NoError(t, os.WriteFile(filepath.Join(base, "history"), nil, 0o644))
				},
				`history: is a directory`: func(_, base string) {
					require.NoError(t, filepath.WalkDir(filepath.Join(base, "history"), func(name string, e os.DirEntry, err error) error {
						if e.Name() == "lock" {
							return errors.Join(os.Remove(name), os.Mkdir(name, 0o700))
						}
						return err
					}))
				},
				`is not on the mount of the agent's directory: write a history: {dir: PATH}`: func(dir, _ string) {
					require.NoError(t, unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("mode=700,uid=%d,gid=%d", uid, uid)))
					t.Cleanup(func() { assert.NoError(t, unix.Unmount(dir, unix.MNT_DETACH)) })
				},
			} {
				dir := project(m.Base)
				require.Zero(t, scopefs("run", "--dir", dir, "--", "true").Code)
				bases, err := filepath.Glob(filepath.Join(state, "scopefs", filepath.Base(dir)+"-*"))
				require.NoError(t, err)
				require.Len(t, bases, 1)
				spoil(dir, bases[0])
				o := scopefs("run", "--dir", dir, "--", "sh", "-c", "echo 1 >f; cat f")
				assert.Equal(t, "1\n", o.Stdout, o.Stderr)
				anew := "" // another mount at the path is another directory
				if strings.Contains(what, "mount") {
					anew = "scopefs: .* was made anew: .*\n"
				}
				assert.Regexp(t, "^"+anew+"scopefs: changes of project.* are not kept: .*"+regexp.QuoteMeta(what)+`.* \(--changes direct leaves this line out\)\n$`, o.Stderr)
				o = scopefs("undo", "--dir", dir, "--session", "last")
				assert.Equal(t, 1, o.Code)
				assert.Contains(t, o.Stderr, what)
				o = scopefs("run", "--dir", dir, "--changes", "kept", "--", "touch", "g")
				assert.Equal(t, 125, o.Code)
				assert.Contains(t, o.Stderr, what)
				assert.NoFileExists(t, filepath.Join(dir, "g"))
				o = scopefs("run", "--dir", dir, "--changes", "direct", "--", "true")
				assert.Zero(t, o.Code)
				assert.Empty(t, o.Stderr)
			}
		})
	}
}
