package view

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/fs"
	"github.com/scopefs/scopefs/fs/fusemount"
	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/beneath"
)

func init() { harness.Roles["own"] = own }

// own serves a view and starts a child that works in it, as the package comment of fs says.
func own(args []string) error {
	dir, at, logs := args[0], args[1], args[2]
	policy, err := scope.Compile(scope.PolicySpec{})
	if err != nil {
		return err
	}
	records, err := audit.Open(logs, audit.Options{})
	if err != nil {
		return err
	}
	defer records.Close()
	root, err := beneath.OpenRoot(dir, ".")
	if err != nil {
		return err
	}
	defer root.Close()
	dev, err := fusemount.Mount(at, fusemount.MountOptions{})
	if err != nil {
		return err
	}
	defer dev.Close()
	view, err := fs.New(root, dev.FD(), fs.Options{Policy: policy, Recorder: records, Agent: "a"})
	if err != nil {
		return err
	}
	served := make(chan error, 1)
	go func() { served <- view.Serve() }()
	child := exec.Command("/bin/sh", "-c", `cd "$1" && shift && exec "$@"`, "sh", at, "cat", "note")
	said, err := child.CombinedOutput()
	fmt.Printf("%s", said)
	return errors.Join(err, fusemount.Unmount(at), <-served)
}

// TestOwnView: a program may serve a view and start programs that work in it, with one processor too, if they change their
// directory themselves.
func TestOwnView(t *testing.T) {
	t.Parallel()
	harness.NeedFUSE(t)
	dir, at := t.TempDir(), t.TempDir()
	require.NoError(t, os.WriteFile(dir+"/note", []byte("hello"), 0o644))
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/proc/self/exe", dir, at, t.TempDir())
	cmd.Env = append(os.Environ(), harness.RoleEnv+"=own", "GOMAXPROCS=1")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	defer context.AfterFunc(ctx, func() { _ = unix.Unmount(at, unix.MNT_FORCE); _ = unix.Unmount(at, unix.MNT_DETACH) })()
	require.NoError(t, cmd.Start())
	said, err := io.ReadAll(out)
	assert.NoError(t, err)
	assert.NoError(t, cmd.Wait())
	assert.Equal(t, "hello", string(said))
}
