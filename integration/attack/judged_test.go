package attack

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/integration/harness"
)

func init() { harness.Roles["leaves"], harness.Roles["maps"] = leaves, maps }

const (
	namedConfig = "[user]\n\tname = me\n"
	brokenIndex = "no index"
)

// judgedPrograms write judged files in place, as programs that are not git do.
var judgedPrograms = map[string]string{
	"libgit2": `: >r/.git/config; test -f r/.git/config; printf '[core]\n\tbare = false\n' >r/.git/config.lock
		mv r/.git/config.lock r/.git/config
		printf '[user]\n\tname = me\n' >>r/.git/config; cat r/.git/config`,
	"go-git and isomorphic-git": `mkdir -p n/.git; printf '[core]\n\tbare = false\n' | dd of=n/.git/config bs=5 status=none; cat n/.git/config
		cp r/.git/index n/.git/index; cmp r/.git/index n/.git/index; cat r/.git/index | tee n/.git/index >/dev/null
		wc -c <n/.git/index`,
	"shells": `echo '[user]' >r/.git/config; echo 'name = me' >>r/.git/config; cat r/.git/config
		: >r/.git/config; printf '[user]\n' >>r/.git/config
		exec 3<>r/.git/config; cat <&3; echo 'name = you' >&3; exec 3>&-; cat r/.git/config
		{ echo '[core]'; cat; } >r/.git/config <<-X
		bare = false
		X
		cat r/.git/config`,
	"coreutils": `truncate -s 7 r/.git/config; cat r/.git/config; truncate -s 0 r/.git/config; stat -c %s r/.git/config; chmod 600 r/.git/config
		echo '[user]' >r/.git/config; stat -c %a r/.git/config
		touch -d @1000000000 r/.git/config; stat -c %Y r/.git/config
		mkdir -p e/.git; touch e/.git/config e/.git/index; stat -c %s e/.git/config e/.git/index
		sed -i s/user/core/ r/.git/config; cat r/.git/config`,
	"one program after the other": `i=0; while [ $i -lt 5 ]; do echo "[user]
		name = $i" >r/.git/config; git -C r config user.email $i; tail -n 2 r/.git/config; i=$((i+1)); done`,
}

// TestJudgedPrograms: programs that write judged files in place find what they find on a disk.
func TestJudgedPrograms(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": `protect: ["*"]`, "kept": "protect: ['*']\nview: {changes: kept}",
		"hold": "protect: ['*']\nview: {paths: {'f': hold}}", "caller": "protect: ['*']\nidentity: caller\nview: {allow_other: true}",
		"mediated": "protect: ['*']\nview: {data: mediated, record: all}"})
	for name, script := range judgedPrograms {
		script = "set -e; git init -q r; cd r; touch f; git add f; cd ..\n" + script
		run := func(dir string) string {
			ctx, cancel := context.WithTimeout(t.Context(), h.Timeout)
			defer cancel()
			cmd := exec.CommandContext(ctx, "sh", "-c", script)
			cmd.Dir, cmd.Env = dir, append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null", "TZ=UTC")
			out, err := cmd.CombinedOutput()
			assert.NoError(t, err, "%s: %s", name, out)
			return string(out)
		}
		want := run(t.TempDir())
		agents := []string{"a"}
		if name == "shells" {
			agents = append(agents, "kept", "hold", "caller", "mediated")
		}
		for _, agent := range agents {
			require.NoError(t, os.RemoveAll(h.View(agent, "r")))
			assert.Equal(t, want, run(h.View(agent)), "%s: %s", agent, name)
			assert.Equal(t, harness.ReadAll(t, h.View(agent, "r/.git/config")), harness.ReadAll(t, h.Scope(agent, "r/.git/config")))
			for _, dir := range []string{"n", "e"} {
				require.NoError(t, os.RemoveAll(h.View(agent, dir)))
			}
		}
	}
}

// TestJudgedSparse: git worktree add in a sparse repository copies the repository's config.worktree in place.
func TestJudgedSparse(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": `protect: ["*"]`})
	out := h.Must("run", "a", "--", "sh", "-ec", `git init -q r; cd r; git config user.name a; git config user.email a@b; mkdir a b; touch a/f b/f
		git add .; git commit -qm 1; git sparse-checkout set a; git worktree add -q ../w -b w 2>&1; ls ../w; git -C ../w sparse-checkout list`)
	assert.Equal(t, "a\na\n", out)
}

