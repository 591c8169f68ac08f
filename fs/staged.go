package fs

import (
	"cmp"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/audit/event"
	"github.com/scopefs/scopefs/fs/fusedev"
	"github.com/scopefs/scopefs/fs/history"
	"github.com/scopefs/scopefs/fs/judge"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/beneath"
)

// staged is the text that clients write in place of a judged file: a copy without a name, with a node of its own. No
// name leads to that node, so what the kernel caches of it is for the writers alone. The file keeps its content until a
// copy of the text that the judge has accepted replaces it: at each close(2), at fsync(2), and when the last writer is
// gone.
//
// The reply to an OPEN cannot name another inode. So the view answers ESTALE when a thread opens a judged file for
// writing, the kernel looks the name up once more in the same thread, and that LOOKUP returns the node of the text
// (do_filp_open in linux/fs/namei.c).
type staged struct {
	file   beneath.File
	kind   scope.GitContent
	at     nameIn          // the name of the judged file
	head   fuse.InHeader   // of the first client
	keep   *history.Writer // of that client
	caller *beneath.Caller // likewise, with Options.Groups

	changed atomic.Bool // since it was judged
	refused atomic.Bool // by the last judgement

	// Guarded by stages.mu. base and ended change under View.moves, too.
	base  beneath.Stat // of the file that has the name
	opens int          // handles
	ended bool         // file is closed
}

// stages has the texts that the clients of a view write. The zero value is empty.
type stages struct {
	some atomic.Int32 // claims and texts: with none, requests do not take mu

	mu     sync.Mutex // nothing waits under it but close(2)
	byName map[nameIn]*staged
	unused []*staged // that no client has opened: its process may have been killed
	claims []claim
}

// claim says that a thread is about to look a name up, to change the file there: a judged one, or one that is about to be copied.
type claim struct {
	pid  uint32 // 0: of a process in no pid namespace below the mount's
	at   nameIn // without a name: any of the file parent
	end  time.Time
	seen bool // the thread has looked the name up
}

const (
	maxClaims = fusedev.MaxRequests
	maxUnused = 16              // texts
	claimTime = 2 * time.Second // between the two OPEN requests of a thread
)

// use locks the stages until the function that it returns is called.
func (s *stages) use() (unlock func()) {
	s.mu.Lock()
	return func() {
		s.some.Store(int32(len(s.claims) + len(s.byName)))
		s.mu.Unlock()
	}
}

// claim gives the thread pid the text of a name at its next LOOKUP. It returns false if the thread had a claim already
// and has not looked the name up: it opens a descriptor anew, by way of /proc.
func (s *stages) claim(pid uint32, at nameIn) bool {
	defer s.use()()
	old, found := s.unclaim(pid, at)
	if found && pid != 0 && !old.seen && time.Now().Before(old.end) {
		return false
	}
	if len(s.claims) == maxClaims {
		s.claims = slices.Delete(s.claims, 0, 1)
	}
	s.claims = append(s.claims, claim{pid: pid, at: at, end: time.Now().Add(claimTime)})
	return true
}

// unclaim removes a claim. The caller holds mu.
func (s *stages) unclaim(pid uint32, at nameIn) (c claim, found bool) {
	i := slices.IndexFunc(s.claims, func(c claim) bool { return c.pid == pid && c.at == at })
	if i < 0 {
		return c, false
	}
	c = s.claims[i]
	s.claims = slices.Delete(s.claims, i, i+1)
	return c, true
}

// claimed reports whether the thread pid has a claim on a name.
func (s *stages) claimed(pid uint32, at nameIn) bool {
	if s.some.Load() == 0 {
		return false
	}
	defer s.use()()
	c, found := s.unclaim(pid, at)
	if found = found && time.Now().Before(c.end); found {
		c.seen = true
		s.claims = append(s.claims, c)
	}
	return found
}

// covers reports whether clients write the file at a name: no reply about it is valid for a time.
func (s *stages) covers(at nameIn) bool {
	if s.some.Load() == 0 {
		return false
	}
	defer s.use()()
	return s.byName[at] != nil
}

// of returns the text that clients write in place of the file now at a name, or nil.
func (s *stages) of(at nameIn, now *beneath.Stat) *staged {
	defer s.use()()
	one := s.byName[at]
	if one == nil || one.base.ID() != now.ID() || one.opens == 0 && !one.copies(now) {
		return nil
	}
	return one
}

// copies reports whether a file is as it was when it was copied. The caller holds stages.mu or View.moves.
func (one *staged) copies(now *beneath.Stat) bool {
	return one.base.ID() == now.ID() && one.base.Size == now.Size && one.base.Mtime == now.Mtime
}

