package fs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/audit/event"
	"github.com/scopefs/scopefs/fs/fusedev"
	"github.com/scopefs/scopefs/fs/history"
	"github.com/scopefs/scopefs/fs/hold"
	"github.com/scopefs/scopefs/fs/listing"
	"github.com/scopefs/scopefs/fs/quota"
	"github.com/scopefs/scopefs/internal/pinned"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/beneath"
)

// Recorder records the view's decisions. [*audit.Log] implements it.
type Recorder interface {
	// Record returns once the event survives the death of this process and of those
	// that write the log. With an error the client gets EIO, and the operation does
	// not happen.
	Record(ctx context.Context, e event.Event) error
	// Err returns why the log cannot be written; nil while it can. The view refuses
	// mutations meanwhile.
	Err() error
}

// Asker asks the operator about what a policy leaves to him.
type Asker interface {
	// Ask files a question. If cancel is nil, it returns at once. Otherwise it waits for the decision for a bounded time. If
	// cancel is closed, it fails with EINTR. When it returns, the view's policy has what was granted.
	Ask(q Question, cancel <-chan struct{}) (granted bool, err error)
}

// ErrOutside is the error of a question of a process that is in no sandbox.
var ErrOutside = errors.New("the process is in no sandbox")

// Question is an operation that needs an approval.
type Question struct {
	Path  string // "" with Whole
	Write bool   // it changes something
	Whole bool   // the view as a whole is closed
	PID   uint32 // the client's process
}

// Options configures a View. Policy and Recorder are required.
type Options struct {
	Policy      *scope.Policy
	Agent       scope.ID     // of events; "" leaves it out
	Record      scope.Record // which allowed operations are recorded; denials always are
	Recorder    Recorder
	Passthrough bool           // the kernel reads and writes files itself, if it can; needs CAP_SYS_ADMIN
	Flags       int            // added to those of each open(2) of a file below: O_DSYNC, say
	Mediated    bool           // every read and write reaches the view; the kernel caches no data
	Remote      bool           // other hosts change the files, too: close(2) waits until they can read what was written
	Patience    time.Duration  // for the file system below to answer what changes nothing; 0: forever
	Timeout     time.Duration  // validity of cached metadata in directories without a watch
	Watch       *beneath.Watch // reports changes by other processes; nil: none. The caller closes it after Serve
	History     *history.Store // keeps what changes destroy; nil: none. The caller closes it after Serve. Not with Groups
	Hold        *hold.Layers   // has what the policy holds; nil: such paths can only be read. Not with Groups
	Whole       bool           // Hold has every change
	Shared      bool           // the mount admits other users: the kernel checks modes and ACLs
	Owner       *Owner         // every file is shown as this user's; nil: as its owner's
	XAttrs      bool           // extended attributes; without them the kernel sends no GETXATTR before a write
	Trace       bool           // log each request
	Spin        bool           // see fusedev.Options
	Logger      *slog.Logger   // nil discards
	Limits      Limits
	Asker       Asker          // decides what the policy leaves to the operator; nil: nobody does
	Echoer      Echoer         // repeats in sandboxes what the host changes, for inotify there; nil: nobody does. Needs Watch
	Gate        bool           // the policy may be Closed; the mount has default_permissions
	Quota       *quota.Counter // what the agent's files may take; nil: unlimited. Not with Passthrough: the kernel would write past it

	// Groups returns the supplementary groups of a process. If it is set, each operation runs with the ids of the client's process,
	// otherwise with the ids of the view's process.
	Groups func(pid uint32) ([]uint32, error)
}

// Owner is a user and group. In a user namespace with one user the ids of others are
// invalid, and the kernel refuses to change files with such ids: inode_permission in
// linux/fs/namei.c. The file system below decides by the real ones.
type Owner struct{ UID, GID uint32 }

// Limits bounds the resources that clients can make a view use. Zero is no limit.
type Limits struct {
	Handles int   // open files; beyond it: EMFILE
	Links   int   // links of a file when a client adds one; beyond it: EMLINK
	Memory  int64 // bytes of the node table; beyond it: ENOMEM, after an attempt to prune the kernel's caches
}

// View serves one scope. It implements fuse.RawFileSystem.
type View struct {
	scope  *beneath.Root
	root   *beneath.Root // scope, below the versions of hold
	opt    Options
	policy atomic.Pointer[scope.Policy]
	conn   *fusedev.Conn
	nodes  tree
	files  table
	hold   *hold.Layers // Options.Hold
	whole  bool         // Options.Whole

	streams  *listing.Streams
	editions atomic.Uint32 // counts changes that concern every directory
	brief    brief
	pruning  pruning

	follower follower
	echoes   echoes
	sweeping atomic.Bool
	began    time.Time

	background sync.WaitGroup // goroutines other than readers
	ended      chan struct{}  // closed when they must end
	unwatched  sync.Once      // logs that a directory cannot be watched

	// moves is held for writing during a rename, and for reading while a path is built
	// from the node table and walked, a link is judged, or the history keeps a name that
	// changes. Under it a request resolves, decides and acts on the scope's files. It must not
	// call the Recorder or Options.Groups: a denial is returned as an *unrecorded.
	moves sync.RWMutex
	stale []staleName // of the step of an undo that holds moves
	// turn is the root directory. Views of one scope lock it with flock(2) while a name
	// becomes a directory or ceases to be one. If the directory's mode keeps New from
	// opening it, the first operation that needs it does. Views of other agents wait for
	// this lock, so the rule of moves holds here, too.
	turn   beneath.File
	turned bool       // turn is open
	turns  sync.Mutex // guards turn and turned; held with the flock

	nameless pinned.Thread // creates files without a name and links them

	locks  locks  // of git
	stages stages // of judged files

	noBacking atomic.Bool // the kernel refused passthrough once
}

