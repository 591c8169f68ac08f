package history

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/need"
)

// project is a directory of a user in which commands run without a daemon.
type project struct {
	*testing.T
	way   *harness.Way
	state string
	dir   string
}

func newProject(t *testing.T, uid int) *project {
	m := harness.Embed(t, uid, nil)
	p := &project{T: t, way: m, state: filepath.Join(m.Base, "agents", "state"), dir: filepath.Join(m.Base, "project")}
	require.NoError(t, os.Mkdir(p.dir, 0o755))
	require.NoError(t, os.Chown(p.dir, uid, uid))
	return p
}

func (p *project) command(argv ...string) *exec.Cmd {
	cmd := harness.AsUser(p.T, p.way.User, argv...)
	cmd.Env = append(cmd.Env, "TMPDIR="+p.way.Tmp, "HOME="+filepath.Join(p.way.Base, "agents"), "XDG_STATE_HOME="+p.state, "SCOPEFS_BASE=")
	cmd.Dir = p.dir
	return cmd
}

func (p *project) scopefs(args ...string) harness.Outcome {
	return harness.Finish(p.T, p.command(append([]string{harness.Program}, args...)...))
}

// host runs a command of the host in the directory.
func (p *project) host(script string) string {
	out, err := p.command("sh", "-c", script).CombinedOutput()
	require.NoError(p, err, "%s", out)
	return string(out)
}

// run runs a command of the agent. At the word PAUSE it waits until the host's command has ended.
func (p *project) run(script, host string) harness.Outcome {
	script = strings.ReplaceAll(script, "PAUSE", "echo paused; read go")
	cmd := p.command(harness.Program, "run", "-q", "--dir", ".", "--changes", "kept", "--", "sh", "-c", script)
	stdin, err := cmd.StdinPipe()
	require.NoError(p, err)
	if host == "" {
		stdin.Close()
		return harness.Finish(p.T, cmd)
	}
	stdout, err := cmd.StdoutPipe()
	require.NoError(p, err)
	var errs strings.Builder
	cmd.Stderr = &errs
	require.NoError(p, cmd.Start())
	_, err = stdout.Read(make([]byte, 10))
	require.NoError(p, err, errs.String())
	p.host(host)
	_, err = stdin.Write([]byte("\n"))
	require.NoError(p, err)
	stdin.Close()
	err = cmd.Wait()
	require.NoError(p, err, errs.String())
	return harness.Outcome{Stderr: errs.String()}
}

// deep makes directories in one another until the view refuses, moves f to the last one and removes it there.
const deep = `
import os, errno
cur, n = os.open(".", 0), "d" * 250
for depth in range(1000):
    try: os.mkdir(n, dir_fd=cur)
    except OSError as e:
        assert e.errno == errno.ENAMETOOLONG and depth == 65, (e, depth)
        break
    cur = os.open(n, 0, dir_fd=cur)
os.rename("f", "f", dst_dir_fd=cur)
os.unlink("f", dir_fd=cur)
`

