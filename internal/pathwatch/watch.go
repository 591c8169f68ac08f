// Package pathwatch reports when a path may lead to another directory than before: a component was moved, removed, replaced or
// made, or a mount above it came or went. It asks the kernel for events, inotify(7) of the directories on the way and poll(2)
// of proc_pid_mountinfo(5), so that a path to which nothing happens costs nothing.
//
// It sees what this kernel does. Changes of a network file system by other hosts are no events.
package pathwatch

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Set watches paths. The zero Set is ready. It keeps two descriptors once it has been used.
type Set struct {
	mu      sync.Mutex // no file of a path is touched under it: its disk may not answer
	failed  error      // the kernel gives no more instances of inotify
	inotify *os.File
	watches map[int32]map[string]subscribers // by watch descriptor, by name in its directory
	above   map[string]int                   // how many Watches pass through a directory, by its path
	mounts  map[string]bool                  // the lines of mountinfo that matter: see mountsAbove
	all     subscribers
	adding  int // calls of add that have a watch descriptor of the kernel and no entry for it yet
}

type subscribers map[*Watch]struct{}

// Watch is the watch of one path.
type Watch struct {
	// Changed gets a value after a change. It has room for one: changes in quick succession are one.
	Changed <-chan struct{}

	set     *Set
	changed chan struct{}
	steps   []step
}

// step is a name that is looked up in a directory.
type step struct {
	wd   int32
	name string
	path string // of the name, without links above it
}

const (
	events = unix.IN_MOVED_FROM | unix.IN_MOVED_TO | unix.IN_DELETE | unix.IN_ONLYDIR | unix.IN_MASK_ADD

	// pause is the shortest time between two looks at the events: a directory on the way may be a busy one, such as /tmp.
	pause = 100 * time.Millisecond
	// mountPause is that between two looks at the mounts.
	mountPause = time.Second

	maxLinks = 40 // as the kernel's: path_resolution(7)
)

// Watch watches an absolute path. What happens after it has returned is reported. A caller that had a value from Changed
// closes the Watch and makes another one: the path may lead elsewhere. It fails with EACCES where a directory on the way cannot be
// read, and with ENOSPC or EMFILE where the user has too many watches (fs.inotify).
func (s *Set) Watch(path string) (*Watch, error) {
	w := &Watch{set: s, changed: make(chan struct{}, 1)}
	w.Changed = w.changed
	if err := s.start(w); err != nil {
		return nil, err
	}
	if err := w.walk(path); err != nil {
		w.Close()
		return nil, fmt.Errorf("watch %q: %w", path, err)
	}
	return w, nil
}

// start starts to read events, once, and notes a watch.
func (s *Set) start(w *Watch) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.inotify == nil && s.failed == nil {
		s.failed = s.open()
	}
	if s.failed == nil {
		s.all[w] = struct{}{}
	}
	return s.failed
}

// open opens what reports events. The caller holds mu.
func (s *Set) open() error {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return os.NewSyscallError("inotify_init1", err)
	}
	table, err := unix.Open("/proc/thread-self/mountinfo", unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		unix.Close(fd)
		return fmt.Errorf("read the mounts: %w", err)
	}
	s.inotify = os.NewFile(uintptr(fd), "inotify")
	s.watches, s.above, s.all = map[int32]map[string]subscribers{}, map[string]int{}, subscribers{}
	go s.read()
	go s.poll(os.NewFile(uintptr(table), "mountinfo"))
	return nil
}

// walk watches each name that the kernel looks up on the way.
func (w *Watch) walk(path string) error {
	at, err := unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { unix.Close(at) }()
	dir := "/"
	rest := strings.Split(path, "/")
	for links := 0; len(rest) > 0; {
		name := rest[0]
		rest = rest[1:]
		if name == "" || name == "." {
			continue
		}
		next, err := w.enter(at, dir, name)
		if err == unix.ENOENT || err == unix.ENOTDIR {
			return nil // until it is made
		}
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Fstat(next, &st); err != nil {
			unix.Close(next)
			return err
		}
		if st.Mode&unix.S_IFMT != unix.S_IFLNK {
			unix.Close(at)
			at, dir = next, filepath.Join(dir, name)
			continue
		}
		text := make([]byte, unix.PathMax)
		n, err := unix.Readlinkat(next, "", text)
		unix.Close(next)
		if err != nil {
			return err
		}
		if links++; links > maxLinks {
			return unix.ELOOP
		}
		if target := string(text[:n]); strings.HasPrefix(target, "/") {
			if next, err = unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
				return err
			}
			unix.Close(at)
			at, dir = next, "/"
		}
		rest = append(strings.Split(string(text[:n]), "/"), rest...)
	}
	return nil
}

// enter watches a name in a directory, and then opens it.
func (w *Watch) enter(at int, dir, name string) (next int, err error) {
	const flags = unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC
	if name == ".." {
		return unix.Openat(at, name, flags, 0)
	}
	if err := w.add(at, dir, name, events); err != nil {
		return -1, err
	}
	next, err = unix.Openat(at, name, flags, 0)
	if err != unix.ENOENT {
		return next, err
	}
	// It wakes us for each file that is made in the directory: only for a name that is missing.
	if err := w.add(at, dir, name, events|unix.IN_CREATE); err != nil {
		return -1, err
	}
	return unix.Openat(at, name, flags, 0)
}