var _ fuse.RawFileSystem = (*View)(nil)

// New returns a view of root for the mount of fd, a descriptor of /dev/fuse. Both
// stay the caller's, who closes them after Serve has returned.
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
	v := &View{
		scope: root, root: root, opt: opt, turn: turn, turned: turnErr == nil,
		nameless: pinned.Start(), began: time.Now(), ended: make(chan struct{}), streams: listing.NewStreams(opt.Limits.streams()),
	}
	if opt.Watch != nil {
		v.echoes.init(v, opt.Echoer)
	}
	v.conn = fusedev.NewConn(fd, fuse.NewProtocolServer(v.echoes.around(opt.Quota.Around(v)), v.mountOptions()), fusedev.Options{
		Spin: opt.Spin, Idle: v.streams.Idle, Patience: opt.Patience, Logger: opt.Logger,
	})
	v.policy.Store(opt.Policy)
	if opt.Hold != nil {
		v.hold, v.whole, v.root = opt.Hold, opt.Whole, opt.Hold.View()
		if !v.whole {
			v.hold.Held = v.held
		}
	}
	v.nodes.init(attr.ID())
	v.nodes.limit, v.nodes.crowd = opt.Limits.Memory, v.prune
	v.files.limit = int64(opt.Limits.Handles)
	v.follower.watch, v.follower.dirs = opt.Watch, map[string]*node{}
	v.noBacking.Store(!opt.Passthrough || opt.Mediated)
	return v, nil
}

// mountOptions returns what the view negotiates with the kernel.
func (v *View) mountOptions() *fuse.MountOptions {
	return &fuse.MountOptions{
		Logger:        fusedev.Lines(v.opt.Logger),
		MaxStackDepth: 1,
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
			fuse.CAP_HAS_EXPIRE_ONLY | // expired dentries stay in place
			fuse.CAP_NO_EXPORT_SUPPORT, // no open_by_handle_at(2)
		PanicHandler: func(p any) fuse.Status {
			v.opt.Logger.Error("panic", "what", fmt.Sprint(p))
			return fuse.EIO
		},
	}
}

// Serve performs requests until the file system is unmounted or the connection is
// aborted. When it returns, no goroutine of the view runs and every file is closed.
// Serve must be called once.
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
		v.background.Go(v.followRoot)
		v.background.Go(v.echoes.run)
	}
	v.background.Go(func() { v.opt.Quota.Run(v, v.ended) })
	v.conn.Serve()
	close(v.ended)
	v.brief.end()
	if v.follower.watch != nil {
		v.follower.watch.Stop()
	}
	v.background.Wait()
	if v.follower.watch != nil {
		// The kernel ends a group in two SRCU grace periods, of its marks and of the inodes that have them. One after
		// the other they are short. A process that exits with marks has both at once, and waits for up to 20 ms.
		_ = v.follower.watch.Flush()
	}
	return nil
}

// Responsive returns once it has held the lock of the node table. A view in which it
// blocks is deadlocked.
func (v *View) Responsive() {
	v.nodes.mu.RLock()
	defer v.nodes.mu.RUnlock()
}

// SetPolicy makes p decide from the next operation on. Call forget to invalidate the
// kernel's dentries. It may block on requests in flight, and so on the Recorder.
func (v *View) SetPolicy(p *scope.Policy) (forget func()) {
	v.policy.Store(p)
	v.editions.Add(1)
	return v.dropNames
}

// String names the file system.
func (v *View) String() string { return "scopefs" }

// SetDebug does nothing: Options.Trace logs requests.
func (v *View) SetDebug(bool) {}

// Init does nothing: fusedev.Conn replies to the kernel's first request.
func (v *View) Init(*fuse.Server) {}

// OnUnmount closes the files that clients left open.
func (v *View) OnUnmount() {
	v.closeAll()
	v.stages.endAll()
	v.streams.Drop(0)
	v.nameless.Stop()
	v.turns.Lock()
	defer v.turns.Unlock()
	if v.turned {
		v.turn.Close()
		v.turned = false
	}
}

// alone waits until no other view of the scope creates or moves directories. A scope
// has several views while a command runs without the daemon. With a policy that is
// uniform, alone returns at once: no move can evade it.
func (v *View) alone() (done func(), err error) {
	if v.policy.Load().Uniform() {
		return func() {}, nil
	}
	v.turns.Lock()
	if !v.turned {
		v.turn, err = v.scope.Open("", unix.O_RDONLY|unix.O_DIRECTORY, v.nodes.root.ident())
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
		_ = v.turn.Unlock() // the caller cannot act on an error; closing the file unlocks it, too
		v.turns.Unlock()
	}, nil
}

// unnamed runs f on the thread that creates and links files without a name. linkat(2)
// of such a file needs the credentials that opened it. With Options.Groups each
// operation has credentials of its own, so such a file cannot be linked.
func (v *View) unnamed(f func() error) error {
	if v.opt.Groups != nil {
		return f()
	}
	return v.nameless.Do(f)
}
