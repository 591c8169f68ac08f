// Package quota bounds what an agent's files take on their file system.
//
// A [Page] has what an agent uses, in memory that its views share. Each view counts the objects of its own directories:
// [Counter] walks them once, then adds each change that passes the view's [Layer]. A walk begins again each hour, and after
// a refusal: what the host has changed counts from then on.
package quota

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The words of a page: the limits, then what each view uses.
const (
	PageSize = 4096

	limitBytes = 0
	limitFiles = 1
	recounts   = 2 // grows when something other than a view has changed its files

	firstSlot = 8
	slotWords = 8

	pendingWord = 3 // of a slot: bytes of writes under way
	// Slots is how many views an agent has at a time that count.
	Slots = (PageSize/8 - firstSlot) / slotWords
)

// Page is what the views of an agent use together. Several processes map it. A view may write anything into it: what a view
// says concerns its own agent alone.
type Page struct {
	words *[PageSize / 8]atomic.Int64
}

// NewPage returns the page in memory of PageSize bytes, which stays mapped.
func NewPage(memory []byte) *Page {
	_ = memory[PageSize-1]
	return &Page{(*[PageSize / 8]atomic.Int64)(unsafe.Pointer(&memory[0]))}
}

// Map maps the page of a file.
func Map(f *os.File) (*Page, error) {
	st, err := f.Stat()
	if err == nil && st.Size() < PageSize {
		err = errors.New("it is too short")
	}
	if err != nil {
		return nil, fmt.Errorf("page of a quota: %w", err)
	}
	memory, err := unix.Mmap(int(f.Fd()), 0, PageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("page of a quota: %w", err)
	}
	return NewPage(memory), nil
}

// Use is what objects take.
type Use struct {
	Bytes    int64 // allocated by the file system
	Files    int64 // objects of any type
	Counting bool  // the first walk goes on: what it has not seen is missing
}

// SetLimits replaces the limits. 0 is none.
func (p *Page) SetLimits(bytes, files int64) {
	p.words[limitBytes].Store(bytes)
	p.words[limitFiles].Store(files)
}

// Limits returns the limits; 0 is none.
func (p *Page) Limits() (bytes, files int64) {
	return p.words[limitBytes].Load(), p.words[limitFiles].Load()
}

// Use returns what all slots use together.
func (p *Page) Use() (sum Use) {
	for i := range Slots {
		sum = sum.Plus(p.Slot(i))
	}
	return sum
}

// maxWord bounds what counts of a word, so that no sum overflows whatever a view has written.
const maxWord = 1 << 56

func wordOf(w *atomic.Int64) int64 { return min(max(w.Load(), 0), maxWord) }

// Slot returns what a slot uses.
func (p *Page) Slot(i int) Use {
	s := p.slot(i)
	return Use{wordOf(&s[0]), wordOf(&s[1]), s[2].Load() != 0}
}

// Plus returns the sum of two uses.
func (u Use) Plus(other Use) Use {
	return Use{u.Bytes + other.Bytes, u.Files + other.Files, u.Counting || other.Counting}
}

// Pending returns the bytes of writes under way.
func (p *Page) Pending() (sum int64) {
	for i := range Slots {
		sum += wordOf(&p.slot(i)[pendingWord])
	}
	return sum
}

// Recount makes every view walk its directories again.
func (p *Page) Recount() { p.words[recounts].Add(1) }

// Clear forgets what the view of a slot uses.
func (p *Page) Clear(slot int) {
	p.Set(slot, Use{})
	p.slot(slot)[pendingWord].Store(0)
}

func (p *Page) slot(i int) []atomic.Int64 {
	return p.words[firstSlot+i*slotWords:][:slotWords]
}

// Set replaces what a slot uses.
func (p *Page) Set(slot int, u Use) {
	s := p.slot(slot)
	s[0].Store(u.Bytes)
	s[1].Store(u.Files)
	counting := int64(0)
	if u.Counting {
		counting = 1
	}
	s[2].Store(counting)
}

// fits returns EDQUOT if more than what is there and under way would exceed a limit.
func (p *Page) fits(bytes, files int64) error {
	mostBytes, mostFiles := p.Limits()
	use := p.Use()
	use.Bytes += p.Pending()
	if mostBytes > 0 && use.Bytes+bytes > mostBytes || mostFiles > 0 && use.Files+files > mostFiles {
		return syscall.EDQUOT
	}
	return nil
}
