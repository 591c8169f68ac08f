package quota

import (
	"time"

	"github.com/scopefs/scopefs/scope/beneath"
)

// walk is a walk of a Counter's directories. Counter.mu guards it. An object counts once: when the walk or a change of a
// client first meets it.
type walk struct {
	use    Use
	seen   map[object]struct{}
	moved  []string // directories of the first root that clients have moved meanwhile, by their new paths
	moves  int      // how many there were
	moving int      // operations under way that move or link
}

// object is a device and an inode number.
type object struct{ dev, ino uint64 }

// object returns the key of a walk.
func (c *Counter) object(st *beneath.Stat) object { return object{st.ID().Dev, st.Ino} }

// follows reports whether the walk is to go on behind moves. The caller holds mu.
func (c *Counter) follows() bool {
	return (len(c.walk.moved) > 0 || c.walk.moving > 0) && (c.use.Counting || c.walk.moves <= maxMoves)
}

func (w *walk) see(o object, bytes, files int64) {
	w.seen[o] = struct{}{}
	w.use.Bytes += bytes
	w.use.Files += files
}

const (
	recountTime  = time.Hour
	refusedTime  = time.Minute            // between two walks after refusals
	recountsTime = time.Second            // between two looks at whether another process has changed files
	settleTime   = 100 * time.Millisecond // for directories to be looked at after a change
	walkTime     = 5 * time.Millisecond   // a walk works so long, and pauses as long
)

// Run counts until ended is closed. files is the view.
func (c *Counter) Run(files Files, ended <-chan struct{}) {
	if c == nil {
		return
	}
	c.files.Store(&files)
	ticker := time.NewTicker(recountsTime)
	defer ticker.Stop()
	var settle <-chan time.Time // soon: there are dirty directories
	wanted := c.page.words[recounts].Load()
	c.count(files, ended)
	for walked := time.Now(); ; {
		select {
		case <-ended:
			return
		case <-c.changed:
			if settle == nil {
				settle = time.After(settleTime)
			}
			continue
		case <-settle:
			settle = nil
			c.settleDirs(files)
			continue
		case <-ticker.C:
			if now := c.page.words[recounts].Load(); now == wanted && time.Since(walked) < recountTime {
				continue
			}
		case <-c.wake:
			if time.Since(walked) < refusedTime {
				continue
			}
		}
		wanted = c.page.words[recounts].Load()
		c.count(files, ended)
		walked = time.Now()
	}
}

// Start begins to count: from now on the page says so.
func (c *Counter) Start() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.use = Use{Counting: true}
	c.pending.Store(0) // the last process may have left some
	c.walk = &walk{use: c.use, seen: map[object]struct{}{}}
	c.page.Set(c.slot, c.use)
}

// count walks the directories.
func (c *Counter) count(files Files, ended <-chan struct{}) {
	c.mu.Lock()
	if c.walk == nil {
		c.walk = &walk{seen: map[object]struct{}{}}
	}
	c.mu.Unlock()
	pace := time.Now()
	rest := func() bool {
		if time.Since(pace) < walkTime {
			return true
		}
		select {
		case <-ended:
			return false
		case <-time.After(walkTime):
		}
		c.settleDirs(files)
		pace = time.Now()
		return true
	}
	for _, root := range c.roots {
		if !c.walkRoot(root, files, rest) {
			return
		}
	}
	for ended := false; !ended; {
		if ended = c.finish(files); !ended && (!c.walkMoved(files, rest) || !rest()) {
			return
		}
	}
}

// maxMoves bounds the moves that a walk follows. After more it changes nothing, but the first walk goes on.
const maxMoves = 10_000

