package fs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/audit/event"
	"github.com/scopefs/scopefs/fs/echo"
	"github.com/scopefs/scopefs/scope"
)

// thread is an Echoer whose thread looks up the token and does something.
type thread struct {
	view  *View
	id    uint32
	then  func()
	reply echo.Reply
	err   error
}

func (t *thread) Echo(_ string, r echo.Request, _ <-chan struct{}) (map[string]echo.Reply, error) {
	var out fuse.EntryOut
	t.view.echoes.Lookup(nil, &fuse.InHeader{NodeId: fuse.FUSE_ROOT_ID, Caller: fuse.Caller{Pid: t.id}}, r.Token, &out)
	t.then()
	return map[string]echo.Reply{"box": t.reply}, t.err
}

// recorded is a Recorder that keeps the operations.
type recorded struct {
	nothing
	mu  sync.Mutex
	ops []string
}

func (r *recorded) Record(_ context.Context, e event.Event) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ops = append(r.ops, e.Op+" "+e.Path)
	return nil
}

// TestEchoThread: the kernel gives the id of a thread that repeated changes to another process, which a sandbox can bring about: it may
// kill the thread's process, and has no end of processes. Nothing that the other does is lost without an error, or without a record.
func TestEchoThread(t *testing.T) {
	for name, c := range map[string]struct {
		reply echo.Reply
		err   error
		after fuse.Status
	}{
		"answered":     {after: fuse.OK},
		"ended":        {reply: echo.Reply{Ended: true}, after: fuse.OK},
		"not answered": {err: errors.New("not answered"), after: fuse.EINTR},
	} {
		t.Run(name, func(t *testing.T) {
			base := t.TempDir()
			file := filepath.Join(base, "f")
			require.NoError(t, os.WriteFile(file, []byte("text"), 0o644))
			v, _ := watchedView(t, base)
			records := &recorded{}
			v.opt.Recorder, v.opt.Record = records, scope.RecordWrites
			by := &thread{view: v, id: 77, reply: c.reply, err: c.err}
			v.echoes.init(v, by)
			e := v.echoes.around(v)
			head := fuse.InHeader{NodeId: fuse.FUSE_ROOT_ID, Caller: fuse.Caller{Pid: by.id}}
			var out fuse.EntryOut
			require.Equal(t, fuse.OK, e.Lookup(nil, &head, "f", &out))
			set := func(valid uint32, size uint64, mode uint32) fuse.Status {
				in := fuse.SetAttrIn{SetAttrInCommon: fuse.SetAttrInCommon{InHeader: head, Valid: valid, Size: size, Mode: mode}}
				in.NodeId = out.NodeId
				return e.SetAttr(nil, &in, &fuse.AttrOut{})
			}
			rename := func(from, to string) fuse.Status {
				return e.Rename(nil, &fuse.RenameIn{InHeader: head, Newdir: fuse.FUSE_ROOT_ID}, from, to)
			}
			by.then = func() {
				assert.Equal(t, fuse.OK, set(fuse.FATTR_SIZE, 4, 0))
				assert.Equal(t, fuse.OK, set(fuse.FATTR_MODE, 0, 0o644))
				assert.Equal(t, fuse.EINTR, set(fuse.FATTR_SIZE, 0, 0))
				assert.Equal(t, fuse.EINTR, set(fuse.FATTR_MODE, 0, 0o600))
				assert.Equal(t, fuse.EINTR, set(fuse.FATTR_SIZE|fuse.FATTR_MTIME, 4, 0))
				assert.Equal(t, fuse.EINTR, e.Unlink(nil, &head, "f"))
				assert.Equal(t, fuse.OK, rename("f", "g"))
				assert.Equal(t, fuse.OK, rename("g", "f"))
				assert.Len(t, records.ops, 4, records.ops)
			}
			act := echo.Act{Name: []byte("f"), Modify: true}
			assert.Equal(t, c.err == nil && !c.reply.Ended, v.echoes.send("box", []planned{{Act: act, dir: v.nodes.root}}))
			records.ops = nil
			assert.Equal(t, c.after, set(fuse.FATTR_SIZE, 0, 0))
			st := unix.Stat_t{}
			require.NoError(t, unix.Stat(file, &st))
			assert.Equal(t, c.after.Ok(), st.Size == 0, "the answer is true")
			assert.Equal(t, fuse.OK, rename("f", "g"))
			assert.Contains(t, records.ops, "rename g")
			assert.Equal(t, c.after, e.Unlink(nil, &head, "g"))
		})
	}
}