// add watches a name in a directory. What happens before it returns may not be reported.
func (w *Watch) add(at int, dir, name string, mask uint32) error {
	s := w.set
	s.mu.Lock()
	s.adding++
	s.mu.Unlock()
	wd := -1
	err := s.control(func(fd int) (err error) {
		wd, err = unix.InotifyAddWatch(fd, "/proc/thread-self/fd/"+strconv.Itoa(at), mask)
		return err
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.added()
	if err != nil {
		return err
	}
	st := step{int32(wd), name, filepath.Join(dir, name)}
	names := s.watches[st.wd]
	if names == nil {
		names = map[string]subscribers{}
		s.watches[st.wd] = names
	}
	if names[name] == nil {
		names[name] = subscribers{}
	}
	names[name][w] = struct{}{}
	s.above[st.path]++
	w.steps = append(w.steps, st)
	return nil
}

// added removes the watches that close has left. The caller holds mu.
func (s *Set) added() {
	if s.adding--; s.adding > 0 {
		return
	}
	for wd, names := range s.watches {
		if len(names) == 0 {
			s.remove(wd)
		}
	}
}

// remove removes a watch. The caller holds mu.
func (s *Set) remove(wd int32) {
	delete(s.watches, wd)
	_ = s.control(func(fd int) error { // an error: the directory is gone
		_, err := unix.InotifyRmWatch(fd, uint32(wd))
		return err
	})
}

// control calls f with the descriptor of inotify, also while read waits for it.
func (s *Set) control(f func(fd int) error) error {
	raw, err := s.inotify.SyscallConn()
	if err != nil {
		return err
	}
	if failed := raw.Control(func(fd uintptr) { err = f(int(fd)) }); failed != nil {
		return failed
	}
	return err
}

// Close ends the watch.
func (w *Watch) Close() {
	s := w.set
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, w)
	for _, st := range w.steps {
		if s.above[st.path]--; s.above[st.path] <= 0 {
			delete(s.above, st.path)
		}
		names := s.watches[st.wd]
		delete(names[st.name], w)
		if len(names[st.name]) == 0 {
			delete(names, st.name)
		}
		if names != nil && len(names) == 0 && s.adding == 0 { // else the kernel may just have given it to an add
			s.remove(st.wd)
		}
	}
	w.steps = nil
}

// read reports what inotify does, until the end of the program.
func (s *Set) read() {
	for buf := make([]byte, 16<<10); ; time.Sleep(pause) {
		n, err := s.inotify.Read(buf)
		if err != nil {
			return // cannot happen
		}
		s.mu.Lock()
		for rest := buf[:n]; len(rest) >= unix.SizeofInotifyEvent; {
			head := (*unix.InotifyEvent)(unsafe.Pointer(&rest[0]))
			end := unix.SizeofInotifyEvent + int(head.Len)
			s.happened(head, string(bytes.TrimRight(rest[unix.SizeofInotifyEvent:end], "\x00")))
			rest = rest[end:]
		}
		s.mu.Unlock()
	}
}

// happened reports an event. The caller holds mu.
func (s *Set) happened(e *unix.InotifyEvent, name string) {
	switch {
	case e.Mask&unix.IN_Q_OVERFLOW != 0:
		s.all.tell()
	case e.Mask&(unix.IN_IGNORED|unix.IN_UNMOUNT) != 0: // the directory is gone
		for _, who := range s.watches[e.Wd] {
			who.tell()
		}
	default:
		s.watches[e.Wd][name].tell()
	}
}

func (all subscribers) tell() {
	for w := range all {
		select {
		case w.changed <- struct{}{}:
		default:
		}
	}
}

// poll reports changes of the mounts, until the end of the program.
func (s *Set) poll(table *os.File) {
	raw, err := table.SyscallConn()
	if err != nil {
		return
	}
	// The runtime's poller waits for the edge, and remembers one that comes meanwhile. It consumes the kernel's answer to
	// POLLPRI: another poll(2) would have none.
	_ = raw.Read(func(fd uintptr) bool {
		s.mountsChanged(int(fd))
		time.Sleep(mountPause)
		return false
	})
}

func (s *Set) mountsChanged(fd int) {
	text, err := readAll(fd)
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.mountsAbove(text)
	if err != nil || s.mounts == nil || !maps.Equal(now, s.mounts) {
		s.all.tell()
	}
	s.mounts = now
}

// mountsAbove returns the lines of mountinfo whose mount points are on the way of a path: others change nothing, such as those
// of a thousand views. The caller holds mu.
func (s *Set) mountsAbove(text []byte) map[string]bool {
	above := map[string]bool{}
	for line := range bytes.Lines(text) {
		f := bytes.Fields(line)
		if len(f) > 4 && (s.above[unescape(f[4])] > 0 || len(f[4]) == 1) {
			above[string(line)] = true
		}
	}
	return above
}

// unescape returns a path of mountinfo, which has \040 for a space.
func unescape(text []byte) string {
	if !bytes.ContainsRune(text, '\\') {
		return string(text)
	}
	var out []byte
	for i := 0; i < len(text); i++ {
		if text[i] == '\\' && i+3 < len(text) {
			if n, err := strconv.ParseUint(string(text[i+1:i+4]), 8, 8); err == nil {
				out, i = append(out, byte(n)), i+3
				continue
			}
		}
		out = append(out, text[i])
	}
	return string(out)
}

// readAll reads a file of /proc from its start.
func readAll(fd int) ([]byte, error) {
	if _, err := unix.Seek(fd, 0, io.SeekStart); err != nil {
		return nil, err
	}
	text := make([]byte, 0, 64<<10)
	for {
		if cap(text)-len(text) < 4096 {
			text = append(text, make([]byte, 64<<10)...)[:len(text)]
		}
		n, err := unix.Read(fd, text[len(text):cap(text)])
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return nil, err
		case n == 0:
			return text, nil
		default:
			text = text[:len(text)+n]
		}
	}
}
