package branch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	view "github.com/scopefs/scopefs/fs"
	"github.com/scopefs/scopefs/fs/history"
	"github.com/scopefs/scopefs/fs/hold"
	"github.com/scopefs/scopefs/scope/beneath"
)

// keeping is the history of a fork's layer, in the process that serves the view.
type keeping struct {
	*history.Store
	session atomic.Pointer[string] // of whoever changes something
}

func newKept(t *testing.T, layers *hold.Layers) *keeping {
	top, err := layers.State.Dir("")
	require.NoError(t, err)
	defer top.Close()
	if err := top.Mkdir(hold.KeptName, 0o700); err != unix.EEXIST {
		require.NoError(t, err)
	}
	dir, err := layers.State.Sub(hold.KeptName)
	require.NoError(t, err)
	k := &keeping{}
	k.session.Store(new(string))
	k.Store, _, err = history.Open(layers.Upper, dir, history.Options{Layer: layers, Actor: func(uint32) (history.Actor, error) {
		return history.Actor{Label: history.Label{Session: *k.session.Load()}}, nil
	}})
	require.NoError(t, err)
	return k
}

// undone is the answer to an undo.
type undone struct {
	Steps     []string
	Conflicts []history.Problem
	Unkept    []history.Problem
	Error     string
}

// answer undoes the selection of a text, or names a checkpoint.
func (k *keeping) answer(v *view.View, what, about string) string {
	if what == "checkpoint" {
		_, err := k.Checkpoint(about, "", v.Hooks())
		return fmt.Sprint("done ", err)
	}
	var sel history.Selection
	var u undone
	err := json.Unmarshal([]byte(about), &sel)
	if err == nil {
		hooks := v.Hooks()
		if at, ok := strings.CutPrefix(what, "kill"); ok {
			die := func() { _ = unix.Kill(os.Getpid(), unix.SIGKILL) }
			defer die()
			hooks.Progress = func(done, _ int) {
				if at == fmt.Sprint(done) { // somewhere in the steps that follow
					time.AfterFunc(time.Duration(rand.IntN(600))*time.Microsecond, die)
				}
			}
		}
		var r *history.Result
		if r, err = k.Undo(context.Background(), sel, hooks); r != nil {
			for _, s := range r.Steps {
				if !s.Inner() {
					u.Steps = append(u.Steps, strings.TrimSpace(fmt.Sprint(s.Action, " ", s.Path, " ", s.To)))
				}
			}
			u.Conflicts, u.Unkept = r.Conflicts, r.Unkept
		}
	}
	if nothing, ok := errors.AsType[*history.ErrNothing](err); err != nil && !ok {
		u.Error = err.Error()
	} else if ok && !nothing.Unchanged {
		u.Error = nothing.Why
	}
	text, _ := json.Marshal(u)
	return string(text)
}

// undo has the view undo what a selection means.
func (f *fork) undo(sel history.Selection) (u undone) {
	f.Helper()
	text, err := json.Marshal(sel)
	require.NoError(f, err)
	_, err = fmt.Fprintln(f.to, "undo", string(text))
	require.NoError(f, err)
	line, err := f.from.ReadString('\n')
	require.NoError(f, err)
	require.NoError(f, json.Unmarshal([]byte(line), &u), line)
	return u
}

// undoKilled is undo in a view that is killed soon after it begins a step, or after the undo, and is mounted again.
func (f *fork) undoKilled(step int, sel history.Selection) {
	f.Helper()
	text, err := json.Marshal(sel)
	require.NoError(f, err)
	_, err = fmt.Fprintln(f.to, fmt.Sprint("kill", step), string(text))
	require.NoError(f, err)
	line, err := f.from.ReadString('\n')
	require.Error(f, err, line)
	f.Close()
	require.NoError(f, unix.Unmount(f.merged, unix.MNT_DETACH))
	require.Error(f, f.served.Wait())
	for _, root := range []*beneath.Root{f.layers.Base, f.layers.State, f.layers.Upper, f.layers.Stage} {
		root.Close()
	}
	f.mount()
	f.open()
}

func (f *fork) checkpoint(name string) {
	f.Helper()
	_, err := fmt.Fprintln(f.to, "checkpoint", name)
	require.NoError(f, err)
	line, err := f.from.ReadString('\n')
	require.NoError(f, err)
	require.Equal(f, "done <nil>\n", line)
}

var redo = history.Selection{Undo: true}