// TestEchoStuck: however many threads have not answered, a later step of each of them is refused: none is forgotten.
func TestEchoStuck(t *testing.T) {
	base := t.TempDir()
	file := filepath.Join(base, "f")
	require.NoError(t, os.WriteFile(file, []byte("text"), 0o644))
	v, _ := watchedView(t, base)
	by := &thread{view: v, then: func() {}, err: errors.New("not answered")}
	v.echoes.init(v, by)
	e := v.echoes.around(v)
	var out fuse.EntryOut
	require.Equal(t, fuse.OK, e.Lookup(nil, &fuse.InHeader{NodeId: fuse.FUSE_ROOT_ID}, "f", &out))
	const most = 200
	acts := []planned{{Act: echo.Act{Name: []byte("f"), Modify: true}, dir: v.nodes.root}}
	for by.id = 1; by.id <= most; by.id++ {
		require.False(t, v.echoes.send("box", acts))
	}
	truncate := func(thread uint32) fuse.Status {
		in := fuse.SetAttrIn{SetAttrInCommon: fuse.SetAttrInCommon{Valid: fuse.FATTR_SIZE,
			InHeader: fuse.InHeader{NodeId: out.NodeId, Caller: fuse.Caller{Pid: thread}}}}
		return e.SetAttr(nil, &in, &fuse.AttrOut{})
	}
	for id := uint32(1); id <= most; id++ {
		require.Equal(t, fuse.EINTR, truncate(id), id)
		require.Equal(t, fuse.EINTR, e.Unlink(nil, &fuse.InHeader{NodeId: fuse.FUSE_ROOT_ID, Caller: fuse.Caller{Pid: id}}, "f"), id)
	}
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.Equal(t, "text", string(text))

	by.id, by.err = 1, nil // the kernel gave its id to the thread of another batch: the stuck one is no more
	by.then = func() { assert.Equal(t, fuse.EINTR, truncate(1), "the size is not the present one") }
	assert.True(t, v.echoes.send("box", acts))
	assert.Equal(t, fuse.OK, truncate(1))
}

// boxes is an Echoer with one sandbox, in which everything is watched. It fails some requests with acts.
type boxes struct {
	fails int
	acts  [][]echo.Act
}

func (b *boxes) Echo(_ string, r echo.Request, _ <-chan struct{}) (map[string]echo.Reply, error) {
	if len(r.Acts) == 0 {
		return map[string]echo.Reply{"box": {All: true}}, nil
	}
	b.acts = append(b.acts, r.Acts)
	if b.fails--; b.fails >= 0 {
		return nil, errors.New("not answered")
	}
	return map[string]echo.Reply{"box": {}}, nil
}

// TestEchoAgain: what a sandbox did not repeat is repeated with the next look, and so is what was to follow it.
func TestEchoAgain(t *testing.T) {
	base := t.TempDir()
	v, _ := watchedView(t, base)
	by := &boxes{fails: 2}
	v.echoes.init(v, by)
	const most = 3 * echo.MaxActs
	for i := range most {
		name := fmt.Sprint(i)
		require.NoError(t, os.WriteFile(filepath.Join(base, name), nil, 0o644))
		v.echoes.note(v.nodes.root, name, hostChange{names: true})
	}
	v.echoes.note(v.nodes.root, "gone", hostChange{names: true, dir: true})
	for range by.fails + 1 {
		select {
		case <-v.echoes.wake:
			v.echoes.repeat()
		default:
			require.Fail(t, "forgotten")
		}
	}
	seen := map[string]echo.Act{}
	for _, acts := range by.acts[2:] {
		for _, a := range acts {
			seen[string(a.Name)] = a
		}
	}
	assert.Len(t, seen, most+1)
	assert.NotZero(t, seen["0"].Create)
	assert.True(t, seen["gone"].IsDir && seen["gone"].Remove != 0)
	assert.Empty(t, v.echoes.wake)
}
