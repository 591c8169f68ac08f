package quota

import (
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/beneath"
)

// Usage is what a Counter has counted of one object: a state, or counted plus the bytes. The zero value has not been looked
// at. Counter.mu guards it.
type Usage struct{ held int64 }

// The states of a Usage.
const (
	unknown int64 = iota
	absent        // known, and not counted: an object of a lower layer
	counted       // and more
	gone    int64 = -1
)

// bytes returns the bytes and objects that a state counts.
func bytesOf(held int64) (bytes, files int64) {
	if held < counted {
		return 0, 0
	}
	return held - counted, 1
}

// Counter counts what one view uses. A nil *Counter bounds nothing. Its methods may be used from any goroutine.
type Counter struct {
	page  *Page
	slot  int
	roots []*beneath.Root // that are counted, with everything below; they share no object but by hard links
	first beneath.Stat    // of the first
	upper *beneath.Root   // of a view that holds every change: what is not there takes nothing of the agent's; nil: another view

	pending  *atomic.Int64 // in the page
	files    atomic.Pointer[Files]
	wake     chan struct{} // an operation was refused: walk
	refusals chan struct{} // likewise, for the history
	changed  chan struct{} // dirty has some

	mu    sync.Mutex          // the walk holds it while it looks at one object
	use   Use                 // as in the page
	walk  *walk               // under way; nil: none
	dirty map[uint64]struct{} // nodes of directories in which names have changed
}

// NewCounter returns a Counter that publishes in a slot of a page what roots have. With upper, which is one of roots, the
// view holds every change.
func NewCounter(page *Page, slot int, upper *beneath.Root, roots ...*beneath.Root) *Counter {
	c := &Counter{
		page: page, slot: slot, pending: &page.slot(slot)[pendingWord], upper: upper, roots: roots,
		wake: make(chan struct{}, 1), refusals: make(chan struct{}, 1), changed: make(chan struct{}, 1), dirty: map[uint64]struct{}{},
	}
	if len(roots) > 0 {
		c.first, _ = roots[0].Stat("") // it has all objects of clients
	}
	return c
}

// slack is how far over the limit an agent may be and still rename and link, in bytes: a directory may grow by that.
const slack = 1 << 20

// May returns EDQUOT if the operation, which the policy allows, makes an object and there is no room for it. Writes are
// bounded by Layer.
func (c *Counter) May(op scope.Op) error {
	if c == nil {
		return nil
	}
	switch op {
	case scope.OpCreate, scope.OpMkdir, scope.OpMknod, scope.OpSymlink:
		return c.refused(c.page.fits(0, 1))
	case scope.OpLink, scope.OpRename:
		return c.refused(c.page.fits(-slack-c.page.Pending(), 0))
	case scope.OpSetXattr:
		return c.refused(c.page.fits(-c.page.Pending(), 0))
	}
	return nil
}

// refused has the files counted again after a refusal: the host may have removed some.
func (c *Counter) refused(err error) error {
	if err != nil {
		for _, to := range []chan struct{}{c.wake, c.refusals} {
			select {
			case to <- struct{}{}:
			default:
			}
		}
	}
	return err
}

// Refusals returns a channel that has a value after a refusal.
func (c *Counter) Refusals() <-chan struct{} {
	if c == nil {
		return nil
	}
	return c.refusals
}

// Fits returns EDQUOT if there is no room for so many bytes in another object.
func (c *Counter) Fits(bytes int64) error {
	if c == nil {
		return nil
	}
	return c.refused(c.page.fits(bytes, 1))
}

// Limits returns the limits; 0 is none.
func (c *Counter) Limits() (bytes, files int64) {
	if c == nil {
		return 0, 0
	}
	return c.page.Limits()
}

// Grown counts what an object of the history takes that nobody else has open. An unknown one is new.
func (c *Counter) Grown(f beneath.File, u *Usage) {
	if c == nil {
		return
	}
	if st, err := f.Stat(); err == nil {
		c.settle(Object{Stat: st, Usage: u, Whole: true}, absent)
	}
}