// opened is a judged file that is open in a view.
type opened struct {
	t    *testing.T
	h    *harness.Host
	name string // below the view
	fd   int
}

// onJudged makes a repository in a view, with goodConfig.
func onJudged(t *testing.T, front string) (h *harness.Host, open func(flags int) opened) {
	h = harness.NewHost(t, map[string]string{"a": front})
	harness.Plant(t, h.Scope("a"), "d/r/.git/config="+goodConfig, "d/r/.git/objects/")
	return h, func(flags int) opened {
		fd, err := unix.Open(h.View("a", "d/r/.git/config"), flags|unix.O_CLOEXEC, 0o644)
		require.NoError(t, err)
		return opened{t, h, "d/r/.git/config", fd}
	}
}

func (o opened) write(text string) {
	o.t.Helper()
	n, err := unix.Write(o.fd, []byte(text))
	require.NoError(o.t, err)
	require.Len(o.t, text, n)
}

func (o opened) close() string { return harness.ErrnoOf(unix.Close(o.fd)) }

// shows asserts what the view and the directory have.
func (o opened) shows(text string) {
	o.t.Helper()
	assert.Equal(o.t, text, harness.ReadAll(o.t, o.h.View("a", o.name)), "the view")
	assert.Equal(o.t, text, harness.ReadAll(o.t, o.h.Scope("a", o.name)), "the directory")
}

// denied reports whether the log has a refusal of the config.
func (o opened) denied(rule string) bool {
	return o.h.Recorded("a", audit.Event{Op: "write", Path: o.name, Verdict: audit.Deny, Rule: "protect git-config: " + rule})
}

func (o opened) own() string {
	text := make([]byte, 4096)
	n, err := unix.Pread(o.fd, text, 0)
	require.NoError(o.t, err)
	return string(text[:n])
}

