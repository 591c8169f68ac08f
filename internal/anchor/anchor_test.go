package anchor

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/need"
	"github.com/scopefs/scopefs/internal/oneshot"
)

func TestMain(m *testing.M) {
	if os.Args[0] == Name {
		os.Exit(Main(Take))
	}
	os.Exit(m.Run())
}

// head is a request with the head of a size.
func head(t *testing.T, a config.Anchor, size int64) Request {
	t.Helper()
	a.Name = "x"
	text := fmt.Sprintf("scopefs.log/1\n%d\nAAAA\ndenied 0\n\n— scopefs.log/1 BBBB\n", size)
	return Request{Anchor: a, Head: []byte(text), Size: size, Origin: "scopefs.log/1", Host: "h", State: t.TempDir()}
}

// mounted returns a directory with a file system of its own.
func mounted(t *testing.T, options string) string {
	t.Helper()
	need.Root(t, "it mounts")
	dir := t.TempDir()
	require.NoError(t, unix.Mount("tmpfs", dir, "tmpfs", 0, options))
	t.Cleanup(func() { assert.NoError(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	return dir
}

func give(t *testing.T, r Request) error {
	t.Helper()
	return Give(t.Context(), r)
}

func TestFile(t *testing.T) {
	dir := mounted(t, "size=1m")
	file := filepath.Join(dir, "heads")
	a := config.Anchor{File: file}
	require.NoError(t, give(t, head(t, a, 1)))
	require.NoError(t, give(t, head(t, a, 2)))
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.Equal(t, string(head(t, a, 1).Head)+"\n"+string(head(t, a, 2).Head)+"\n", string(text))

	// The disk fills up. What was cut off stays a line of its own, and the next head is whole.
	fill := filepath.Join(dir, "fill")
	require.Error(t, os.WriteFile(fill, make([]byte, 2<<20), 0o600))
	text = append(text, bytes.Repeat([]byte("\n"), 4096-len(text)-20)...) // 20 bytes are left on the page
	require.NoError(t, os.WriteFile(file, text, 0o600))
	require.ErrorContains(t, give(t, head(t, a, 3)), "no space left")
	require.NoError(t, os.Remove(fill))
	require.NoError(t, give(t, head(t, a, 4)))
	after, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.Equal(t, string(text)+string(head(t, a, 3).Head[:20])+"\n"+string(head(t, a, 4).Head)+"\n", string(after))

	require.NoError(t, os.Symlink(file, dir+"/link"))
	require.NoError(t, unix.Mkfifo(dir+"/fifo", 0o600))
	require.NoError(t, os.Mkdir(dir+"/sub", 0o700))
	require.NoError(t, os.WriteFile(dir+"/two", nil, 0o600))
	require.NoError(t, os.Link(dir+"/two", dir+"/second"))
	for name, c := range map[string]struct {
		change func(r *Request)
		want   string
	}{
		"no directory":        {func(r *Request) { r.File = dir + "/none/heads" }, "no such file"},
		"a link":              {func(r *Request) { r.File = dir + "/link" }, "is a symbolic link"},
		"a FIFO":              {func(r *Request) { r.File = dir + "/fifo" }, "fifo"},
		"a directory":         {func(r *Request) { r.File = dir + "/sub" }, "sub"},
		"two names":           {func(r *Request) { r.File = dir + "/two" }, "is no regular file of one name"},
		"not mounted":         {func(r *Request) { r.File = r.State + "/heads" }, "is on the file system of the log"},
		"an agent's":          {func(r *Request) { r.Private = []string{"/none", dir} }, "which is scopefs's own or an agent's"},
		"by a link":           {func(r *Request) { r.Private, r.File = []string{dir}, r.State+"/way/heads" }, "which is scopefs's own or an agent's"},
		"by the agent's link": {func(r *Request) { r.Private = []string{r.State + "/way"} }, "which is scopefs's own or an agent's"},
	} {
		t.Run(name, func(t *testing.T) {
			r := head(t, a, 5)
			require.NoError(t, os.Symlink(dir, r.State+"/way"))
			c.change(&r)
			require.ErrorContains(t, give(t, r), c.want)
			assert.NoFileExists(t, r.State+"/heads")
			now, err := os.ReadFile(file)
			require.NoError(t, err)
			assert.Equal(t, after, now)
		})
	}
}

// remoteOf makes a bare repository.
func remoteOf(t *testing.T) string {
	t.Helper()
	need.Program(t, "git")
	dir := t.TempDir()
	git(t, dir, "init", "--quiet", "--bare")
	return dir
}

func git(t *testing.T, dir string, words ...string) string {
	t.Helper()
	cmd := exec.Command("git", words...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s: %s", words, out)
	return string(out)
}

func TestGit(t *testing.T) {
	remote := remoteOf(t)
	a := config.Anchor{Git: "file://" + remote}
	first := head(t, a, 1)
	// Nothing that git would execute by settings of its user is executed.
	hostile := t.TempDir()
	t.Setenv("HOME", hostile)
	require.NoError(t, os.MkdirAll(hostile+"/hooks", 0o700))
	for _, hook := range []string{"pre-push", "reference-transaction", "post-commit"} {
		require.NoError(t, os.WriteFile(hostile+"/hooks/"+hook, []byte("#!/bin/sh\ntouch "+hostile+"/executed\n"), 0o700))
	}
	settings := "[core]\n\thooksPath = " + hostile + "/hooks\n\tfsmonitor = touch " + hostile + "/executed\n[push]\n\tgpgSign = true\n"
	require.NoError(t, os.WriteFile(hostile+"/.gitconfig", []byte(settings), 0o600))
	t.Setenv("GIT_CONFIG_PARAMETERS", "'core.hooksPath'='"+hostile+"/hooks'")
	next := func(size int64) Request {
		r := head(t, a, size)
		r.State = first.State
		return r
	}
	for size := range int64(3) {
		require.NoError(t, give(t, next(size+1)))
	}
	assert.NoFileExists(t, hostile+"/executed")
	os.Unsetenv("GIT_CONFIG_PARAMETERS")
	t.Setenv("HOME", t.TempDir())
	const branch = "scopefs.log/1"
	heads := func() string { return git(t, remote, "log", "--format=%B", branch) }
	for size := range int64(3) {
		assert.Contains(t, heads(), string(next(size+1).Head))
	}
	assert.Equal(t, string(next(3).Head), git(t, remote, "show", branch+":head"))

	// The process was killed between the push and the note of it, with a lock of git.
	private := filepath.Join(first.State, "anchors/x.git")
	git(t, private, "update-ref", refKept, refKept+"^")
	require.NoError(t, os.WriteFile(private+"/refs/heads/kept.lock", nil, 0o600))
	require.NoError(t, give(t, next(4)))
	assert.Equal(t, "4\n", git(t, remote, "rev-list", "--count", branch))

	// {state} was lost: the branch grows from where it is.
	lost := head(t, a, 5)
	require.NoError(t, give(t, lost))
	assert.Equal(t, "5\n", git(t, remote, "rev-list", "--count", branch))
	assert.Contains(t, heads(), string(next(1).Head))

	// A remote that refuses keeps what it has.
	hook := remote + "/hooks/pre-receive"
	require.NoError(t, os.MkdirAll(remote+"/hooks", 0o700))
	require.NoError(t, os.WriteFile(hook, []byte("#!/bin/sh\necho no >&2\nexit 1\n"), 0o700))
	refused := head(t, a, 6)
	refused.State = lost.State
	err := give(t, refused)
	require.ErrorContains(t, err, "declined")
	require.NotErrorIs(t, err, ErrFork)
	require.NoError(t, os.Remove(hook))
	require.NoError(t, give(t, refused))

	// Somebody has removed heads, or pushed others: it says so, and pushes nothing more.
	whole := strings.TrimSpace(git(t, remote, "rev-parse", branch))
	for _, change := range [][]string{
		{"update-ref", "refs/heads/" + branch, whole + "~2"}, {"update-ref", "-d", "refs/heads/" + branch},
		{"update-ref", "refs/heads/" + branch, strings.TrimSpace(git(t, remote, "-c", "user.name=x", "-c", "user.email=x@x", "commit-tree", whole+"^{tree}", "-m", "x"))},
	} {
		git(t, remote, change...)
		err := give(t, refused)
		require.ErrorIs(t, err, ErrFork, change)
		require.ErrorContains(t, err, "was left at "+whole[:12])
		git(t, remote, "update-ref", "refs/heads/"+branch, whole)
	}
	require.NoError(t, give(t, refused))

	// None is there, and a host that does not answer.
	away := next(7)
	away.Git = "file://" + remote + "/none"
	require.ErrorContains(t, give(t, away), "no such file")
}

// TestGitPrivate: the hooks of a repository that an agent can write are not executed by its host.
func TestGitPrivate(t *testing.T) {
	remote := remoteOf(t)
	scope := filepath.Dir(remote)
	require.NoError(t, os.MkdirAll(remote+"/hooks", 0o700))
	executed := filepath.Join(t.TempDir(), "executed")
	require.NoError(t, os.WriteFile(remote+"/hooks/pre-receive", []byte("#!/bin/sh\ntouch "+executed+"\n"), 0o700))
	link := filepath.Join(t.TempDir(), "link")
	require.NoError(t, os.Symlink(scope, link))
	for _, place := range []string{remote, link + "/" + filepath.Base(remote)} {
		r := head(t, config.Anchor{Git: "file://" + place}, 1)
		r.Private = []string{scope}
		require.ErrorContains(t, give(t, r), "name a file elsewhere", place)
		assert.NoFileExists(t, executed)
	}
}

// TestGitHuge: a remote does not fill the disk of the log.
func TestGitHuge(t *testing.T) {
	remote, work := remoteOf(t), t.TempDir()
	blob := make([]byte, 2*maxFetched)
	_, _ = rand.Read(blob)
	require.NoError(t, os.WriteFile(work+"/head", blob, 0o600))
	git(t, work, "init", "--quiet", "--initial-branch=x")
	git(t, work, "add", "head")
	git(t, work, "-c", "user.name=x", "-c", "user.email=x@x", "commit", "--quiet", "-m", "x")
	git(t, work, "push", "--quiet", remote, "x")
	r := head(t, config.Anchor{Git: "file://" + remote, Branch: "x"}, 1)
	require.Error(t, give(t, r))
	size := int64(0)
	require.NoError(t, filepath.Walk(r.State, func(_ string, info os.FileInfo, err error) error {
		size += info.Size()
		return err
	}))
	assert.Less(t, size, int64(maxFetched)/2)
}

// hangingMount mounts a file system whose server answers nothing but the first request.
func hangingMount(t *testing.T) (dir string, abort func()) {
	t.Helper()
	need.Root(t, "it mounts")
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		need.Skip(t, "needs /dev/fuse: ", err)
	}
	dir = t.TempDir()
	require.NoError(t, unix.Mount("scopefs-test", dir, "fuse", unix.MS_NOSUID|unix.MS_NODEV, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", fd)))
	aborted := false
	abort = func() {
		if aborted {
			return
		}
		aborted = true
		_ = unix.Unmount(dir, unix.MNT_FORCE) // ends what waits
		_ = unix.Unmount(dir, unix.MNT_DETACH)
		unix.Close(fd)
	}
	t.Cleanup(abort)
	go func() {
		request := make([]byte, 1<<20)
		for first := true; ; first = false {
			n, err := unix.Read(fd, request)
			if err != nil || n < 40 {
				return
			}
			if !first {
				continue
			}
			answer := make([]byte, 16+64) // struct fuse_out_header, struct fuse_init_out: linux/fuse.h
			binary.NativeEndian.PutUint32(answer, uint32(len(answer)))
			copy(answer[8:16], request[8:16])
			binary.NativeEndian.PutUint32(answer[16:], 7)
			binary.NativeEndian.PutUint32(answer[20:], 31)
			binary.NativeEndian.PutUint32(answer[36:], 128<<10) // max_write
			_, _ = unix.Write(fd, answer)
		}
	}()
	return dir, abort
}

// TestHanging: a file system that does not answer holds a process that cannot be killed, and not its caller.
func TestHanging(t *testing.T) {
	dir, abort := hangingMount(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	began := time.Now()
	err := Give(ctx, head(t, config.Anchor{File: dir + "/sub/heads"}, 1))
	assert.Less(t, time.Since(began), Time)
	require.Error(t, err)
	var stuck *oneshot.StuckError
	if assert.ErrorAs(t, err, &stuck) {
		abort()
		select {
		case <-stuck.Ended:
		case <-time.After(time.Minute):
			t.Fatal("the process has not ended")
		}
	}
}

func TestCommand(t *testing.T) {
	got := filepath.Join(t.TempDir(), "got")
	r := head(t, config.Anchor{Command: []string{"/bin/sh", "-c", `cat >"$0"`, got}}, 1)
	require.NoError(t, give(t, r))
	text, err := os.ReadFile(got)
	require.NoError(t, err)
	assert.Equal(t, r.Head, text)
	require.ErrorContains(t, give(t, head(t, config.Anchor{Command: []string{"/bin/sh", "-c", "exit 3"}}, 1)), "run it by hand")
	require.NotErrorIs(t, give(t, head(t, config.Anchor{Command: []string{"/bin/sh", "-c", "exit 3"}}, 1)), ErrFork)
}