// TestNothingLost: what a change destroys is kept whatever the agent did to it before, or the change is refused; an undo takes the
// agent's changes back and nothing that somebody else has written, and says what it did not do.
func TestNothingLost(t *testing.T) {
	for name, c := range map[string]struct {
		before, agent, host string
		undo                string // the output of the undo
		code                int
		user                bool   // only as an ordinary user
		after               string // prints what is there afterwards
		want                string
	}{
		"the user writes between two changes": {
			before: "echo v1 >f", agent: "echo a >>f; echo draft >r; PAUSE; echo agent >f; rm r", host: "echo user >f; echo user >r",
			undo: "1 rewritten, 1 restored\nconflict: r: changed since by the host or another agent\nconflict: f: changed since by the host or another agent\n", code: 1,
			after: "cat f r", want: "user\nuser\n",
		},
		"the user writes while it is open": {
			before: "echo v1 >f", agent: "exec 3>>f; echo a >&3; PAUSE; echo b >&3", host: "echo user >f",
			undo: "1 rewritten\n", after: "cat f", want: "v1\n",
		},
		"the user writes after an open that failed": {
			before: "echo v1 >f; chmod 444 f", agent: "echo x >>f; PAUSE; chmod 644 f; echo agent >f", host: "chmod 644 f; echo user >f",
			undo: "*", code: 1, after: "cat f", want: "user\n", user: true,
		},
		"closed to its owner": {
			before: "echo v1 >f", agent: "chmod 0200 f; echo gone >f; chmod 644 f", undo: "1 rewritten, 1 attributes\n", after: "cat f; stat -c %a f", want: "v1\n644\n",
		},
		"read-only": {
			before: "echo v1 >f; chmod 444 f", agent: "chmod u+w f; echo gone >f; chmod 444 f", undo: "1 rewritten, 1 attributes\n",
			after: "cat f; stat -c %a f", want: "v1\n444\n",
		},
		"in a read-only directory": {
			before: "mkdir -p d/e; echo v1 >d/f; echo v2 >d/e/g; chmod 555 d/e d", agent: "chmod -R u+w d; rm -r d/f d/e; echo new >d/n; chmod 555 d",
			undo: "*", after: "cat d/f d/e/g; ls -R d; stat -c %a d d/e", want: "v1\nv2\nd:\ne\nf\n\nd/e:\ng\n555\n555\n",
		},
		"in a directory that the agent has closed": {
			before: "mkdir -p d/e; echo v1 >d/e/f; chmod 755 d", agent: "echo gone >d/e/f; echo n >d/e/n; chmod 0 d/e d", undo: "*",
			after: "cat d/e/f; ls -R d; stat -c %a d d/e", want: "v1\nd:\ne\n\nd/e:\nf\n755\n755\n",
		},
		"moved below a long path": {
			before: "echo v1 >f",
			agent:  "python3 -c '" + deep + "'; rm -rf d*", undo: "*", after: "cat f; ls", want: "v1\nf\n",
		},
	} {
		for user, uid := range map[string]int{"root": 0, "user": 1234} {
			if c.user && uid == 0 {
				continue
			}
			t.Run(name+"/"+user, func(t *testing.T) {
				t.Parallel()
				p := newProject(t, uid)
				p.host(c.before)
				o := p.run(c.agent, c.host)
				if !c.user { // whose shell says what failed
					assert.Empty(t, o.Stderr)
				}
				o = p.scopefs("undo", "--session", "last")
				assert.Equal(t, c.code, o.Code, o.Stdout+o.Stderr)
				if c.undo != "*" {
					assert.Regexp(t, regexp.QuoteMeta(c.undo)+"$", o.Stdout)
				}
				assert.Equal(t, c.want, p.host(c.after), o.Stdout+o.Stderr)
			})
		}
	}
}

// TestUndoWhileOpen: an undo while a program of the agent has a file open for writing leaves the file, and says why.
func TestUndoWhileOpen(t *testing.T) {
	p := newProject(t, 1234)
	p.host("echo v1 >f")
	cmd := p.command(harness.Program, "run", "--dir", ".", "--changes", "kept", "--", "sh", "-c", "exec 3>>f; echo a >&3; echo paused; read go")
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	_, err = stdout.Read(make([]byte, 10))
	require.NoError(t, err)
	p.host("echo user >f")
	o := p.scopefs("undo", "--session", "last")
	assert.Equal(t, 1, o.Code)
	assert.Contains(t, o.Stdout, "conflict: f: a program has it open for writing\n")
	assert.Equal(t, "user\n", p.host("cat f"))
	stdin.Close()
	_ = cmd.Wait()
}

