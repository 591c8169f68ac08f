// Package usage keeps the pages that say what agents' files take: see package quota.
package usage

import (
	"errors"
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
	"github.com/scopefs/scopefs/scope/beneath"
)

// The slots of a page. Each branch has one of the others while its view is mounted.
const (
	Main = 0
	Home = 1

	firstBranch = 2
)

// Pages are those of a daemon's agents. The zero value has none.
type Pages struct {
	mu   sync.Mutex
	all  map[scope.ID]*page
	high map[scope.ID]bool // see Alarms
}

// page lasts as long as the daemon: a view that starts again has what the last one has counted.
type page struct {
	*quota.Page
	file *os.File // for views
	used [quota.Slots]bool
}

// Share is a view's part of a page. A nil *Share bounds nothing.
type Share struct {
	Slot int
	of   *page
}

// Map maps the page of a file.
func Map(f *os.File) (*quota.Page, error) {
	st, err := f.Stat()
	if err == nil && st.Size() < quota.PageSize {
		err = errors.New("it is too short")
	}
	if err != nil {
		return nil, fmt.Errorf("page of a quota: %w", err)
	}
	memory, err := unix.Mmap(int(f.Fd()), 0, quota.PageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("page of a quota: %w", err)
	}
	return quota.NewPage(memory), nil
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

// Join returns a share for a view of an agent with these limits, in a slot; -1 is one for a branch. left is the page that a
// view of the last daemon has; nil: there is none. The caller closes left.
func (p *Pages) Join(id scope.ID, bytes, files int64, slot int, left *os.File) (*Share, error) {
	if bytes == 0 && files == 0 {
		return nil, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	of := p.all[id]
	if of == nil {
		f, err := open(left)
		if err != nil {
			return nil, fmt.Errorf("quota: %w", err)
		}
		of = &page{file: f}
		if of.Page, err = Map(f); err != nil {
			f.Close()
			return nil, err
		}
		if p.all == nil {
			p.all = map[scope.ID]*page{}
		}
		p.all[id] = of
	}
	of.SetLimits(bytes, files)
	for i := firstBranch; slot < 0 && i < quota.Slots; i++ {
		if !of.used[i] {
			slot = i
		}
	}
	if slot < 0 {
		return nil, fmt.Errorf("quota: %q has %d branches mounted: unmount one", id, quota.Slots-firstBranch)
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
	s.of.Clear(s.Slot)
}

// File returns the file of the page, which stays open.
func (s *Share) File() *os.File {
	if s == nil {
		return nil
	}
	return s.of.file
}

// Of returns whose files those of a view are, and what that agent may have. A branch is its agent's. all are the definitions
// that are loaded.
func Of(def *agents.Definition, all map[scope.ID]*agents.Agent) (id scope.ID, bytes, files int64) {
	bytes, files = def.Limits.Quota()
	if def.Home != "" {
		return def.Home, bytes, files
	}
	if def.Branch == "" {
		return def.Name, bytes, files
	}
	if of := all[def.Branch]; of != nil {
		bytes, files = of.Limits.Quota()
	}
	return def.Branch, bytes, files
}

// Use returns what the agent has and may have; nil: it has no limits.
func (p *Pages) Use(id scope.ID) *api.Quota {
	p.mu.Lock()
	of := p.all[id]
	p.mu.Unlock()
	if of == nil {
		return nil
	}
	use, q := of.Page.Use(), &api.Quota{}
	q.Bytes, q.Files, q.Counting = use.Bytes, use.Files, use.Counting
	q.MaxBytes, q.MaxFiles = of.Limits()
	return q
}

// NewCounter returns what counts the files of a view, in its process: those of root and of the history of a descriptor. With
// upper root is an overlay, and those of its upper layer count. -1 is none.
func NewCounter(page, slot, upper, history int, root *beneath.Root) (*quota.Counter, error) {
	f := os.NewFile(uintptr(page), "quota")
	defer f.Close()
	mapped, err := Map(f)
	if err != nil {
		return nil, err
	}
	var layer *beneath.Root
	roots := []*beneath.Root{root}
	switch {
	case upper >= 0:
		layer, err = beneath.NewDetached(upper)
		roots[0] = layer
	case history >= 0:
		roots = append(roots, nil)
		roots[1], err = beneath.NewDetached(history)
	}
	if err != nil {
		return nil, err
	}
	c := quota.NewCounter(mapped, slot, layer, roots...)
	c.Start()
	return c, nil
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
	if of := p.all[id]; of != nil {
		of.Recount()
	}
}