// writes reports whether clients write in place of a file.
func (s *stages) writes(base beneath.FileID) bool {
	if s.some.Load() == 0 {
		return false
	}
	defer s.use()()
	for _, one := range s.byName {
		if one.base.ID() == base {
			return true
		}
	}
	return false
}

// add adds a text. If its name has one of a file that is there no more, that one stays with its handles. The caller
// holds View.moves.
func (s *stages) add(one *staged) {
	defer s.use()()
	if s.byName == nil {
		s.byName = map[nameIn]*staged{}
	}
	if len(s.unused) == maxUnused {
		s.end(s.unused[0])
	}
	s.unused = append(s.unused, one)
	s.byName[one.at] = one
}

// open returns a descriptor of a text. With counts the text lasts until drop after as many calls of closed.
func (s *stages) open(one *staged, counts bool) (f beneath.File, err error) {
	defer s.use()()
	if one.ended {
		return f, beneath.ErrStale
	}
	if f, err = one.file.Dup(); err == nil && counts {
		one.opens++
		s.unused = slices.DeleteFunc(s.unused, func(o *staged) bool { return o == one })
	}
	return f, err
}

// closed reports whether a handle was the last one of a text.
func (s *stages) closed(one *staged) (last bool) {
	defer s.use()()
	one.opens--
	return one.opens == 0
}

// drop ends a text without handles. The caller holds View.moves.
func (s *stages) drop(one *staged) {
	defer s.use()()
	if one.opens == 0 && !one.ended {
		s.end(one)
	}
}

// end closes a text. The caller holds mu and View.moves.
func (s *stages) end(one *staged) {
	one.ended = true
	one.file.Close()
	if s.byName[one.at] == one {
		delete(s.byName, one.at)
	}
	s.unused = slices.DeleteFunc(s.unused, func(o *staged) bool { return o == one })
}

// endAll closes all texts when no client is left.
func (s *stages) endAll() {
	defer s.use()()
	for _, one := range s.byName {
		s.end(one)
	}
}

// judged returns the kind of a file whose content the view judges before it has a name, or zero.
func (v *View) judged(n *node) scope.GitContent {
	policy := v.policy.Load()
	if policy.Uniform() || n.staged.Load() != nil {
		return 0
	}
	rel, ok := v.nodes.strictest(n, policy)
	if !ok {
		return 0
	}
	return policy.File(scope.OpOpenWrite, rel).Judge
}

// claim answers an OPEN for writing that was stale. If the name of the node is that of a judged file, the thread gets
// the text at the LOOKUP which follows.
func (v *View) claim(head *fuse.InHeader) error {
	policy, n := v.policy.Load(), v.nodes.get(head.NodeId)
	if policy.Uniform() || n == nil {
		return beneath.ErrStale
	}
	rel, _ := v.nodes.newest(n)
	at, ok := v.nodes.onlyName(n)
	if !ok || policy.File(scope.OpOpenWrite, rel).Judge == 0 || v.stages.claim(head.Pid, at) {
		return beneath.ErrStale
	}
	return v.refuse(&request{head: head, op: scope.OpOpenWrite}, gitDenial(rel, "opened by a descriptor"), syscall.EACCES)
}

// stage returns the text for the judged file at a place, and makes it if there is none; nil: the file is not judged.
func (v *View) stage(head *fuse.InHeader, p *place) (*staged, error) {
	one := &staged{at: nameIn{p.node, p.name}, head: *head, keep: v.opt.History.Writer(head.Pid)}
	if v.opt.Groups != nil {
		groups, err := v.opt.Groups(head.Pid)
		if err != nil {
			return nil, err
		}
		one.caller = &beneath.Caller{UID: head.Uid, GID: head.Gid, Groups: groups}
	}
	v.moves.Lock()
	defer v.moves.Unlock()
	done, err := v.alone()
	if err != nil {
		return nil, err
	}
	defer done()
	base, ok := v.nodes.newest(p.node)
	if !ok {
		return nil, beneath.ErrStale
	}
	rel := beneath.Join(base, p.name)
	one.kind = v.policy.Load().File(scope.OpOpenWrite, rel).Judge
	one.base, err = v.statAt(&place{dir: p.dir, base: base}, p.name)
	switch {
	case err != nil || !one.base.IsRegular() || one.kind == 0:
		return nil, err
	case v.links(&one.base) > 1:
		return nil, syscall.EACCES // Open has the reason
	case int64(one.base.Size) > judge.Limit(one.kind):
		return nil, syscall.EFBIG
	}
	if other := v.stages.of(one.at, &one.base); other != nil {
		return other, nil
	}
	dir := p.dir
	if v.held(rel) {
		if dir, err = v.hold.Stage.Dir(""); err != nil {
			return nil, err
		}
		defer dir.Close()
	}
	if one.file, err = v.copyText(one.kind, rel, &one.base, dir); err != nil {
		return nil, err
	}
	v.stages.add(one)
	return one, nil
}

