package view

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/integration/harness"
)

// project makes a directory apart from any base.
func project(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", harness.TempPrefix)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, os.RemoveAll(dir)) })
	require.NoError(t, os.Chmod(dir, 0o755))
	return dir
}

// TestDir: the views of two agents are of one directory that lies elsewhere, each with
// rules of its own.
func TestDir(t *testing.T) {
	dir := project(t)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "file"), []byte("1"), 0o644))
	h := harness.LayOut(t, nil)
	h.Define("a", "dir: "+dir)
	h.Define("b", "dir: "+dir+"\nview: {access: read, paths: {secret: hide}}")
	h.Start()
	require.NoError(t, os.WriteFile(h.View("a", "secret"), []byte("2"), 0o644))
	assert.FileExists(t, filepath.Join(dir, "secret"))
	assert.FileExists(t, h.View("b", "file"))
	assert.NoFileExists(t, h.View("b", "secret"))
	assert.ErrorIs(t, os.WriteFile(h.View("b", "file"), nil, 0o644), unix.EACCES)
	assert.NoDirExists(t, h.Scope("a"), "it needs none")
	assert.Contains(t, h.Must("run", "a", "--", "ls"), "secret")
	assert.Contains(t, h.Must("check", "--agent", "a", "file"), "allow")
	_, errs, code := h.Try("up", "a", "--at", filepath.Join(dir, "at"))
	assert.Equal(t, 2, code)
	assert.Contains(t, errs, "is where the agents' files are")
}

// TestDirApart: a dir that holds the definitions, the state or another agent's files, or
// is in them, is refused, by whatever name it is reached.
func TestDirApart(t *testing.T) {
	top := project(t)
	h := harness.LayOut(t, map[string]string{"own": ""})
	mount := func(from, at string) string {
		require.NoError(t, os.MkdirAll(from, 0o755))
		require.NoError(t, os.MkdirAll(at, 0o755))
		require.NoError(t, unix.Mount(from, at, "", unix.MS_BIND, ""))
		t.Cleanup(func() { _ = unix.Unmount(at, unix.MNT_DETACH) })
		return at
	}
	require.NoError(t, os.MkdirAll(filepath.Join(top, "outer", "inner"), 0o755))
	require.NoError(t, os.MkdirAll(filepath.Join(top, "closed"), 0o700))
	require.NoError(t, os.MkdirAll(filepath.Join(top, "shown", "below"), 0o755))
	require.NoError(t, os.Symlink(h.Base, filepath.Join(top, "link")))
	require.NoError(t, os.WriteFile(filepath.Join(top, "file"), nil, 0o644))
	h.Put("scopefs.yaml", "sandbox: {expose: ["+filepath.Join(top, "shown")+"]}")
	for id, c := range map[string]struct{ dir, more, says string }{
		"root":        {"/", "", "choose a directory apart from"}, // the base may be another file system, which it does not hold
		"holds":       {filepath.Dir(h.Base), "", "hold one another: choose a directory apart from the base"},
		"base":        {h.Base, "", "hold one another: choose a directory apart from the base"},
		"scopes":      {filepath.Join(h.Base, "agents"), "", "hold one another: choose a directory apart from the base"},
		"scope":       {h.Scope("own"), "", "hold one another: choose a directory apart from the base"},
		"definitions": {filepath.Join(h.Base, "agents.d"), "", "hold one another: choose a directory apart from the base"},
		"linked":      {filepath.Join(top, "link", "agents.d"), "", "leads through a symbolic link: write " + h.Base},
		"bound":       {mount(filepath.Join(h.Base, "agents.d"), filepath.Join(top, "bound")), "", "hold one another: choose a directory apart from the base"},
		"bound-scope": {mount(h.Scope("own", "sub"), filepath.Join(top, "bound-scope")), "", "hold one another: choose a directory apart from the base"},
		"outer":       {filepath.Join(top, "outer"), "", "of agent inner hold one another: give both the same dir"},
		"inner":       {filepath.Join(top, "outer", "inner"), "", "of agent outer hold one another: give both the same dir"},
		"shown":       {filepath.Join(top, "shown", "below"), "", "apart from what expose shows to every agent"},
		"missing":     {filepath.Join(top, "missing"), "", "no such file or directory: make it, or correct the definition"},
		"file":        {filepath.Join(top, "file"), "", "is no directory: correct the definition"},
		"closed":      {filepath.Join(top, "closed"), "user: 1234", "permission denied: open it to that user, or set user"},
	} {
		h.Define(id, "dir: "+c.dir+"\n"+c.more)
		defer func() {
			got := h.Agent(id)
			assert.Equal(t, "failed", got.State, id)
			assert.Contains(t, got.Error, "dir: ", id)
			assert.Contains(t, got.Error, c.says, id)
			assert.NotContains(t, got.Error, "\n", id)
		}()
	}
	h.Start()
	assert.Equal(t, "mounted", h.Agent("own").State)
}