// TestKeptLarge: a file of more than 64 MiB comes back where the file system has no reflinks, whatever way a program writes it.
func TestKeptLarge(t *testing.T) {
	const python = `
import os, mmap, sys
size = os.path.getsize("f")
def pwrite(fd): os.pwrite(fd, b"agent", 1000); os.pwrite(fd, b"agent", size - 2)
def mapped(fd):
    m = mmap.mmap(fd, 0); m[60 << 20:(60 << 20) + 5] = b"agent"; m.flush(); m.close()
def shorter(fd): os.ftruncate(fd, 10 << 20); os.ftruncate(fd, size)
def append(fd): os.lseek(fd, 0, 2); os.write(fd, b"agent")
def again(fd): os.close(os.open("f", os.O_WRONLY | os.O_TRUNC)); os.write(fd, b"agent")
for what in sys.argv[1:]:
    fd = os.open("f", os.O_RDWR)
    locals()[what](fd)
    os.close(fd)
`
	all := []string{"again", "pwrite mapped shorter append", "pwrite", "mapped", "shorter", "append"}
	for _, what := range all[:need.Rounds("SCOPEFS_TEST_HISTORY_LARGE", 2, len(all))] {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			p := newProject(t, 1234)
			p.host("dd if=/dev/urandom of=f bs=1M count=66 status=none; touch -d @1000 f")
			sum := p.host("sha256sum f; stat -c %Y f")
			args := append([]string{"run", "--dir", ".", "--changes", "kept", "--", "python3", "-c", python}, strings.Fields(what)...)
			o := p.scopefs(args...)
			require.Zero(t, o.Code, o.Stderr)
			after := p.host("sha256sum f")
			o = p.scopefs("changes", "-p")
			assert.Zero(t, o.Code, o.Stderr)
			o = p.scopefs("undo", "--session", "last")
			assert.Zero(t, o.Code, o.Stdout+o.Stderr)
			assert.Equal(t, sum, p.host("sha256sum f; stat -c %Y f"))
			o = p.scopefs("redo")
			assert.Zero(t, o.Code, o.Stdout+o.Stderr)
			assert.Equal(t, after, p.host("sha256sum f"))
		})
	}
}

// TestUnkept: what cannot be kept is refused, and the log says why; `unkept: allow` lets it happen, and lists it.
func TestUnkept(t *testing.T) {
	p := newProject(t, 1234)
	p.host("echo v1 >f; for i in $(seq 1 1100); do ln f g$i; done")
	o := p.run("rm g*; echo status $?", "")
	assert.Contains(t, o.Stdout, "status 1\n")
	assert.Contains(t, o.Stderr, "Too many links")
	o = p.scopefs("audit", "--dir", ".", "--denied")
	assert.Contains(t, o.Stdout, "history: not kept: the history has 1000 of its names", fmt.Sprint(o))
}

// TestCheckpointWhileOpen: an undo to a checkpoint takes back what a program has written since by a descriptor that it had open.
func TestCheckpointWhileOpen(t *testing.T) {
	k := keep(t, map[string]string{"a": "view: {changes: kept}"})
	f, err := os.Create(k.View("a", "f"))
	require.NoError(t, err)
	_, err = f.WriteString("before")
	require.NoError(t, err)
	k.checkpoint("a", "p")
	_, err = f.WriteString(" and after")
	require.NoError(t, err)
	assert.Equal(t, []string{"conflict: f: a program has it open for writing"}, k.undo("a", "p"))
	require.NoError(t, f.Close())
	assert.Empty(t, k.undo("a", "p"))
	text, err := os.ReadFile(k.Scope("a", "f"))
	require.NoError(t, err)
	assert.Equal(t, "before", string(text))
}

// TestHostReplacesNew: the host replaces each file that a program of the view has just made, and the program removes what is there then.
// Each file of the host is kept.
func TestHostReplacesNew(t *testing.T) {
	k := keep(t, map[string]string{"a": "view: {changes: kept}"})
	const rounds = 600
	name := func(dir string, i int) string { return filepath.Join(dir, fmt.Sprint("f", i)) }
	text := func(i int) string { return fmt.Sprintf("of the host %d;", i) }
	go func() {
		for i := range rounds {
			for t.Context().Err() == nil && os.Remove(name(k.Scope("a"), i)) != nil {
			}
			_ = os.WriteFile(name(k.Scope("a"), i), []byte(text(i)), 0o644)
		}
	}()
	for i := range rounds {
		f, err := os.OpenFile(name(k.View("a"), i), os.O_CREATE|os.O_WRONLY, 0o644)
		if err == nil { // the kernel may find that of the host
			require.NoError(t, f.Close())
		}
		require.Eventually(t, func() bool {
			is, _ := os.ReadFile(name(k.View("a"), i))
			return string(is) == text(i) && os.Remove(name(k.View("a"), i)) == nil
		}, time.Minute, 50*time.Microsecond)
	}
	var all strings.Builder
	require.NoError(t, filepath.WalkDir(k.Base+"/history/a", func(name string, d os.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			one, failed := os.ReadFile(name)
			all.Write(one)
			err = failed
		}
		return err
	}))
	lost := 0
	for i := range rounds {
		if !strings.Contains(all.String(), text(i)) {
			lost++
		}
	}
	assert.Zero(t, lost, "of %d", rounds)
}