// TestUndo: what a client has changed in the layer is taken back, and the directory stays as it is.
func TestUndo(t *testing.T) {
	before := []string{"f=old", "g=other", "d/x=1", "d/y=2", "d/e/z=3", "l->f"}
	for name, c := range map[string]struct {
		do     func(f *fork)
		diff   []string
		steps  []string
		locals []string // of the layer, before the changes
	}{
		"rewrite":   {func(f *fork) { f.make(f.merged, "f=new") }, []string{"changed f"}, []string{"reveal f"}, nil},
		"remove":    {func(f *fork) { f.remove(f.merged, "f") }, []string{"removed f"}, []string{"reveal f"}, nil},
		"remove d":  {func(f *fork) { f.remove(f.merged, "d") }, []string{"removed d", "removed d/e", "removed d/e/z", "removed d/x", "removed d/y"}, nil, nil},
		"move":      {func(f *fork) { f.rename(f.merged, "f", "h") }, []string{"moved f -> h"}, []string{"move h f"}, nil},
		"move over": {func(f *fork) { f.rename(f.merged, "f", "g") }, nil, nil, nil},
		"move d and change": {func(f *fork) {
			f.rename(f.merged, "d", "n")
			f.make(f.merged, "n/x=changed", "n/new=1", "d/y=again")
			f.remove(f.merged, "n/y", "n/e")
		}, nil, nil, nil},
		"save as editors do": {func(f *fork) { f.make(f.merged, "f~=new"); f.rename(f.merged, "f~", "f") }, []string{"changed f"}, nil, nil},
		"write and move":     {func(f *fork) { f.make(f.merged, "f=new"); f.rename(f.merged, "f", "d/f") }, nil, nil, nil},
		"write and remove":   {func(f *fork) { f.make(f.merged, "f=new"); f.remove(f.merged, "f") }, []string{"removed f"}, nil, nil},
		"a directory anew":   {func(f *fork) { f.remove(f.merged, "d"); f.make(f.merged, "d/x=9") }, nil, nil, nil},
		"modes": {func(f *fork) {
			require.NoError(f, os.Chmod(f.merged+"/d", 0o700))
			require.NoError(f, os.Chmod(f.merged+"/f", 0o600))
		}, []string{"mode d", "mode f"}, nil, nil},
		"links":         {func(f *fork) { require.NoError(f, os.Link(f.merged+"/f", f.merged+"/second")) }, nil, nil, nil},
		"exchange":      {func(f *fork) { require.NoError(f, swapNames(f.merged, "f", "d")) }, nil, nil, nil},
		"after changes": {func(f *fork) { f.make(f.merged, "f=two", "own=2"); f.remove(f.merged, "g") }, nil, nil, []string{"f=one", "own=1", "d/own=3"}},
		"moved after changes": {func(f *fork) { f.rename(f.merged, "f", "g"); f.rename(f.merged, "d", "own/d") }, nil, nil,
			[]string{"f=one", "g=one", "own/=", "d/x=4"}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFork(t, before...)
			for _, l := range c.locals {
				f.make(f.merged, strings.TrimSuffix(l, "="))
			}
			base, was, differed := tree(t, f.base), tree(t, f.merged), f.diff()
			f.checkpoint("before")
			c.do(f)
			if c.diff != nil {
				assert.ElementsMatch(t, c.diff, f.diff())
			}
			is, diff := tree(t, f.merged), f.diff()
			u := f.undo(history.Selection{Checkpoint: "before"})
			assert.Empty(t, u.Conflicts)
			assert.Empty(t, u.Unkept)
			assert.Empty(t, u.Error)
			if c.steps != nil {
				assert.Equal(t, c.steps, u.Steps)
			}
			requireMerged(t, was, f.merged, "%q", u.Steps)
			assert.ElementsMatch(t, differed, f.diff())
			u = f.undo(redo)
			assert.Empty(t, u.Conflicts)
			assert.Empty(t, u.Error)
			requireMerged(t, is, f.merged, "redo %q", u.Steps)
			assert.ElementsMatch(t, diff, f.diff())
			f.again()
			requireMerged(t, is, f.merged, "mounted again")
			assert.Empty(t, f.undo(history.Selection{Checkpoint: "before"}).Conflicts)
			requireMerged(t, was, f.merged, "again")
			assert.ElementsMatch(t, differed, f.diff())
			assert.Equal(t, base, tree(t, f.base))
		})
	}
}

func swapNames(dir, a, b string) error {
	return unix.Renameat2(unix.AT_FDCWD, dir+"/"+a, unix.AT_FDCWD, dir+"/"+b, unix.RENAME_EXCHANGE)
}

