package sandbox

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Exposable says why a sandbox could not show a path of the host now, so that it
// can be said before there is one.
func Exposable(name string, sockets bool) error {
	if err := exposable(name); err != nil {
		return err
	}
	f, _, err := openExposed(name, sockets)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%q does not exist: correct it, or remove it", name)
	}
	if err != nil {
		return err
	}
	return f.Close()
}

// Runnable says why a program would not be found in a sandbox that shows these
// paths and has this environment. One that may be in the view is not looked for.
func Runnable(name string, expose []string, env map[string]string) error {
	path, ok := env["PATH"]
	if !ok {
		path = DefaultPath
	}
	files := []string{name}
	if !strings.Contains(name, "/") {
		files = nil
		for _, dir := range strings.Split(path, ":") {
			files = append(files, filepath.Join(cmp.Or(dir, "."), name))
		}
	}
	shown := append([]string{"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"}, expose...)
	for _, file := range files {
		file = filepath.Clean(file)
		if !filepath.IsAbs(file) || below(file, Workspace) {
			return nil
		}
		info, err := os.Stat(file)
		if err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 && within(file, shown) {
			return nil
		}
	}
	return fmt.Errorf("%q is no program that a sandbox shows (PATH is %s): install it below /usr, or expose its directory and write its whole path", name, path)
}

// within reports whether a file, where its links lead, is below one of dirs.
func within(file string, dirs []string) bool {
	real, err := filepath.EvalSymlinks(file)
	for _, dir := range dirs {
		if to, e := filepath.EvalSymlinks(dir); err == nil && e == nil && below(real, to) {
			return true
		}
	}
	return false
}

// exposure is a path of the host that a sandbox shows.
type exposure struct {
	name, at string // the path on the host, and in the sandbox
	sockets  bool
	outer    string // the name of the exposure that at is inside; "": none
}

// exposures returns the paths that need a mount, parents first. The mount of an outer path shows
// what is below it as well: a mount of its own would have a destination in a directory of
// the host, in which some user may put a link, and bwrap before 0.12 makes what is missing where
// the link leads (CVE-2026-87766). A path has a mount of its own if it differs from its outer path in
// whether sockets are shown; then see fixedBelow.
func exposures(expose, sockets []string) (shown []exposure, err error) {
	names := slices.Compact(slices.Sorted(slices.Values(expose)))
	slices.SortStableFunc(names, func(a, b string) int { return cmp.Compare(destination(a), destination(b)) }) // a directory is before what is below it
	for _, name := range names {
		e := exposure{name: name, at: destination(name), sockets: slices.Contains(sockets, name)}
		var outer exposure
		for _, dir := range shown {
			if below(e.at, dir.at) {
				outer = dir // the innermost comes last
			}
		}
		if e.outer = outer.name; e.outer != "" && e.sockets == outer.sockets {
			continue
		}
		if e.outer != "" && e.at == outer.at {
			return nil, fmt.Errorf("%q and %q are one path in a sandbox: remove one", e.outer, name)
		}
		shown = append(shown, e)
	}
	return shown, nil
}

// destination returns where a sandbox shows a path of the host. /var/run and /var/tmp are links in a
// sandbox, and the destination of a mount leads through none.
func destination(name string) string {
	for _, link := range [][2]string{{"/var/run/", "/run/"}, {"/var/tmp/", "/tmp/"}} {
		if rest, ok := strings.CutPrefix(name, link[0]); ok {
			return link[1] + rest
		}
	}
	return name
}