// copyText copies the judged file at rel, which has the attributes st, to a file without a name.
func (v *View) copyText(kind scope.GitContent, rel string, st *beneath.Stat, dir beneath.Dir) (f beneath.File, err error) {
	if err := v.opt.Quota.Fits(int64(st.Blocks) * 512); err != nil {
		return f, err
	}
	from, err := v.root.Open(rel, unix.O_RDONLY, st.ID())
	if err != nil {
		return f, err
	}
	defer from.Close()
	if err := from.Access(unix.W_OK); err != nil {
		return f, err
	}
	if f, err = judge.Stage(kind, from, st, dir); err != nil {
		return f, err
	}
	if err = dir.Unlink(scope.StagedGitFile); err != nil {
		f.Close()
	}
	return f, err
}

// lookUpStaged answers the LOOKUP of a claim; false: as without a claim.
func (v *View) lookUpStaged(head *fuse.InHeader, p *place, out *fuse.EntryOut) (done bool, err error) {
	if !v.stages.claimed(head.Pid, nameIn{p.node, p.name}) {
		return false, nil
	}
	one, err := v.stage(head, p)
	if one == nil {
		return err != nil && err != syscall.ENOENT, err
	}
	return true, v.stagedEntry(p, one, out)
}

// stagedEntry fills out with the node of a text.
func (v *View) stagedEntry(p *place, one *staged, out *fuse.EntryOut) error {
	f, err := v.stages.open(one, false)
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	n := v.nodes.byIdentity(st.ID())
	if err := v.known(p, p.name, &st, n == nil || n.staged.Load() != one, out); err != nil {
		return err
	}
	v.nodes.get(out.NodeId).staged.Store(one)
	return nil
}

// createStaged opens a text in place of the file f that was just created, and closes f.
func (v *View) createStaged(p *place, f beneath.File, in *fuse.CreateIn, out *fuse.CreateOut) error {
	if st, err := f.Stat(); err == nil {
		v.opt.Quota.Added(&st)
	}
	f.Close()
	one, err := v.stage(&in.InHeader, p)
	if err == nil && one == nil {
		err = beneath.ErrStale // another process has replaced the file
	}
	if err == nil {
		err = v.stagedEntry(p, one, &out.EntryOut)
	}
	if err != nil {
		v.files.release()
		return err
	}
	if err = v.openStaged(&in.InHeader, v.nodes.get(out.NodeId), int(in.Flags), &out.OpenOut); err != nil {
		v.nodes.forget(out.NodeId, 1)
	}
	return err
}

// openStaged opens a text for a handle that is reserved. Who does not write gets no text.
func (v *View) openStaged(head *fuse.InHeader, n *node, flags int, out *fuse.OpenOut) error {
	one := n.staged.Load()
	unlock := v.stages.use()
	v.stages.unclaim(head.Pid, one.at)
	unlock()
	if _, writes := accessOf(flags); !writes && flags&unix.O_TRUNC == 0 {
		v.files.release()
		return beneath.ErrStale // the thread has not used its claim: it gets the file now
	}
	f, err := v.stages.open(one, true)
	if err != nil {
		v.files.release()
		return err
	}
	if flags&unix.O_TRUNC != 0 {
		if err := v.truncateStaged(one, f, 0); err != nil {
			f.Close()
			v.files.release()
			v.released(one)
			return err
		}
	}
	v.opt.Quota.Grown(f, &n.usage)
	return v.opened(newHandle(f, n, flags), true, out)
}

// truncateStaged sets the size of a text by a descriptor of it.
func (v *View) truncateStaged(one *staged, f beneath.File, size int64) error {
	st, err := f.Stat()
	if err == nil && int64(st.Size) != size {
		err = f.Truncate(size)
		one.changed.Store(true)
	}
	return err
}

// truncateJudged sets the size of the judged file of p by its name. It returns nil if the file has that size, else after
// the change beneath.ErrStale: another file has the name then, and the kernel sends the request again.
func (v *View) truncateJudged(head *fuse.InHeader, p *place, size int64) error {
	if int64(p.stat.Size) == size {
		return nil
	}
	at, ok := v.nodes.onlyName(p.node)
	if !ok {
		return beneath.ErrStale
	}
	named := place{node: at.parent, name: at.name}
	if err := v.openDir(&named); err != nil {
		return err
	}
	defer named.dir.Close()
	one, err := v.stage(head, &named)
	if err != nil || one == nil || v.stages.of(at, &p.stat) != one {
		return cmp.Or(err, beneath.ErrStale)
	}
	f, err := v.stages.open(one, true)
	if err != nil {
		return err
	}
	defer v.released(one)
	defer f.Close()
	if err := v.truncateStaged(one, f, size); err != nil {
		return err
	}
	return cmp.Or(v.settleStaged(head, one, finally), beneath.ErrStale)
}

