package fs

import (
	"context"
	"errors"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/audit/event"
	"github.com/scopefs/scopefs/fs/history"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/beneath"
)

// request is a client's operation on the node head.NodeId or on a name in that directory.
type request struct {
	head   *fuse.InHeader
	op     scope.Op
	name   string
	node   uint64 // instead of head.NodeId, for operations on two nodes
	whole  bool   // a directory moves with its subtree
	light  bool   // on: place.obj is not needed
	nested bool   // within another request, which runs with the caller's ids already
	near   *place // the place of that request; its directory is reused if it is the same

	cancel <-chan struct{} // closed when the client is interrupted; nil: the operation does not wait for an approval

	caller *beneath.Caller // instead of the process head.Pid, which may have ended

	access scope.Access // of the last decision about a path
}

// grants reports whether the operation needs more access than the open handles of the node have: an open, or a change
// of a file that no client has open for writing.
func (v *View) grants(op scope.Op, n *node) bool {
	switch {
	case op == scope.OpOpen || op == scope.OpOpenWrite:
		return true
	case op.Mutates():
		return !v.files.holds(n, true)
	}
	return false
}

func (a *request) nodeID() uint64 {
	if a.node != 0 {
		return a.node
	}
	return a.head.NodeId
}

// place is the object or name that the door resolved: an operation acts on nothing else.
type place struct {
	began int64        // View.now before the attributes were read; in: after the directory is watched
	node  *node        // on: the node; in: the directory
	rel   string       // on: the path at which it was found
	dir   beneath.Dir  // in: the directory
	base  string       // in: the directory's path
	name  string       // in: the name
	obj   beneath.File // on: the object, unless the request is light
	light bool         // on: as in the request
	open  bool         // on: obj is open
	stat  beneath.Stat // on: its attributes; Nlink is without names in the history
	whole bool         // in, for a rename: the name is a directory
	held  bool         // on: found by an open file, not by a name
	holds bool         // in: the name is held
	own   bool         // the object, or dir, is of Hold.Upper
	scope beneath.Dir  // in, with own: the directory by its own name

	keep *history.Writer // of an operation that mutates; nil: nothing is kept
}

// in performs an operation on a name in a directory: it resolves the directory, decides, records, and calls do.
func (v *View) in(a request, do func(*place) error) error {
	return v.as(&a, func() error {
		p := place{node: v.nodes.get(a.nodeID()), name: a.name}
		if p.node == nil {
			return beneath.ErrStale
		}
		if a.near != nil && a.near.node == p.node {
			if p.dir, p.base = a.near.dir, a.near.base; a.near.own {
				p.dir = a.near.scope
			}
		} else {
			if err := v.openDir(&p); err != nil {
				return v.outcome(&a, a.name, err)
			}
			defer p.dir.Close()
		}
		v.follow(p.node, p.dir)
		p.began = v.now()
		if err := beneath.CheckName(a.name); err != nil {
			return v.outcome(&a, p.path(), err)
		}
		if (a.op == scope.OpRename || a.op == scope.OpRenameFrom) && !v.policy.Load().Uniform() {
			st, err := v.statAt(&p, a.name)
			p.whole = err == nil && st.IsDir()
			a.whole = a.whole || p.whole
		}
		if err := v.decideName(&a, &p); err != nil {
			return err
		}
		p.holds = v.whole || v.hold != nil && a.access == scope.Hold
		if newName(a.op) && p.holds && len(p.base)+len(p.name) > history.MaxPath {
			return syscall.ENAMETOOLONG // as where changes are kept: answers have the paths of held changes
		}
		if a.op.Mutates() {
			defer p.node.changes.Add(1) // also after an error, because the kernel keeps its listing then
			p.keep = v.opt.History.Writer(a.head.Pid)
			var leave func()
			err := v.withRoom(a.op, func() (err error) {
				leave, err = v.holdName(&a, &p)
				return err
			})
			if err != nil {
				return err
			}
			defer leave()
		}
		if err := v.withRoom(a.op, func() error { return do(&p) }); err != nil {
			return v.outcome(&a, p.path(), err)
		}
		return nil
	})
}

// withRoom calls do: of a removal again, with the reserve of the history, while the file system is full.
func (v *View) withRoom(op scope.Op, do func() error) error {
	if op == scope.OpUnlink || op == scope.OpRmdir {
		return v.opt.History.WithRoom(do)
	}
	return do()
}

// newName reports whether an operation gives an object a name.
func newName(op scope.Op) bool {
	switch op {
	case scope.OpCreate, scope.OpMkdir, scope.OpMknod, scope.OpSymlink, scope.OpLink, scope.OpRename:
		return true
	}
	return false
}

// path returns the path of the name.
func (p *place) path() string { return beneath.Join(p.base, p.name) }

