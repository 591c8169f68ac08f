package fs

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/fs/fusedev"
	"github.com/scopefs/scopefs/internal/thread"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/beneath"
)

// Recorder records the view's decisions. [*audit.Log] implements it.
type Recorder interface {
	// Record returns once the event is in the log. With an error the client gets
	// EIO, and the operation does not happen.
	Record(ctx context.Context, e audit.Event) error
	// Err returns why the log cannot be written; nil while it can. The view refuses
	// mutations meanwhile.
	Err() error
}

// Options says how a view behaves.
type Options struct {
	Policy      *scope.Policy
	Agent       scope.ID     // in events
	Record      scope.Record // which allowed operations are recorded; the others always are
	Recorder    Recorder
	Passthrough bool           // file data by the kernel alone, where it can: fuse passthrough
	Mediated    bool           // every read and write through the view, uncached
	Timeout     time.Duration  // how long the kernel may keep metadata where Watch tells nothing
	Watch       *beneath.Watch // tells of changes by others; nil: nothing does
	Shared      bool           // others than the view's user come in: the kernel checks modes and ACLs
	XAttrs      bool           // extended attributes; without them the kernel need not ask for one before a write
	Trace       bool           // tell the logger of each request
	Spin        bool           // wait for the next request for a moment before sleeping
	Logger      *slog.Logger
	Limits      Limits

	// Groups tells the supplementary groups of a process. When it is set each
	// operation runs with the caller's ids (identity "caller"), else with the
	// ids of the process.
	Groups func(pid uint32) ([]uint32, error)
}

// Limits bounds what the clients of a view can make it hold. Zero is no limit.
type Limits struct {
	Handles int   // open files and directories; beyond: EMFILE
	Links   int   // names of a file when a client adds one; beyond: EMLINK
	Memory  int64 // bytes that known files take; beyond: ENOMEM, after the kernel was asked to forget some
}

// View serves one scope. Its methods are those of fuse.RawFileSystem.
type View struct {
	root   *beneath.Root
	opt    Options
	policy atomic.Pointer[scope.Policy]
	conn   *fusedev.Conn
	nodes  tree
	files  table

	listings listings
	pruning  pruning

	follower follower
	sweeping atomic.Bool
	began    time.Time

	background sync.WaitGroup // goroutines other than readers
	ended      chan struct{}  // closed when they must end
	unwatched  sync.Once      // it has been told that a directory cannot be watched

	// moves is held for writing while a rename changes where nodes are, and
	// for reading while a node's path is built and walked.
	moves sync.RWMutex
	// turn is the scope's directory, on which all views of the scope lock
	// while what stands at a name becomes a directory or stops to be one. It is
	// opened when it is first needed if the view could not do so at its start: it
	// starts whatever the directory's mode.
	turn   beneath.File
	turned bool       // turn is open
	turns  sync.Mutex // among the threads of this one; guards turn

	nameless thread.Thread // makes files without a name, and gives them one

	noBacking atomic.Bool // the kernel refused passthrough once
}

var _ fuse.RawFileSystem = (*View)(nil)

// New returns a view of root for the mount behind fd, a descriptor of /dev/fuse.
// Both stay the caller's.
func New(root *beneath.Root, fd int, opt Options) (*View, error) {
	if opt.Policy == nil || opt.Recorder == nil {
		return nil, errors.New("a view needs a policy and a recorder")
	}
	st, err := beneath.NewRoot(root.FD()).Object("")
	if err != nil {
		return nil, err
	}
	defer st.Close()
	attr, err := st.Stat()
	if err != nil {
		return nil, err
	}
	if opt.Logger == nil {
		opt.Logger = slog.New(slog.DiscardHandler)
	}
	turn, turnErr := root.Open("", unix.O_RDONLY|unix.O_DIRECTORY, attr.ID())
	v := &View{root: root, opt: opt, turn: turn, turned: turnErr == nil, nameless: thread.Start(), began: time.Now(), ended: make(chan struct{})}
	v.conn = fusedev.NewConn(fd, fuse.NewProtocolServer(v, v.mountOptions()), fusedev.Options{Spin: opt.Spin, Logger: opt.Logger})
	v.policy.Store(opt.Policy)
	v.nodes.init(attr.ID())
	v.nodes.limit, v.nodes.crowd = opt.Limits.Memory, v.prune
	v.files.limit = int64(opt.Limits.Handles)
	v.follower.watch, v.follower.dirs = opt.Watch, map[string]*node{}
	v.noBacking.Store(!opt.Passthrough || opt.Mediated)
	return v, nil
}

