package sql

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/need"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/share"
	"github.com/scopefs/scopefs/tools"
)

// testPrograms are programs of tests, in the module that has SQLite.
const testPrograms = "github.com/scopefs/scopefs/cmd/scopefs-stores/internal/engine/testdata/"

// program is the engine's program: a static binary, as only that can be confined.
var program string

func TestMain(m *testing.M) { os.Exit(main(m)) }

func main(m *testing.M) int {
	dir, err := os.MkdirTemp("", "engine-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o711); err != nil { // the engine's user executes the program
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	program = filepath.Join(dir, "engine")
	build := exec.Command("go", "build", "-o", program, testPrograms+"engine")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "%v\n%s", err, out)
		return 1
	}
	return m.Run()
}

// agent is a test's agent, with a database of its own.
type agent struct {
	store
	id   scope.ID
	file string
}

// testUser is the user of the engines of these tests.
const testUser = 12345

// newAgent returns an agent with real engines.
func newAgent(t testing.TB, limits Limits, drop bool) agent {
	t.Helper()
	need.Root(t, "an engine makes mounts")
	files := share.File{Dir: filepath.Join(t.TempDir(), "db")}
	start := Exec{Files: files, Program: program, Stderr: os.Stderr, User: func(scope.ID) (uid, gid uint32) { return testUser, testUser }}
	engines := NewEngines(start.Start, limits)
	t.Cleanup(func() { require.NoError(t, engines.Close()) })
	name, err := files.Apply("a", "")
	require.NoError(t, err)
	return agent{store{Options{Engine: engines, Drop: drop}}, "a", name}
}

func (a agent) engines() *Engines { return a.Engine.(*Engines) }

func (a agent) env() tools.Env { return tools.Env{Agent: a.id} }

func (a agent) execSQL(text string, params ...any) (executed, error) {
	var in executeArgs
	if err := json.Unmarshal(arguments(text, params), &in); err != nil {
		return executed{}, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return a.execute(ctx, a.env(), in)
}

func (a agent) querySQL(text string, params ...any) (page, error) {
	var in queryArgs
	if err := json.Unmarshal(arguments(text, params), &in); err != nil {
		return page{}, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return a.query(ctx, a.env(), in)
}

func arguments(text string, params []any) []byte {
	b, _ := json.Marshal(map[string]any{"sql": text, "params": params})
	return b
}

// rows returns a result's rows as JSON.
func rows(t testing.TB, p page, err error) string {
	t.Helper()
	require.NoError(t, err, "%v", errors.Unwrap(err))
	b, err := json.Marshal(p.Shown)
	require.NoError(t, err)
	return string(b)
}

// must runs statements.
func (a agent) must(t testing.TB, statements ...string) {
	t.Helper()
	for _, s := range statements {
		_, err := a.execSQL(s)
		require.NoError(t, err, "%s: %v", s, errors.Unwrap(err))
	}
}