// fixedBelow returns an error unless only root and the daemon's user can replace a part of rel, a
// path below outer. A mount at rel then has no destination that another user controls. It asks the
// directory that is mounted, by its descriptor: the path of outer may lead elsewhere by now.
func fixedBelow(outer *os.File, rel string) error {
	dir, at := int(outer.Fd()), outer.Name()
	for name := range strings.SplitSeq(rel, "/") {
		var st unix.Stat_t
		if err := unix.Fstat(dir, &st); err != nil {
			return fmt.Errorf("%s: %w", at, err)
		}
		if st.Mode&unix.S_IFMT != unix.S_IFDIR || st.Mode&0o022 != 0 || st.Uid != 0 && int(st.Uid) != os.Geteuid() {
			return fmt.Errorf("others than root may write to %s", at)
		}
		next, err := unix.Openat(dir, name, unix.O_PATH|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
		if at = filepath.Join(at, name); err != nil {
			return fmt.Errorf("%s: %w", at, err)
		}
		defer unix.Close(next)
		if err := unix.Fstat(next, &st); err != nil || st.Mode&unix.S_IFMT == unix.S_IFLNK {
			return errors.Join(fmt.Errorf("%s is a link", at), err)
		}
		dir = next
	}
	return nil
}

func below(name, dir string) bool { return name == dir || strings.HasPrefix(name, dir+"/") }

// openExposed opens what is to be shown, once, and judges both the name and
// what the name led to, asked of the descriptor. It reports whether that is a directory.
func openExposed(name string, sockets bool) (f *os.File, dir bool, err error) {
	if err := exposable(name); err != nil {
		return nil, false, fmt.Errorf("%w: expose %w", ErrInvalid, err)
	}
	fd, err := unix.Open(name, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, false, fmt.Errorf("expose %q: %w", name, err)
	}
	f = os.NewFile(uintptr(fd), name)
	real, err := os.Readlink(procPath(f))
	if err == nil {
		err = exposable(real)
	}
	if err == nil && below(name, "/usr") && !below(real, "/usr") {
		err = fmt.Errorf("leads to %q: expose that", real) // every sandbox has the link, with /usr
	}
	var st unix.Stat_t
	if err == nil {
		err = unix.Fstat(fd, &st)
	}
	if what := reached[st.Mode&unix.S_IFMT]; err == nil && what != "" && !sockets {
		err = fmt.Errorf("is %s: %s", what, withSockets(name))
	}
	if err != nil {
		f.Close()
		return nil, false, fmt.Errorf("%w: expose %q: %w", ErrInvalid, name, err)
	}
	return f, st.Mode&unix.S_IFMT == unix.S_IFDIR, nil
}

// reached are the types of files by which a process of the host is reached.
var reached = map[uint32]string{unix.S_IFSOCK: "a socket", unix.S_IFIFO: "a FIFO"}

// withSockets is the remedy for what cannot be shown without its sockets.
func withSockets(name string) string {
	return fmt.Sprintf("to let agents reach its sockets, write {path: %s, sockets: true}", name)
}

// procPath returns a path of a descriptor of this process: proc_pid_fd(5).
func procPath(f *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", f.Fd()) }

// linked reports whether a link at spec.At stands alone: nothing of the sandbox's own or of the host is there, above or below.
func (s *Spec) linked() bool {
	own := []string{"/tmp", "/run", "/var/tmp", "/var/run"}
	return s.free(s.At) && !slices.ContainsFunc(own, func(dir string) bool { return below(s.At, dir) })
}

// free reports whether a mount at a path of the host covers nothing of the sandbox's own or of the host.
func (s *Spec) free(at string) bool {
	if at == "" || at != destination(at) || exposable(at) != nil {
		return false
	}
	for _, own := range append([]string{"/usr"}, s.Expose...) {
		if below(at, own) || below(own, at) {
			return false
		}
	}
	return true
}

// exposable refuses what would cover, or bring back, what the sandbox makes
// for itself.
func exposable(name string) error {
	if !filepath.IsAbs(name) || filepath.Clean(name) != name || strings.ContainsRune(name, 0) {
		return fmt.Errorf("%q is no clean absolute path: write one", name)
	}
	switch name {
	case "/", "/home", "/run", "/tmp", "/usr", "/var", "/var/tmp", "/var/run":
		return fmt.Errorf("%q would cover the sandbox's own: expose what is below it", name)
	}
	for _, own := range []string{Workspace, Context, "/proc", "/sys", "/dev", "/etc", Home, TempHome, "/run/scopefs",
		"/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"} {
		if below(destination(name), own) {
			return fmt.Errorf("%q cannot be shown, %s is the sandbox's own: remove it", name, own)
		}
	}
	return nil
}