// TestJudgedText: a writer has its own text, and everybody else the one that the judge has accepted.
func TestJudgedText(t *testing.T) {
	h, open := onJudged(t, `protect: ["*"]`)

	// Both see what they should, and a close installs.
	f := open(unix.O_RDWR | unix.O_TRUNC)
	f.write(namedConfig)
	assert.Equal(t, namedConfig, f.own())
	f.shows(goodConfig)
	assert.Equal(t, "ok", f.close())
	f.shows(namedConfig)

	// A refusal is the status of each close, and recorded. The descriptors still have the text.
	f = open(unix.O_RDWR | unix.O_TRUNC)
	second := f
	var err error
	second.fd, err = unix.Dup(f.fd)
	require.NoError(t, err)
	f.write(evilConfig)
	assert.Equal(t, "EACCES", f.close())
	f.shows(namedConfig)
	assert.Equal(t, evilConfig, second.own())
	assert.True(t, f.denied("sets core.fsmonitor"))
	require.NoError(t, unix.Ftruncate(second.fd, 0))
	_, err = unix.Pwrite(second.fd, []byte(goodConfig), 0)
	require.NoError(t, err)
	assert.Equal(t, "ok", second.close())
	f.shows(goodConfig)

	// A shell closes a duplicate before it writes: an empty text is no end.
	f = open(unix.O_WRONLY | unix.O_TRUNC)
	second.fd, err = unix.Dup(f.fd)
	require.NoError(t, err)
	assert.Equal(t, "ok", f.close())
	f.shows(goodConfig)
	second.write(namedConfig)
	assert.Equal(t, "ok", second.close())
	f.shows(namedConfig)
	f = open(unix.O_WRONLY | unix.O_TRUNC)
	assert.Equal(t, "ok", f.close())
	h.Eventually("the file is empty", func() bool { return harness.ReadAll(t, h.Scope("a", f.name)) == "" })

	// Two writers have one text, and so has a descriptor that is opened again, but not for reading alone.
	f, second = open(unix.O_WRONLY|unix.O_APPEND), open(unix.O_WRONLY|unix.O_APPEND)
	f.write("[user]\n")
	second.write("\tname = you\n")
	f.write("\temail = x\n")
	_, err = os.ReadFile(fmt.Sprintf("/proc/self/fd/%d", second.fd))
	assert.ErrorIs(t, err, unix.ESTALE)
	third := f
	third.fd, err = unix.Open(fmt.Sprintf("/proc/self/fd/%d", second.fd), unix.O_RDWR, 0)
	require.NoError(t, err)
	again := "[user]\n\tname = you\n\temail = x\n"
	assert.Equal(t, again, third.own())
	assert.Equal(t, "ok", third.close())
	assert.Equal(t, "ok", f.close())
	f.shows(again)
	second.write("\tname = me\n")
	assert.Equal(t, "ok", second.close())
	f.shows(again + "\tname = me\n")

	// fsync and truncate.
	f = open(unix.O_WRONLY | unix.O_TRUNC)
	f.write(goodConfig)
	require.NoError(t, unix.Fsync(f.fd))
	f.shows(goodConfig)
	f.write("\tfsmonitor = x\n")
	assert.Equal(t, "EACCES", harness.ErrnoOf(unix.Fsync(f.fd)))
	f.shows(goodConfig)
	require.NoError(t, unix.Ftruncate(f.fd, 7))
	assert.Equal(t, "ok", f.close())
	f.shows("[core]\n")
	assert.Equal(t, "EACCES", harness.ErrnoOf(unix.Truncate(h.View("a", f.name), 3)))
	assert.Equal(t, "EACCES", harness.ErrnoOf(unix.Truncate(h.View("a", f.name), 1000)))
	f.shows("[core]\n")
	require.NoError(t, unix.Truncate(h.View("a", f.name), 0))
	f.shows("")

	// An open file that is not written stays the same object.
	before, err := os.Stat(h.Scope("a", f.name))
	require.NoError(t, err)
	f = open(unix.O_RDWR)
	assert.Equal(t, "ok", f.close())
	after, err := os.Stat(h.Scope("a", f.name))
	require.NoError(t, err)
	assert.True(t, os.SameFile(before, after))

	// Mode and times are the writer's.
	f = open(unix.O_WRONLY)
	f.write(namedConfig)
	require.NoError(t, unix.Fchmod(f.fd, 0o640))
	require.NoError(t, unix.Futimes(f.fd, []unix.Timeval{{Sec: 1e9}, {Sec: 1e9}}))
	assert.Equal(t, "ok", f.close())
	after, err = os.Stat(h.Scope("a", f.name))
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o640), after.Mode())
	assert.Equal(t, int64(1e9), after.ModTime().Unix())

	// What is too large is refused.
	f = open(unix.O_WRONLY | unix.O_TRUNC)
	for range 3 {
		f.write(strings.Repeat("#", 1<<19))
	}
	assert.Equal(t, "EACCES", f.close())
	f.shows(namedConfig)
	assert.True(t, f.denied("file is larger than 1048576 bytes"))
}

