// Package usage bounds what agents take: their files, which views count in pages (see package quota), and what stores hold for
// them.
package usage

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/quota"
	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/agents"
)

// The slots of a page. Each branch has one of the others while its view is mounted.
const (
	Main = 0
	Home = 1

	firstBranch = 2
	branches    = quota.Slots - 1 - firstBranch
	stores      = quota.Slots - 1 // the daemon's; views only read it
)

// Pages are those of a daemon's agents. The zero value has none.
type Pages struct {
	mu     sync.Mutex
	all    map[scope.ID]*account
	owners map[scope.ID]scope.ID // whose what an agent has is, if that one has an account
	high   map[scope.ID]bool     // see Alarms
}

// account is what an agent, with its branches, has and may have. It lasts as long as the daemon: a view that starts again has
// what the last one has counted. Pages.mu guards it.
type account struct {
	bytes, files int64       // may be had; 0: no limit
	page         *quota.Page // nil: no view counts
	file         *os.File    // of the page, for views
	used         [quota.Slots]bool
	stores       map[string]quota.Use
	pending      quota.Use // of calls of stores under way
}

// Share is a view's part of a page. A nil *Share bounds nothing.
type Share struct {
	Slot int
	of   *account
}

// create returns a file for a page. A view could otherwise cut it: the next look of the daemon at it would be a SIGBUS.
func create() (*os.File, error) {
	fd, err := unix.MemfdCreate("quota", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "quota")
	if err = f.Truncate(quota.PageSize); err == nil {
		_, err = unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// Define replaces the limits by those of definitions. Views that count have them at once. An agent without a definition keeps
// its own.
func (p *Pages) Define(all map[scope.ID]*agents.Agent) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for id, def := range all {
		bytes, files := def.Limits.Quota()
		if a := p.all[id]; a == nil && bytes+files == 0 {
			continue
		} else if a != nil && a.bytes == bytes && a.files == files {
			continue
		}
		a := p.account(id)
		a.bytes, a.files = bytes, files
		a.publish()
	}
	p.owners = map[scope.ID]scope.ID{}
	for id := range p.all {
		p.owners[id] = id
	}
	for id, def := range all {
		if p.all[def.Branch] != nil {
			p.owners[id] = def.Branch
		}
	}
}

// account returns the account of an agent. The caller holds mu.
func (p *Pages) account(id scope.ID) *account {
	if p.all == nil {
		p.all = map[scope.ID]*account{}
	}
	if p.all[id] == nil {
		p.all[id] = &account{stores: map[string]quota.Use{}}
	}
	return p.all[id]
}

// publish shows the views the limits, and what stores hold. The caller holds mu.
func (a *account) publish() {
	if a.page != nil {
		a.page.SetLimits(a.bytes, a.files)
		a.page.Set(stores, a.stored().Plus(a.pending))
	}
}

// stored returns what stores hold. The caller holds mu.
func (a *account) stored() (sum quota.Use) {
	for _, u := range a.stores {
		sum = sum.Plus(u)
	}
	return sum
}

// use returns what the agent has. Of the page it takes what views say of themselves alone. The caller holds mu.
func (a *account) use() quota.Use {
	sum := a.stored()
	for i := 0; a.page != nil && i < stores; i++ {
		sum = sum.Plus(a.page.Slot(i))
	}
	return sum
}

// OwnerOf returns whose files those of a view are. A branch is its agent's.
func OwnerOf(def *agents.Definition) scope.ID { return cmp.Or(def.Home, def.Branch, def.Name) }

// Join returns a share for a view of an agent, in a slot; -1 is one for a branch. left is the page that a view of the last
// daemon has; nil: there is none. The caller closes left. The share of an agent without limits is nil.
func (p *Pages) Join(id scope.ID, slot int, left *os.File) (*Share, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	of := p.all[id]
	if left != nil {
		of = p.account(id)
	}
	if of == nil || left == nil && of.bytes+of.files == 0 {
		return nil, nil
	}
	if of.page == nil {
		f, err := open(left)
		if err != nil {
			return nil, fmt.Errorf("quota: %w", err)
		}
		if of.page, err = quota.Map(f); err != nil {
			f.Close()
			return nil, err
		}
		of.file = f
		of.publish()
	}
	for i := firstBranch; slot < 0 && i < firstBranch+branches; i++ {
		if !of.used[i] {
			slot = i
		}
	}
	if slot < 0 {
		return nil, fmt.Errorf("quota: %q has %d branches mounted: unmount one", id, branches)
	}
	of.used[slot] = true
	return &Share{slot, of}, nil
}

func open(left *os.File) (*os.File, error) {
	if left == nil {
		return create()
	}
	return Dup(left)
}

// Dup returns another descriptor of a page's file.
func Dup(f *os.File) (*os.File, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "quota"), nil
}

// Leave gives the slot back. What a branch has counts no more: its view is gone.
func (p *Pages) Leave(s *Share) {
	if s == nil || s.Slot < firstBranch {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	s.of.used[s.Slot] = false
	s.of.page.Clear(s.Slot)
}

// File returns the file of the page, which stays open.
func (s *Share) File() *os.File {
	if s == nil {
		return nil
	}
	return s.of.file
}

// Use returns what the agent has and may have; nil: it has no limits. Views write what they count: it is checked to be in
// bounds, and concerns their agent alone.
func (p *Pages) Use(id scope.ID) *api.Quota {
	p.mu.Lock()
	defer p.mu.Unlock()
	a := p.all[id]
	if a == nil || a.bytes+a.files == 0 {
		return nil
	}
	use := a.use()
	return &api.Quota{Bytes: use.Bytes, MaxBytes: a.bytes, Files: use.Files, MaxFiles: a.files, Counting: use.Counting,
		Stores: a.stored().Bytes}
}

// The parts of a limit, in percent, at which an alarm begins and ends.
const (
	HighPart = 90
	lowPart  = 80
)

// Alarms returns the agents that have come near a limit since the last call (Part of HighPart or more), and those that are
// well below since.
func (p *Pages) Alarms() map[scope.ID]*api.Quota {
	p.mu.Lock()
	ids := slices.Collect(maps.Keys(p.all))
	p.mu.Unlock()
	alarms := map[scope.ID]*api.Quota{}
	for _, id := range ids {
		q := p.Use(id)
		if q == nil {
			continue
		}
		p.mu.Lock()
		switch part := q.Part(); {
		case part >= HighPart && !p.high[id]:
			if p.high == nil {
				p.high = map[scope.ID]bool{}
			}
			p.high[id], alarms[id] = true, q
		case part < lowPart && p.high[id]:
			delete(p.high, id)
			alarms[id] = q
		}
		p.mu.Unlock()
	}
	return alarms
}

// Recount has an agent's views count again: another process has changed its files.
func (p *Pages) Recount(id scope.ID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if a := p.all[id]; a != nil && a.page != nil {
		a.page.Recount()
	}
}