// TestDirAppears: a dir that is missing when the daemon starts is mounted when it exists.
// When another directory takes its place, the view shows that one; while a link or
// nothing is there, nothing.
func TestDirAppears(t *testing.T) {
	dir := filepath.Join(project(t), "project")
	h := harness.LayOut(t, nil)
	h.Define("a", "dir: "+dir)
	h.Start()
	h.Eventually("it fails", func() bool { return h.Agent("a").State == "failed" })
	_, errs, _ := h.Try("run", "a", "--", "true")
	assert.Equal(t, `scopefs: mount "a": dir: "`+dir+`": no such file or directory: make it, or correct the definition`, strings.TrimSpace(errs))

	make := func(name string) {
		require.NoError(t, os.MkdirAll(dir, 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), nil, 0o644))
	}
	shows := func(name string) func() bool {
		return func() bool {
			_, err := os.Stat(h.View("a", name))
			return err == nil
		}
	}
	make("first")
	h.Eventually("the directory is there", shows("first"))
	assert.Contains(t, h.Must("call", "list_dir", "--agent", "a"), "first")

	require.NoError(t, os.Rename(dir, dir+".old"))
	require.NoError(t, os.Symlink(dir+".old", dir))
	h.Eventually("a link is not followed", func() bool { return h.Agent("a").State == "failed" })
	assert.Contains(t, h.Agent("a").Error, "leads through a symbolic link")
	require.NoError(t, os.Remove(dir))
	make("second")
	h.Eventually("another directory is there", shows("second"))
	assert.NoFileExists(t, h.View("a", "first"))
}

// TestDirOfAnother: the user who owns the directory above an agent's dir replaces the dir by
// a link, to whatever that leads, or mounts a FUSE file system of their own there. No other
// agent is refused because of it.
func TestDirOfAnother(t *testing.T) {
	top := project(t)
	theirs, mine := filepath.Join(top, "theirs", "b"), filepath.Join(top, "mine", "a")
	bin := filepath.Join(top, "mine", "bin")
	for _, dir := range []string{theirs, mine, bin} {
		require.NoError(t, os.MkdirAll(dir, 0o755))
	}
	harness.Executable(t, filepath.Join(bin, "prog"), []byte("#!/bin/sh\necho it runs\n"))
	h := harness.LayOut(t, nil)
	h.Define("a", "dir: "+mine)
	h.Define("b", "dir: "+theirs)
	h.Put("programs.d/prog.yaml", "description: a program")
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	h.Start()
	require.Equal(t, "mounted", h.Agent("b").State)
	starts := func(why string) {
		h.Must("down", "a")
		h.Must("up", "a")
		assert.Equal(t, "mounted", h.Agent("a").State, why)
		assert.Equal(t, "it runs\n", h.Must("run", "--for", "prog", "a"), why)
	}
	require.NoError(t, os.Rename(theirs, theirs+".old"))
	require.NoError(t, os.Symlink(filepath.Dir(mine), theirs))
	starts("a link to what is above the other's")

	require.NoError(t, os.Remove(theirs))
	require.NoError(t, os.Mkdir(theirs, 0o755))
	device, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	t.Cleanup(func() { unix.Close(device) })
	require.NoError(t, unix.Mount("theirs", theirs, "fuse", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=4321,group_id=4321", device)))
	t.Cleanup(func() { _ = unix.Unmount(theirs, unix.MNT_DETACH) })
	starts("a FUSE mount that root may not enter")
}