// TestJudgedName: the text is that of the file that had the name when it was opened.
func TestJudgedName(t *testing.T) {
	h, open := onJudged(t, "protect: ['*']\nview: {changes: kept}")
	name := h.View("a", "d/r/.git/config")

	// Another file has the name by now: replaced by a client, removed, replaced by the host.
	f := open(unix.O_WRONLY | unix.O_TRUNC)
	f.write(namedConfig)
	harness.Plant(t, h.View("a"), "d/r/.git/config.lock="+goodConfig)
	require.NoError(t, os.Rename(name+".lock", name))
	assert.Equal(t, "ok", f.close())
	f.shows(goodConfig)
	f = open(unix.O_WRONLY | unix.O_TRUNC)
	f.write(namedConfig)
	require.NoError(t, os.Remove(name))
	assert.Equal(t, "ok", f.close())
	assert.NoFileExists(t, name)
	assert.NoFileExists(t, h.Scope("a", f.name))
	f = open(unix.O_WRONLY | unix.O_CREAT | unix.O_EXCL)
	assert.FileExists(t, h.Scope("a", f.name))
	second := open(unix.O_WRONLY)
	require.NoError(t, os.Remove(name))
	third := open(unix.O_WRONLY | unix.O_CREAT)
	third.write(goodConfig)
	second.write(namedConfig)
	assert.Equal(t, []string{"ok", "ok", "ok"}, []string{f.close(), second.close(), third.close()})
	f.shows(goodConfig)
	f = open(unix.O_WRONLY)
	f.write(namedConfig)
	harness.Plant(t, h.Scope("a"), "new="+evilConfig) // the host may
	require.NoError(t, os.Rename(h.Scope("a", "new"), h.Scope("a", f.name)))
	assert.Equal(t, "ok", f.close())
	h.Eventually("the view shows the host's file", func() bool { return harness.ReadAll(t, name) == evilConfig })
	f.shows(evilConfig)

	// The host writes to the file: the text is not installed over that.
	f = open(unix.O_WRONLY)
	f.write(namedConfig)
	harness.Plant(t, h.Scope("a"), f.name+"="+evilConfig+"#")
	assert.Equal(t, "EACCES", f.close())
	assert.Equal(t, evilConfig+"#", harness.ReadAll(t, h.Scope("a", f.name)))
	assert.True(t, f.denied("another process has written it meanwhile"))
	harness.Plant(t, h.Scope("a"), f.name+"="+evilConfig)

	// What the host's file had may stay.
	f = open(unix.O_WRONLY | unix.O_APPEND)
	f.write("\tbare = true\n")
	assert.Equal(t, "ok", f.close())
	f.shows(evilConfig + "\tbare = true\n")

	// The directory has another path by now.
	f = open(unix.O_WRONLY | unix.O_TRUNC)
	f.write(goodConfig)
	require.NoError(t, os.Rename(h.View("a", "d"), h.View("a", "moved")))
	assert.Equal(t, "ok", f.close())
	f.name = "moved/r/.git/config"
	f.shows(goodConfig)
	require.NoError(t, os.Rename(h.View("a", "moved"), h.View("a", "d")))

	// A file with several names is not written: the others would keep the old text.
	require.NoError(t, os.Link(h.Scope("a", "d/r/.git/config"), h.Scope("a", "second")))
	_, err := os.OpenFile(name, os.O_WRONLY, 0)
	assert.ErrorIs(t, err, os.ErrPermission)
	several := audit.Event{Op: "open-write", Path: "d/r/.git/config", Verdict: audit.Deny, Rule: "protect git-config: has several names"}
	assert.True(t, h.Recorded("a", several))
	require.NoError(t, os.Remove(h.Scope("a", "second")))

	// One that the writer may not write is not, either.
	require.NoError(t, os.Chmod(h.Scope("a", "d/r/.git/config"), 0o444))
	if os.Geteuid() != 0 {
		_, err = os.OpenFile(name, os.O_WRONLY, 0)
		assert.ErrorIs(t, err, os.ErrPermission)
	}
	assert.NoFileExists(t, h.Scope("a", "d/r/.git/.scopefs-config"))
}

// TestJudgedLayers: a text that was written in place is kept, held and committed as a file that was renamed there.
func TestJudgedLayers(t *testing.T) {
	h := harness.LayOut(t, map[string]string{
		"kept": "protect: ['*']\nview: {changes: kept}", "held": "protect: ['*']\nview: {changes: held}",
		"full": "protect: ['*']\nlimits: {disk: 4MiB}",
	})
	for _, agent := range []string{"kept", "held", "full"} {
		harness.Plant(t, h.Scope(agent), ".git/config="+goodConfig, ".git/index="+brokenIndex)
	}
	h.Start()
	config := func(agent string) string { return harness.ReadAll(t, h.Scope(agent, ".git/config")) }
	write := func(agent string) {
		_, _, code := h.Try("run", agent, "--", "sh", "-c", `printf '[user]\n\tname = me\n' >.git/config; cp /dev/null .git/MERGE_RR
			env echo x >.git/index`)
		assert.NotZero(t, code, agent)
	}
	write("kept")
	assert.Equal(t, namedConfig, config("kept"))
	h.Must("undo", "kept", "--session", "last")
	assert.Equal(t, goodConfig, config("kept"))
	assert.NoFileExists(t, h.Scope("kept", ".git/MERGE_RR"))

	write("held")
	assert.Equal(t, goodConfig, config("held"))
	assert.Equal(t, namedConfig, h.Must("run", "held", "--", "cat", ".git/config"))
	h.Must("commit", "held")
	assert.Equal(t, namedConfig, config("held"))
	for _, agent := range []string{"kept", "held"} {
		assert.Equal(t, brokenIndex, harness.ReadAll(t, h.Scope(agent, ".git/index")))
		assert.NoFileExists(t, h.Scope(agent, ".git/.scopefs-config"))
	}

	// The bytes of a text count, and free when it is gone.
	used := func() int64 { return h.Agent("full").Disk.Bytes }
	h.Eventually("the files are counted", func() bool { return !h.Agent("full").Disk.Counting })
	before := used()
	f, err := os.OpenFile(h.View("full", ".git/index"), os.O_WRONLY|os.O_TRUNC, 0)
	require.NoError(t, err)
	big := make([]byte, 1<<20)
	for err == nil {
		_, err = f.Write(big)
	}
	assert.ErrorIs(t, err, unix.EDQUOT)
	assert.Greater(t, used(), before+2<<20)
	assert.ErrorIs(t, f.Close(), os.ErrPermission)
	h.Eventually("the text is gone", func() bool { return used() == before })
	assert.Equal(t, brokenIndex, harness.ReadAll(t, h.Scope("full", ".git/index")))
	for range 10 { // each replaces the last one
		require.NoError(t, os.WriteFile(h.View("full", ".git/config"), bytes.Repeat([]byte("#"), 1<<20), 0))
	}
}