// TestUndoOthers: what another session or the host has changed since, and what was committed, is a conflict and stays.
func TestUndoOthers(t *testing.T) {
	session := func(name string) history.Selection { return history.Selection{Session: name} }
	for name, c := range map[string]struct {
		since    func(f *fork)
		conflict bool
		f, base  string // the content afterwards
	}{
		"nobody": {func(*fork) {}, false, "old", "old"},
		"another session": {func(f *fork) {
			f.tell("session two")
			f.make(f.merged, "f=theirs")
		}, true, "theirs", "old"},
		"the host":          {func(f *fork) { f.make(f.base, "f=host") }, false, "host", "host"},
		"a commit":          {func(f *fork) { f.commit(Options{}) }, false, "new", "new"},
		"a commit of a new": {func(f *fork) { f.make(f.merged, "g=1"); f.commit(Options{}) }, true, "new", "new"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFork(t, "f=old")
			f.tell("session one")
			f.make(f.merged, "f=new")
			c.since(f)
			u := f.undo(session("one"))
			assert.Empty(t, u.Error)
			assert.Equal(t, c.conflict, len(u.Conflicts) > 0, "%v", u)
			assert.Equal(t, c.f, read(t, f.merged+"/f"))
			assert.Equal(t, c.base, read(t, f.base+"/f"))
		})
	}
}

func read(t *testing.T, path string) string {
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(text)
}

// TestModelUndo makes random changes in a layer and travels between checkpoints: each is as it was, and the directory stays as it is.
func TestModelUndo(t *testing.T) { seeds(t, 25, 200, modelUndo) }

// TestModelUndoFound runs the model with a seed that has found a fault: a redo put back no file that an undo had returned to the history,
// where the directory has another one.
func TestModelUndoFound(t *testing.T) {
	t.Setenv("BRANCH_SEEDS", "30072 30073")
	seeds(t, 1, 1, modelUndo)
}

func modelUndo(t *testing.T, seed uint64, top string) {
	f := newForkAt(t, top, "theirs/")
	random := rand.New(rand.NewPCG(seed, 4))
	host := &player{Rand: random, dir: f.base + "/theirs"}
	base, branch := &player{Rand: random, dir: f.base}, &player{Rand: random, dir: f.merged, next: 1_000_000}
	defer func() {
		if t.Failed() {
			t.Logf("base: %s\nbranch: %s", strings.Join(base.log, ", "), strings.Join(branch.log, ", "))
		}
	}()
	for range 30 {
		base.play()
	}
	thaw := f.frozen()
	require.NoError(t, f.renew())
	thaw()
	type point struct{ tree, diff []string }
	var points []point
	directory := tree(t, f.base)
	for round := range 8 {
		name := fmt.Sprint("c", round)
		branch.log = append(branch.log, "|"+name+"|")
		branch.list()
		points = append(points, point{tree(t, f.merged), f.diff()})
		f.checkpoint(name)
		for range random.IntN(12) {
			branch.play()
			host.play()
		}
		theirs := tree(t, host.dir)
		if random.IntN(3) == 0 {
			branch.log = append(branch.log, "mount")
			f.again()
		}
		if random.IntN(3) == 0 {
			to := random.IntN(len(points))
			now := point{tree(t, f.merged), f.diff()}
			branch.log = append(branch.log, fmt.Sprint("undo c", to))
			sel, u := history.Selection{Checkpoint: fmt.Sprint("c", to)}, undone{}
			if random.IntN(3) == 0 {
				branch.log = append(branch.log, "killed")
				f.undoKilled(random.IntN(6), sel)
				u.Steps = []string{"killed"}
			} else {
				u = f.undo(sel)
			}
			require.Empty(t, append(u.Conflicts, u.Unkept...))
			require.Empty(t, u.Error)
			requireMerged(t, points[to].tree, f.merged, "%q", u.Steps)
			require.ElementsMatch(t, points[to].diff, f.diff(), "%q", u.Steps)
			if len(u.Steps) > 0 && u.Steps[0] != "killed" && random.IntN(2) == 0 {
				branch.log = append(branch.log, "redo")
				u = f.undo(redo)
				require.Empty(t, append(u.Conflicts, u.Unkept...))
				requireMerged(t, now.tree, f.merged, "redo %q", u.Steps)
				require.ElementsMatch(t, now.diff, f.diff(), "redo %q", u.Steps)
			}
		}
		require.Equal(t, directory, tree(t, f.base))
		require.Equal(t, theirs, tree(t, host.dir))
	}
	branch.log = append(branch.log, "undo c0")
	u := f.undo(history.Selection{Checkpoint: "c0"})
	require.Empty(t, append(u.Conflicts, u.Unkept...))
	requireMerged(t, directory, f.merged, "%q", u.Steps)
	require.Empty(t, f.diff(), "%q", u.Steps)
}