// on performs an operation on a node. It resolves the node by one of its names or, if it has none, by an open file;
// decides by all its names; records; and calls do.
func (v *View) on(a request, do func(*place) error) error {
	return v.as(&a, func() error {
		p := place{began: v.now(), node: v.nodes.get(a.nodeID()), light: a.light}
		if p.node == nil {
			return beneath.ErrStale
		}
		if err := v.openNode(&p, v.grants(a.op, p.node)); err != nil {
			return v.outcome(&a, p.rel, err)
		}
		defer p.close()
		links := uint64(1)
		if p.stat.IsRegular() {
			links = uint64(p.stat.Nlink)
		}
		if err := v.decideNode(&a, p.node, links); err != nil {
			return err
		}
		if a.op.Mutates() {
			p.keep = v.opt.History.Writer(a.head.Pid)
			switch {
			case p.node.staged.Load() != nil:
				p.keep = nil
			case p.held && p.stat.Nlink == 0:
				p.keep = p.keep.Unnamed(p.node.ident())
			}
			if v.hold != nil {
				if err := v.holdNode(&a, &p); err != nil {
					return err
				}
			}
		}
		return v.outcome(&a, p.rel, do(&p))
	})
}

// by performs an operation on an open file. Open has decided it; by decides again after the policy has changed.
func (v *View) by(head *fuse.InHeader, op scope.Op, fh uint64, do func(*handle) error) error {
	h := v.files.get(fh)
	if h == nil {
		return syscall.EBADF
	}
	a := request{head: head, op: op}
	if policy := v.policy.Load(); h.policy.Load() != policy || v.opt.Record == scope.RecordAll {
		if err := v.decideNode(&a, h.node, 1); err != nil {
			return err
		}
		if op.Mutates() && v.foreignHandle(h) {
			return beneath.ErrStale // it was opened before its name was held
		}
		h.policy.Store(policy)
	} else if err := v.writable(&a); err != nil {
		return err
	}
	err := v.bare(&a, func() error { return do(h) })
	if one := h.node.staged.Load(); one != nil && op.Mutates() {
		one.changed.Store(true)
	}
	if op.Mutates() && h.node.setID.Swap(false) {
		v.conn.InvalidateInode(h.node.id, false) // the kernel caches set-id bits that the change has cleared
	}
	return v.outcome(&a, "", err)
}

// bare runs f, which changes the content of an open file, without CAP_FSETID unless the caller is root. The file
// system below then clears set-id bits as it would for the caller. Only a view with Options.Groups has that
// capability.
func (v *View) bare(a *request, f func() error) error {
	if v.opt.Groups == nil || !a.op.Mutates() || a.head.Uid == 0 {
		return f()
	}
	return beneath.Caller{UID: a.head.Uid, GID: a.head.Gid}.Do(f)
}

// decideName is decide for a name in a directory. It does not build the path when neither the policy nor the record
// needs one.
func (v *View) decideName(a *request, p *place) error {
	policy := v.policy.Load()
	if policy.Uniform() && !v.recorded(a.op) && policy.File(a.op, "").Allow {
		return v.writable(a)
	}
	return v.decide(a, p.path())
}

// decideNode is decide for a node, by the name on which the policy grants least. A node without a name is denied.
func (v *View) decideNode(a *request, n *node, links uint64) error {
	for range maxGrants {
		policy := v.policy.Load()
		rel, ok := v.nodes.strictest(n, policy)
		if !ok {
			return beneath.ErrStale
		}
		if a.op == scope.OpOpenWrite && v.foreign(a.op, rel, n.ident()) {
			return v.outcome(a, rel, notOwn(rel))
		}
		if err := v.decideBy(policy, a, rel, links); err != errGranted {
			return err
		}
	}
	return answer(syscall.EACCES)
}

// errGranted says that the operator has granted what the policy asks about: the operation is decided again, by the new one.
var errGranted = errors.New("granted")

// maxGrants bounds the approvals that one operation needs: one for each name of a file.
const maxGrants = 16

// decide decides an operation on a path, records the decision if it must be recorded, and returns the error of a
// denied operation.
func (v *View) decide(a *request, rel string) (err error) {
	for range maxGrants {
		if err = v.decideBy(v.policy.Load(), a, rel, 1); err != errGranted {
			return err
		}
	}
	return answer(syscall.EACCES)
}

// ask leaves an operation to the operator. One that holds no lock of the kernel waits; others file the question and fail. A closed
// view waits with its root alone, which is the first that a client's walk asks for.
func (v *View) ask(a *request, rel string, d scope.Decision, closed bool) error {
	q := Question{Path: rel, Write: a.op.Mutates(), Whole: closed, PID: a.head.Pid}
	if q.Whole {
		q.Path = ""
	}
	if v.opt.Asker != nil && (!q.Whole || a.cancel != nil) {
		granted, err := v.opt.Asker.Ask(q, a.cancel)
		switch {
		case errors.Is(err, ErrOutside) && closed && a.op == scope.OpStat: // it mounts the view, and sees no more than the root's attributes
			return nil
		case errors.Is(err, syscall.EINTR):
			return answer(syscall.EINTR)
		case err == nil && granted:
			return errGranted
		}
	}
	return v.refuse(a, event.Event{Path: rel, Verdict: event.Deny, Rule: d.Rule, RuleKind: string(d.Kind)}, syscall.EACCES)
}