// TestJudgedEnd: the end of a run names what was refused. The log also has what a mapping wrote after the last close.
func TestJudgedEnd(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": "protect: ['*']\nview: {changes: kept}"})
	harness.Plant(t, h.Scope("a"), ".git/config="+goodConfig, ".git/x.git/config="+strings.Repeat(" ", len(evilConfig)))
	_, errs, _ := h.Try("run", "a", "--", "sh", "-c", `printf '[core]\n\tfsmonitor = x\n' >.git/config`)
	assert.Contains(t, errs, "refused write .git/config: protect git-config: sets core.fsmonitor")
	assert.Equal(t, goodConfig, harness.ReadAll(t, h.Scope("a", ".git/config")))
	require.NoError(t, h.InSandbox("a", "maps", ".git/x.git/config", evilConfig).Run())
	refused := audit.Event{Op: "write", Path: ".git/x.git/config", Verdict: audit.Deny, Rule: "protect git-config: sets core.fsmonitor"}
	h.Eventually("the refusal is recorded", func() bool { return h.Recorded("a", refused) })
	assert.NotContains(t, harness.ReadAll(t, h.Scope("a", ".git/x.git/config")), "fsmonitor")
}

// maps stores a text in a mapping of a file after it has closed the file.
func maps(args []string) error {
	f, err := os.OpenFile(args[0], os.O_RDWR, 0)
	if err != nil {
		return err
	}
	m, err := unix.Mmap(int(f.Fd()), 0, len(args[1]), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	copy(m, args[1])
	return unix.Munmap(m)
}

// leaves writes a text to a file and waits to be killed.
func leaves(args []string) error {
	f, err := os.OpenFile(args[0], os.O_RDWR|os.O_TRUNC, 0)
	if err != nil {
		return err
	}
	if _, err := f.WriteString(args[1]); err != nil {
		return err
	}
	killed := make(chan os.Signal, 1)
	signal.Notify(killed, unix.SIGTERM)
	fmt.Println("written")
	<-killed
	return nil
}

// TestJudgedKilled: what a killed writer has written is judged, and a view that is killed leaves the old text.
func TestJudgedKilled(t *testing.T) {
	h, open := onJudged(t, `protect: ["*"]`)
	write := func(text string) *exec.Cmd {
		cmd := harness.Role("leaves", h.View("a", "d/r/.git/config"), text)
		line := harness.Stream(t, cmd)
		assert.Equal(t, "written", line())
		return cmd
	}
	f := open(unix.O_RDONLY)
	assert.Equal(t, "ok", f.close())
	for text, after := range map[string]string{evilConfig: goodConfig, namedConfig: namedConfig} {
		cmd := write(text)
		f.shows(goodConfig)
		require.NoError(t, cmd.Process.Kill())
		_ = cmd.Wait()
		f.shows(after)
		require.NoError(t, os.WriteFile(h.View("a", f.name), []byte(goodConfig), 0))
	}
	assert.True(t, f.denied("sets core.fsmonitor"))

	// The view outlives the daemon, and so does the text.
	f = open(unix.O_WRONLY | unix.O_TRUNC)
	f.write(namedConfig)
	h.Terminate()
	h.Start()
	assert.Equal(t, "ok", f.close())
	f.shows(namedConfig)
	require.NoError(t, os.WriteFile(h.View("a", f.name), []byte(goodConfig), 0))

	pid := h.ViewPID("a")
	cmd := write(namedConfig)
	require.NoError(t, unix.Kill(pid, unix.SIGKILL))
	h.Eventually("another view serves", func() bool {
		now := h.Agent("a")
		return now.State == "mounted" && now.ViewPID != pid
	})
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	f.shows(goodConfig)
	require.NoError(t, os.WriteFile(h.View("a", f.name), []byte(namedConfig), 0))
	f.shows(namedConfig)
	assert.NoFileExists(t, h.Scope("a", "d/r/.git/.scopefs-config"))
}

// TestAttackJudged: programs that race against the judge get no byte that it has not accepted into a judged file, nor to those
// who read it in the view.
func TestAttackJudged(t *testing.T) {
	h, open := onJudged(t, `protect: ["*"]`)
	harness.Plant(t, h.Scope("a"), "e/r/.git/config="+goodConfig)
	view, scope := h.View("a"), h.Scope("a")
	config := filepath.Join(view, "d/r/.git/config")
	stop := make(chan struct{})
	var all sync.WaitGroup
	attack := func(f func()) {
		all.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					f()
				}
			}
		})
	}
	evil := func(fd int) {
		_, _ = unix.Pwrite(fd, []byte(evilConfig), 0)
	}
	kept := open(unix.O_RDWR) // over all of it
	attack(func() { evil(kept.fd) })
	attack(func() { // writes after the close of a duplicate, and before that
		fd, err := unix.Open(config, unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			return
		}
		second, _ := unix.Dup(fd)
		_, _ = unix.Pwrite(fd, []byte(goodConfig), 0)
		_ = unix.Close(fd)
		evil(second)
		_ = unix.Fsync(second)
		_ = unix.Close(second)
	})
	attack(func() { // stores through a mapping that outlives the descriptor
		fd, err := unix.Open(config, unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			return
		}
		_ = unix.Ftruncate(fd, int64(len(evilConfig)))
		m, err := unix.Mmap(fd, 0, len(evilConfig), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err == nil {
			_ = unix.Close(fd)
			store(m, evilConfig)
			_ = unix.Msync(m, unix.MS_SYNC)
			_ = unix.Munmap(m)
		} else {
			_ = unix.Close(fd)
		}
	})
	attack(func() { _ = harness.Exchange([]string{view + "/d", view + "/e"}) })
	attack(func() { _ = harness.Exchange([]string{view + "/d/r", view + "/e/r"}) })
	attack(func() { // names that a view uses, and descriptors of the text
		for _, name := range []string{view + "/d/r/.git/.scopefs-config", view + "/d/.scopefs-config", fmt.Sprintf("/proc/self/fd/%d", kept.fd)} {
			if fd, err := unix.Open(name, unix.O_RDWR|unix.O_CLOEXEC, 0); err == nil {
				evil(fd)
				_ = unix.Close(fd)
			}
		}
	})
	attack(func() { // renames and removals of the name
		_ = os.WriteFile(config+".lock", []byte(goodConfig), 0o644)
		_ = os.Rename(config+".lock", config)
		_ = unix.Truncate(config, 6)
		_ = os.Remove(config)
		_ = os.WriteFile(config, []byte(evilConfig), 0o644)
	})
	seen := 0
	for range 1500 {
		for _, name := range []string{scope + "/d/r/.git/config", scope + "/e/r/.git/config", config} {
			text, err := mapped(name)
			if err == nil {
				seen++
			}
			if bytes.Contains(text, []byte("fsmonitor")) {
				t.Errorf("%s has %q", name, text)
			}
		}
	}
	close(stop)
	all.Wait()
	kept.close()
	assert.NotZero(t, seen)
	require.NoError(t, filepath.WalkDir(scope, func(name string, _ os.DirEntry, err error) error {
		if filepath.Base(name) == "config" {
			assert.NotContains(t, harness.ReadAll(t, name), "fsmonitor")
		}
		return err
	}))
}