// mountOptions are what the view wants of the kernel.
func (v *View) mountOptions() *fuse.MountOptions {
	return &fuse.MountOptions{
		Logger:        log.New(&lineLogger{v.opt.Logger}, "", 0),
		EnableAcl:     v.opt.Shared,
		DisableSplice: true,
		Debug:         v.opt.Trace,
		MaxBackground: 64,
		MaxWrite:      fusedev.MaxWrite,
		ExtraCapabilities: fuse.CAP_ATOMIC_O_TRUNC | // one request for open(O_TRUNC)
			fuse.CAP_DONT_MASK | // the umask does not apply under a default ACL
			fuse.CAP_HANDLE_KILLPRIV_V2 | // else a getxattr before every write
			fuse.CAP_ASYNC_DIO |
			fuse.CAP_DIRECT_IO_ALLOW_MMAP |
			fuse.CAP_HAS_EXPIRE_ONLY | // a name that is asked again keeps its place
			fuse.CAP_NO_EXPORT_SUPPORT, // no open_by_handle_at(2)
		PanicHandler: func(p any) fuse.Status {
			v.opt.Logger.Error("panic", "what", fmt.Sprint(p))
			return fuse.EIO
		},
	}
}

// Serve answers the kernel's requests until the mount is gone.
func (v *View) Serve() error {
	defer v.OnUnmount()
	settings, err := v.conn.Init()
	if err != nil {
		return err
	}
	if settings.Flags64()&fuse.CAP_PASSTHROUGH == 0 {
		v.noBacking.Store(true)
	}
	if v.follower.watch != nil {
		v.background.Go(v.listen)
	}
	v.conn.Serve()
	close(v.ended)
	if v.follower.watch != nil {
		v.follower.watch.Stop()
	}
	v.background.Wait()
	return nil
}

// Responsive returns when the node table can be used: a view that does not
// return serves nobody any more.
func (v *View) Responsive() {
	v.nodes.mu.RLock()
	defer v.nodes.mu.RUnlock()
}

// SetPolicy makes p hold for the next operation. What it returns makes the
// kernel ask again for the names that it remembers; that may wait for clients
// that wait for answers, and so for what the Recorder says.
func (v *View) SetPolicy(p *scope.Policy) (forget func()) {
	v.policy.Store(p)
	return v.dropNames
}

// String names the file system.
func (v *View) String() string { return "scopefs" }

// SetDebug does nothing: what is worth telling is in the audit log.
func (v *View) SetDebug(bool) {}

// Init is never called: the kernel's first request is answered by Conn.Init.
func (v *View) Init(*fuse.Server) {}

// OnUnmount closes what clients left open.
func (v *View) OnUnmount() {
	v.files.closeAll()
	v.nameless.Stop()
	v.turns.Lock()
	defer v.turns.Unlock()
	if v.turned {
		v.turn.Close()
		v.turned = false
	}
}

// alone waits until no other view of the scope makes or moves directories. A
// scope has more than one where a command runs without the daemon. Where the
// policy is the same everywhere, nothing can be moved past it.
func (v *View) alone() (done func(), err error) {
	if v.policy.Load().Uniform() {
		return func() {}, nil
	}
	v.turns.Lock()
	if !v.turned {
		v.turn, err = v.root.Open("", unix.O_RDONLY|unix.O_DIRECTORY, v.nodes.root.ident)
		v.turned = err == nil
	}
	if err == nil {
		err = v.turn.Lock()
	}
	if err != nil {
		v.turns.Unlock()
		return nil, err
	}
	return func() {
		v.turn.Unlock()
		v.turns.Unlock()
	}, nil
}

// unnamed does what must have the same credentials each time. A caller's are
// made anew for each operation: his files without a name get none.
func (v *View) unnamed(f func() error) error {
	if v.opt.Groups != nil {
		return f()
	}
	return v.nameless.Do(f)
}

// lineLogger turns go-fuse's messages into log records.
type lineLogger struct{ *slog.Logger }

func (l *lineLogger) Write(p []byte) (int, error) {
	l.Warn("fuse", "message", string(p))
	return len(p), nil
}