// finish ends the walk, unless there are directories to follow. It counts open files: they may have no name.
func (c *Counter) finish(files Files) bool {
	c.mu.Lock()
	follows := c.follows()
	c.mu.Unlock()
	if follows {
		return false
	}
	for i, more := 0, true; more; i++ {
		more = c.seeOpened(files, i)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.follows() {
		return false
	}
	if c.use.Counting || c.walk.moves <= maxMoves {
		c.use = c.walk.use
		c.use.Counting = false
	}
	c.walk = nil
	c.page.Set(c.slot, c.use)
	return true
}

// walkMoved walks directories that clients have moved, perhaps to where the walk had been.
func (c *Counter) walkMoved(files Files, rest func() bool) bool {
	c.mu.Lock()
	moved := c.walk.moved
	c.walk.moved = nil
	c.mu.Unlock()
	for _, rel := range moved {
		if !c.walkTree(c.roots[0], rel, files, rest) {
			return false
		}
	}
	return true
}

// seeOpened counts the i-th open file, and reports whether there are more.
func (c *Counter) seeOpened(files Files, i int) (more bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	o, more := files.Opened(i)
	if o.Usage != nil {
		c.seen(&o)
	}
	return more
}

// seen has the walk count an object, unless it has. What is known of it was counted before. The caller holds mu.
func (c *Counter) seen(o *Object) {
	held := o.Usage.held
	if held == unknown && c.upper == nil {
		held = counted + int64(o.Stat.Blocks)*512 // it is not known whose a file without a name is
	}
	bytes, n := bytesOf(held)
	if _, seen := c.walk.seen[c.object(&o.Stat)]; !seen && n > 0 {
		o.Usage.held = held
		c.walk.see(c.object(&o.Stat), bytes, n)
	}
}

// moves has a walk follow an object that an operation moves or links, until done is called. o is the object afterwards.
func (c *Counter) moves() (done func(all ...Object)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.walk
	if w == nil {
		return func(...Object) {}
	}
	w.moving++
	return func(all ...Object) {
		c.mu.Lock()
		defer c.mu.Unlock()
		w.moving--
		if c.walk != w {
			return
		}
		for _, o := range all {
			if c.seen(&o); !o.Stat.IsDir() {
				continue
			}
			if w.moves++; len(w.moved) > maxMoves/10 {
				w.moved = []string{""} // all of it
			}
			w.moved = append(w.moved, o.Rel)
		}
	}
}

// walkRoot counts a directory and all below it. It reports false when rest does.
func (c *Counter) walkRoot(root *beneath.Root, files Files, rest func() bool) bool {
	return c.walkTree(root, "", files, rest)
}

func (c *Counter) walkTree(root *beneath.Root, rel string, files Files, rest func() bool) bool {
	c.see(root, rel, files)
	for dirs := []string{rel}; len(dirs) > 0; {
		dir := dirs[len(dirs)-1]
		dirs = dirs[:len(dirs)-1]
		on := true
		_ = root.Each(dir, func(name string) bool { // what goes meanwhile takes nothing
			rel := beneath.Join(dir, name)
			if c.see(root, rel, files) {
				dirs = append(dirs, rel)
			}
			on = rest()
			return on
		})
		if !on {
			return false
		}
	}
	return true
}

// see counts one object, and reports whether it is a directory.
func (c *Counter) see(root *beneath.Root, rel string, files Files) (dir bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	st, err := root.Stat(rel)
	if err != nil {
		return false
	}
	o := Object{Stat: st, Usage: &Usage{}}
	if at := files.Known(0, st.ID()); at.Usage != nil && c.upper == nil {
		o.Usage = at.Usage
	}
	before, now := o.Usage.held, counted+int64(st.Blocks)*512
	if before == gone {
		return false
	}
	o.Usage.held = now
	bytes, _ := bytesOf(now)
	if _, seen := c.walk.seen[c.object(&st)]; !seen {
		c.walk.see(c.object(&st), bytes, 1)
	} else if before != unknown {
		wasBytes, _ := bytesOf(before)
		c.walk.use.Bytes += bytes - wasBytes
	}
	if c.use.Counting {
		c.walk.use.Counting = true
		c.use = c.walk.use
		c.page.Set(c.slot, c.use)
	}
	return st.IsDir()
}

// settleDirs counts what directories take in which names have changed.
func (c *Counter) settleDirs(files Files) {
	c.mu.Lock()
	dirty := c.dirty
	if len(dirty) > 0 {
		c.dirty = map[uint64]struct{}{}
	}
	c.mu.Unlock()
	for node := range dirty {
		if f, o, err := files.Object(node, ""); err == nil {
			f.Close()
			c.settle(o, unknown)
		}
	}
}