// Grew counts what an object of the history, which is counted, takes more than before.
func (c *Counter) Grew(f beneath.File, before *beneath.Stat) {
	if c == nil {
		return
	}
	if st, err := f.Stat(); err == nil {
		c.settle(Object{Stat: st, Usage: &Usage{}, Whole: true}, counted+int64(before.Blocks)*512)
	}
}

// Added counts an object that was made beside the view's requests.
func (c *Counter) Added(st *beneath.Stat) {
	if c != nil {
		c.settle(Object{Stat: *st, Usage: &Usage{}, Whole: true}, absent)
	}
}

// Forget makes an object unknown: another one is in its place, which is counted.
func (c *Counter) Forget(u *Usage) {
	if c != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		u.held = unknown
	}
}

// Freed counts an object no more whose last name in the history was removed. st are its attributes before.
func (c *Counter) Freed(st *beneath.Stat) {
	if c == nil || !st.IsDir() && st.Nlink > 1 {
		return
	}
	o := Object{Stat: *st, Usage: &Usage{}}
	if f := c.files.Load(); f != nil {
		if at := (*f).Known(0, st.ID()); at.Usage != nil {
			if at.Open() {
				return // Layer.Release does it
			}
			o.Usage = at.Usage
		}
	}
	c.remove(o, counted+int64(st.Blocks)*512)
}

// reserve takes room for a write of n bytes until done is called. growth returns how many of them the file has no blocks for.
func (c *Counter) reserve(n int64, growth func() int64) (done func(), err error) {
	if c.pending.Add(n); c.page.fits(0, 0) == nil {
		return func() { c.pending.Add(-n) }, nil
	}
	c.pending.Add(-n)
	if n = growth(); n == 0 {
		return func() {}, nil
	}
	if c.pending.Add(n); c.page.fits(0, 0) != nil {
		c.pending.Add(-n)
		return nil, c.refused(syscall.EDQUOT)
	}
	return func() { c.pending.Add(-n) }, nil
}

// held returns what an object takes.
func (c *Counter) held(o *Object) int64 {
	// An open file without a name has been written, or was made: it is in the upper layer.
	if c.upper == nil || o.Whole || o.Stat.Nlink == 0 {
		return counted + int64(o.Stat.Blocks)*512
	}
	st, err := c.upper.Stat(o.Rel)
	if err != nil {
		return absent
	}
	o.Stat.Ino = st.Ino
	return counted + int64(st.Blocks)*512
}

// known reports whether an object was looked at; so counts one that is not there.
func (c *Counter) known(u *Usage) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return u == nil || u.held != unknown
}

// walking reports whether a walk is under way.
func (c *Counter) walking() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.walk != nil
}

// settle counts what an object takes now. One that was not looked at took base.
func (c *Counter) settle(o Object, base int64) {
	now := c.held(&o)
	c.mu.Lock()
	defer c.mu.Unlock()
	before := o.Usage.held
	if before == gone {
		return
	}
	if before == unknown {
		before = base
	}
	if o.Usage.held = now; before != unknown && before != now {
		c.change(c.object(&o.Stat), before, now)
	}
}

// remove counts an object no more that has no name and is open nowhere. It took held, if that is not known better.
func (c *Counter) remove(o Object, held int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch o.Usage.held {
	case gone:
		return
	case unknown:
	default:
		held = o.Usage.held
	}
	o.Usage.held = gone
	c.change(c.object(&o.Stat), held, absent)
}

// change counts that an object took before and takes now. The caller holds mu.
func (c *Counter) change(o object, before, now int64) {
	wasBytes, wasFiles := bytesOf(before)
	bytes, files := bytesOf(now)
	if c.walk != nil {
		if _, seen := c.walk.seen[o]; seen {
			c.walk.use.Bytes += bytes - wasBytes
			c.walk.use.Files += files - wasFiles
		} else {
			c.walk.see(o, bytes, files)
		}
		if files == 0 {
			delete(c.walk.seen, o)
		}
	}
	if c.use.Counting {
		c.use = c.walk.use
	} else {
		c.use.Bytes += bytes - wasBytes
		c.use.Files += files - wasFiles
	}
	c.page.Set(c.slot, c.use)
}

// touched has a directory looked at soon.
func (c *Counter) touched(node uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dirty[node] = struct{}{}
	select {
	case c.changed <- struct{}{}:
	default:
	}
}