// moment says at what a text is judged.
type moment uint8

const (
	atClose moment = iota // an empty text is no end: a shell closes a descriptor before it writes to the other one
	atSync                // likewise, and the file is on the disk afterwards
	finally               // the last handle is gone, or the request has the whole text
)

// settleStaged judges a text, if it has changed, and installs it. A refusal is recorded once.
func (v *View) settleStaged(head *fuse.InHeader, one *staged, when moment) error {
	a := request{head: head, op: scope.OpWrite, caller: one.caller}
	return v.as(&a, func() error {
		if err := v.writable(&a); err != nil {
			return err
		}
		rel, err := v.install(one, when)
		return v.outcome(&a, rel, err)
	})
}

// released ends a handle of a text.
func (v *View) released(one *staged) {
	if !v.stages.closed(one) {
		return
	}
	err := v.settleStaged(&one.head, one, finally)
	if err == nil || one.refused.Load() {
		return
	}
	v.opt.Logger.Warn("the last text of a file is lost", "file", one.at.name, "err", err)
	v.moves.Lock()
	defer v.moves.Unlock()
	v.stages.drop(one)
}

// install gives a copy of a text the name of its file. It does nothing if the text is the judged one, or the name has
// another file by now: the text is that of a file without a name, as on a disk. A text without handles ends.
func (v *View) install(one *staged, when moment) (rel string, err error) {
	v.moves.Lock()
	defer v.moves.Unlock()
	done, err := v.alone()
	if err != nil {
		return "", err
	}
	defer done()
	if when == finally {
		defer v.stages.drop(one)
	}
	f, err := v.stages.open(one, false)
	if errors.Is(err, beneath.ErrStale) {
		return "", nil // another handle was the last one
	}
	if err != nil {
		return "", err
	}
	defer f.Close()
	st, err := f.Stat()
	switch {
	case err != nil:
		return "", err
	case !one.changed.Load() && one.refused.Load():
		return "", answer(syscall.EACCES)
	case !one.changed.Load() || st.Size == 0 && when != finally:
		return "", nil
	}
	one.changed.Store(false) // before the copy: a write from now on is another text
	rel, err = v.installText(one, f, &st, when)
	_, denied := errors.AsType[*unrecorded](err)
	one.refused.Store(denied)
	if err != nil && !denied {
		one.changed.Store(true)
	}
	return rel, err
}

// installText is install of the text in f, which has the attributes st.
func (v *View) installText(one *staged, f beneath.File, st *beneath.Stat, when moment) (rel string, err error) {
	p := place{node: one.at.parent, name: one.at.name, keep: one.keep}
	if err := v.openDirAt(&p); err != nil {
		if errors.Is(err, beneath.ErrStale) {
			err = nil
		}
		return "", err
	}
	defer p.dir.Close()
	rel = p.path()
	p.holds = v.held(rel)
	leave, err := v.holdName(&request{}, &p)
	if err != nil {
		return rel, err
	}
	defer leave()
	now, err := v.stat(&p)
	switch {
	case err == syscall.ENOENT || err == nil && now.ID() != one.base.ID():
		return rel, nil
	case err != nil:
		return rel, err
	case !one.copies(&now):
		return rel, notJudged(rel, errors.New("another process has written it meanwhile"))
	}
	d := v.policy.Load().File(scope.OpOpenWrite, rel)
	if !d.Allow {
		denial := event.Event{Path: rel, Verdict: event.Deny, Rule: d.Rule, RuleKind: string(d.Kind)}
		return rel, &unrecorded{denial, syscall.EACCES}
	}
	old, err := v.root.Object(rel)
	if err != nil {
		return rel, err
	}
	defer old.Close()
	own, err := v.replaceJudged(cmp.Or(d.Judge, one.kind), f, st, &p, &now, when == atSync)
	if err != nil {
		return rel, err
	}
	unlock := v.stages.use()
	one.base = own
	unlock()
	p.node.changes.Add(1)
	v.opt.Quota.Added(&own)
	if left, err := old.Stat(); err == nil && left.Nlink == 0 {
		v.opt.Quota.Freed(&now)
	}
	return rel, nil
}