func (v *View) decideBy(policy *scope.Policy, a *request, rel string, links uint64) error {
	d := policy.Linked(a.op, rel, links)
	a.access = d.Access
	if v.refusesHold(d) && a.op.Mutates() {
		d.Allow = false
	}
	if d.Allow && a.whole {
		if d = policy.Move(rel); !d.Allow && d.Access == scope.Hold && v.hold != nil {
			return syscall.EXDEV // programs then copy
		}
		d.Allow = d.Allow || d.Below // judgeSubtree decides
	}
	if d.Ask {
		return v.ask(a, rel, d, policy.Closed())
	}
	if !d.Allow {
		errno := syscall.EACCES
		if d.Hidden && !a.op.Mutates() {
			errno = syscall.ENOENT
		}
		return v.refuse(a, event.Event{Path: rel, Verdict: event.Deny, Rule: d.Rule, RuleKind: string(d.Kind)}, errno)
	}
	if v.recorded(a.op) && !v.echoes.looks(a.op, a.head.Pid) && v.record(a, event.Event{Path: rel, Verdict: event.Allow, Rule: d.Rule, RuleKind: string(d.Kind)}) != nil {
		return answer(syscall.EIO)
	}
	return v.writable(a)
}

// writable refuses mutations while nothing can be recorded, and new objects without room.
func (v *View) writable(a *request) error {
	if a.op.Mutates() && v.opt.Recorder.Err() != nil {
		return answer(syscall.EIO)
	}
	return v.opt.Quota.May(a.op)
}

// recorded reports whether allowed operations of this kind are recorded.
func (v *View) recorded(op scope.Op) bool {
	switch {
	case op.Mutates():
		return v.opt.Record >= scope.RecordWrites
	case op == scope.OpOpen:
		return v.opt.Record >= scope.RecordOpens
	}
	return v.opt.Record >= scope.RecordAll
}

// unrecorded is a denial that is not recorded yet. It was decided under View.moves or View.alone, where the Recorder
// must not be called. outcome records it after these locks are released and before the reply.
type unrecorded struct {
	event event.Event
	errno syscall.Errno
}

func (u *unrecorded) Error() string { return u.errno.Error() }

// outcome records a violation or an unrecorded denial and returns its errno. It returns other errors unchanged,
// without a record. The caller holds no lock.
func (v *View) outcome(a *request, rel string, err error) error {
	if err == nil {
		return nil
	}
	if denial, ok := errors.AsType[*unrecorded](err); ok {
		return v.refuse(a, denial.event, denial.errno)
	}
	if unkept, ok := errors.AsType[*history.RefusedError](err); ok {
		return v.refuse(a, event.Event{Path: rel, Verdict: event.Deny, Rule: unkept.Error(), RuleKind: string(scope.KindHistory)}, unkept.Errno)
	}
	violation, ok := errors.AsType[*beneath.Violation](err)
	if !ok {
		return err
	}
	return v.refuse(a, event.Event{
		Path: rel, Target: violation.Target, Verdict: event.Violation, Rule: string(violation.Rule), RuleKind: string(scope.KindResolution),
	}, syscall.EACCES)
}

// refuse records a denial and returns errno, or EIO if it cannot be recorded: a daemon that was just killed records
// nothing.
func (v *View) refuse(a *request, e event.Event, errno syscall.Errno) error {
	e.Errno = unix.ErrnoName(errno)
	if v.record(a, e) != nil {
		return answer(syscall.EIO)
	}
	return answer(errno)
}

// record completes an event of a file and records it.
func (v *View) record(a *request, e event.Event) error {
	uid := a.head.Uid
	e.Event, e.Agent, e.Op, e.PID, e.UID = event.KindFile, string(v.opt.Agent), a.op.String(), int(a.head.Pid), &uid
	if e.Path == "" {
		e.Path = "."
	}
	return v.opt.Recorder.Record(context.Background(), e)
}

// as runs f, with the ids of the caller if Options.Groups is set.
func (v *View) as(a *request, f func() error) error {
	if v.opt.Groups == nil || a.nested {
		return f()
	}
	if a.caller != nil {
		return a.caller.Do(f)
	}
	if a.head.Pid == 0 { // the process is in no pid namespace below the mount's
		return syscall.EACCES
	}
	groups, err := v.opt.Groups(a.head.Pid)
	if err != nil {
		return err
	}
	return beneath.Caller{UID: a.head.Uid, GID: a.head.Gid, Groups: groups}.Do(f)
}