// ambiguousIndex returns an index with one entry: a harmless path for a git that reads object names of SHA-1, and the path to for
// one that reads SHA-256, with a blob of the text that also is returned. to begins with ".git/".
func ambiguousIndex(to, text string) (index []byte, blob string) {
	for i := 0; ; i++ {
		blob = fmt.Sprintf("%s#%d\n", text, i)
		hash := sha256.Sum256(fmt.Appendf(nil, "blob %d\x00%s", len(blob), blob))
		name := string(hash[22:]) + string([]byte{0x80, byte(len(to))}) + to // for SHA-1: the flags of the other entry are in it
		if hash[20]&0x4f != 0 || int(hash[21]) != len(name) || strings.ContainsAny(name[:10], "\x00/") {
			continue
		}
		entry := make([]byte, 40, 128)
		binary.BigEndian.PutUint32(entry[24:], 0o100755)
		entry = append(append(entry, hash[:22]...), name...)
		entry = append(entry, make([]byte, 8-len(entry)%8)...)
		return slices.Concat([]byte("DIRC\x00\x00\x00\x02\x00\x00\x00\x01"), entry, []byte("TEST\x00\x00\x00\x04"), make([]byte, 4+20)), blob
	}
}

// TestAttackIndexFormat: no index is read by git in another format than the one in which it was judged.
func TestAttackIndexFormat(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": `protect: ["*"]`})
	index, blob := ambiguousIndex(".git/hooks/post-index-change", "#!/bin/sh\ntouch planted\n")
	const sha256Config = "[core]\n\trepositoryformatversion = 1\n[extensions]\n\tobjectformat = sha256\n"
	git := func(dir string, args ...string) string {
		cmd := exec.Command("git", append([]string{"-c", "safe.directory=*"}, args...)...)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null")
		out, _ := cmd.CombinedOutput()
		return string(out)
	}
	git(h.Base, "init", "-q", "--object-format=sha256", "made")
	harness.Plant(t, h.Base, "made/f="+blob)
	git(filepath.Join(h.Base, "made"), "hash-object", "-w", "f")
	for how, put := range map[string]func(name, text string) error{
		"in place": func(name, text string) error { return os.WriteFile(name, []byte(text), 0o644) },
		"renamed": func(name, text string) error {
			return errors.Join(os.WriteFile(name+".lock", []byte(text), 0o644), os.Rename(name+".lock", name))
		},
	} {
		for before, removed := range map[string]bool{goodConfig: false, sha256Config: true} {
			r := fmt.Sprintf("%s, removed %v", how, removed)
			require.NoError(t, os.CopyFS(h.Scope("a", r), os.DirFS(filepath.Join(h.Base, "made"))))
			harness.Plant(t, h.Scope("a"), r+"/.git/config="+before)
			config := h.View("a", r, ".git/config")
			if removed {
				assert.ErrorIs(t, put(config, goodConfig), os.ErrPermission, r)
				require.NoError(t, os.Remove(config))
			}
			require.NoError(t, put(h.View("a", r, ".git/index"), string(index)))
			assert.ErrorIs(t, put(config, sha256Config), os.ErrPermission, r)
			said := git(h.Scope("a", r), "restore", ".")
			assert.NoFileExists(t, h.Scope("a", r, ".git/hooks/post-index-change"), "%s: %s", r, said)
		}
	}
}

// store stores a text in a mapping. Another process may truncate the file meanwhile: SIGBUS.
func store(m []byte, text string) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() { _ = recover() }()
	copy(m, text)
}

// mapped returns the text of a file as git reads an index: by a private mapping.
func mapped(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil || st.Size() == 0 {
		return nil, err
	}
	size := min(int(st.Size()), os.Getpagesize())
	m, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ, unix.MAP_PRIVATE)
	if err != nil {
		return nil, err
	}
	defer unix.Munmap(m)
	text := make([]byte, size) // the kernel reads the page: a load of one that was truncated away is SIGBUS
	n, err := unix.Pread(int(f.Fd()), text, 0)
	if err != nil {
		return nil, err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	defer w.Close()
	if k, err := w.Write(m[:min(n, size)]); err == nil {
		_, _ = r.Read(text[:k])
	}
	return text[:n], nil
}
