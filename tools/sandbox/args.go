package sandbox

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/tools/sandbox/pid1"
	"github.com/scopefs/scopefs/tools/sshkeys/message"
)

// etcShown are the files of the host's /etc that a sandbox has.
var etcShown = []string{
	"alternatives", "ca-certificates", "ca-certificates.conf", "host.conf", "ld.so.cache", "ld.so.conf",
	"ld.so.conf.d", "localtime", "mime.types", "nsswitch.conf", "os-release", "protocols", "services",
	"ssl/certs", "ssl/openssl.cnf", "terminfo", "timezone",
}

// rootsProc are files of /proc that show root the whole host, and those of the host's kernel: its command line may have a
// password or a key of a disk. An agent whose user is the host's root owns them, so /dev/null covers all of them; for
// another agent, also one who is 0 in the user namespace of an ordinary user, it covers those that a user beside root may
// open.
var rootsProc = []string{
	"/proc/kcore", "/proc/kmsg", "/proc/kpagecgroup", "/proc/kpagecount", "/proc/kpageflags", "/proc/mtrr",
	"/proc/pagetypeinfo", "/proc/sched_debug", "/proc/slabinfo", "/proc/sysrq-trigger", "/proc/timer_list", "/proc/vmallocinfo",
	"/proc/cmdline", "/proc/config.gz",
}

// tmpfsSizes returns the sizes of /tmp and /dev/shm in bytes. They count as the
// session's memory, and no OOM kill frees them. Together they stay below the limit: a
// command that fills them gets ENOSPC, and the session lives.
func tmpfsSizes(l Limits) (tmp, shm int64) {
	tmp, shm = 1<<30, 256<<20
	if l.Memory > 0 {
		tmp, shm = min(tmp, l.Memory/2), min(shm, l.Memory/4)
	}
	return tmp, shm
}

// The descriptors of bwrap that have a fixed number, after 0, 1, 2 and the control socket.
const (
	fdProgram = pid1.ControlFD + 1 + iota // the program that init is executed from
	fdArgs                                // the arguments
	fdInfo                                // where bwrap writes the pid of init
	fdFree
)

// plan holds the arguments of bwrap and the descriptors that they name.
type plan struct {
	args  []string
	files []*os.File // number fdFree and up
	apart []*os.File // directories that are shown without the host's sockets, by their number below asideExposed
	lacks []string   // see Session.Lacks

	certificates *certificates
}

func (p *plan) add(args ...string) { p.args = append(p.args, args...) }

// fd adds an argument that takes a descriptor. The plan owns f.
func (p *plan) fd(option string, f *os.File, more ...string) {
	p.add(option, strconv.Itoa(fdFree+len(p.files)))
	p.add(more...)
	p.files = append(p.files, f)
}

func (p *plan) data(option string, data []byte, more ...string) error {
	f, err := pipeWith(data)
	if err != nil {
		return err
	}
	p.fd(option, f, more...)
	return nil
}

func (p *plan) close() {
	for _, f := range slices.Concat(p.files, p.apart) {
		f.Close()
	}
}

// newPlan lays out the sandbox of spec. bwrap mounts in the order of the arguments, and
// a later mount covers an earlier one. Exposed paths come before every mount that they
// must not cover.
func newPlan(spec *Spec, filter []byte, certificates *certificates) (*plan, error) {
	p := &plan{certificates: certificates}
	p.add("--unshare-all", "--unshare-user", "--disable-userns", "--new-session",
		"--as-pid-1", "--clearenv", "--setenv", "GOMAXPROCS", strconv.Itoa(pid1.MaxRunning), "--cap-drop", "ALL", "--hostname", string(spec.Agent),
		"--uid", fmt.Sprint(innerID(spec.UID, "uid_map")), "--gid", fmt.Sprint(innerID(spec.GID, "gid_map")),
		"--info-fd", strconv.Itoa(fdInfo))
	if spec.Network {
		p.add("--share-net")
	}
	err := p.mounts(spec)
	if err == nil {
		err = p.data("--seccomp", filter)
	}
	if err != nil {
		p.close()
		return nil, err
	}
	p.add("--chdir", spec.dir())
	return p, nil
}

func (p *plan) mounts(spec *Spec) error {
	p.system()
	tmp, shm := tmpfsSizes(spec.Limits)
	p.add("--perms", "1777", "--size", strconv.FormatInt(tmp, 10), "--tmpfs", "/tmp",
		"--dir", "/run", "--dir", "/var", "--symlink", "../tmp", "/var/tmp", "--symlink", "../run", "/var/run")
	if err := p.expose(spec); err != nil {
		return err
	}
	p.add("--perms", "0700", "--dir", TempHome)
	if err := p.etc(spec); err != nil {
		return err
	}
	if err := p.work(spec); err != nil {
		return err
	}
	// /proc and /dev are private, and read-only as well: an agent whose user is the
	// host's root owns /proc/sys, and bwrap leaves it writable to its owner. Commands
	// cannot replace the /dev/ptmx that init opens either. Writing to a device or
	// terminal still works.
	p.add("--proc", "/proc")
	for _, name := range rootsProc {
		var st unix.Stat_t
		if err := unix.Stat(name, &st); err == nil && (spec.UID == st.Uid || st.Mode&0o077 != 0) {
			p.add("--ro-bind", "/dev/null", name)
		}
	}
	p.add("--remount-ro", "/proc",
		"--dev", "/dev",
		"--perms", "1777", "--size", strconv.FormatInt(shm, 10), "--tmpfs", "/dev/shm")
	if err := p.devices(spec); err != nil {
		return err
	}
	p.add("--remount-ro", "/dev", "--remount-ro", "/")
	return nil
}

// devices mounts devices of the host at their paths. bwrap has no --dev-bind of a descriptor: it opens that of the link in its /proc.
func (p *plan) devices(spec *Spec) error {
	found, lacks, err := findDevices(spec.Devices, spec.UID, spec.GID)
	for _, d := range found {
		if dir := path.Dir(d.at); dir != "/dev" {
			p.add("--perms", "0755", "--dir", dir)
		}
		p.add("--dev-bind", fmt.Sprintf("/proc/self/fd/%d", fdFree+len(p.files)), d.at)
		p.files = append(p.files, d.file)
	}
	p.lacks = lacks
	return err
}

// expose mounts the paths of the host.
func (p *plan) expose(spec *Spec) error {
	shown, err := exposures(spec.Expose, spec.Sockets)
	if err != nil {
		return fmt.Errorf("%w: expose: %w", ErrInvalid, err)
	}
	opened := map[string]*os.File{}
	for _, e := range shown {
		f, dir, err := openExposed(e.name, e.sockets)
		if err != nil {
			return err
		}
		if below(e.at, "/usr") { // shown already
			f.Close()
			continue
		}
		if e.sockets || !dir {
			p.fd("--ro-bind-fd", f, e.at)
		} else {
			p.add("--ro-bind", apartAt(len(p.apart)), e.at)
			p.apart = append(p.apart, f)
		}
		if opened[e.name] = f; e.outer == "" {
			continue
		}
		if err := fixedBelow(opened[e.outer], strings.TrimPrefix(e.at, destination(e.outer)+"/")); err != nil {
			return fmt.Errorf("%w: expose: %q is inside %q, and %w: give both the same sockets, or remove one", ErrInvalid, e.name, e.outer, err)
		}
	}
	return nil
}

// work mounts the view, or an empty directory without one, and the binds.
func (p *plan) work(spec *Spec) error {
	if spec.View == nil {
		size, _ := tmpfsSizes(spec.Limits)
		p.add("--perms", "0700", "--size", strconv.FormatInt(size, 10), "--tmpfs", Scratch)
	} else {
		views := append([]Root{{spec.View, Workspace}}, spec.Roots...)
		if at := spec.dir(); at != Workspace {
			views = append(views, Root{spec.View, at})
		} else if spec.linked() {
			p.add("--symlink", Workspace, spec.At)
		}
		option := "--bind-fd"
		if spec.ReadOnly {
			option = "--ro-bind-fd"
		}
		for _, v := range views {
			view, err := dup(v.View)
			if err != nil {
				return fmt.Errorf("view: %w", err)
			}
			p.fd(option, view, v.At)
		}
	}
	if spec.Context != nil {
		p.add("--ro-bind", asideContext, Context)
	}
	if spec.Home != nil {
		p.add("--bind", asideHome, Home)
	}
	if len(spec.Binds) > 0 || spec.Trust != nil {
		p.add("--perms", "0755", "--dir", Run)
	}
	if err := p.trust(spec); err != nil {
		return err
	}
	for _, b := range spec.Binds {
		f, err := dup(b.File)
		if err != nil {
			return fmt.Errorf("bind at %s: %w", b.At, err)
		}
		if b.Copy {
			p.add("--perms", "0555")
			p.fd("--file", f, b.At)
			continue
		}
		p.fd("--ro-bind-fd", f, b.At)
	}
	return nil
}

// system mounts /usr and, as on the host, the top-level links into it.
func (p *plan) system() {
	p.add("--ro-bind", "/usr", "/usr")
	for _, name := range []string{"/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"} {
		if to, err := os.Readlink(name); err == nil {
			p.add("--symlink", to, name)
		} else {
			p.add("--ro-bind-try", name, name)
		}
	}
}

// etc makes an /etc of public files of the host and generated ones.
func (p *plan) etc(spec *Spec) error {
	p.add("--dir", "/etc", "--dir", "/etc/ssl") // bwrap makes missing parents for their owner only
	for _, name := range etcShown {
		at := "/etc/" + name
		if f := public(at); f != nil {
			p.add("--perms", "0444")
			p.fd("--file", f, at)
		} else if !p.small(at) {
			p.add("--ro-bind-try", at, at)
		}
	}
	names, _ := os.ReadDir("/etc")
	for _, e := range names { // Debian's; the programs are in /usr, and do not start without
		if strings.HasPrefix(e.Name(), "java-") && strings.HasSuffix(e.Name(), "-openjdk") {
			p.publicDir("/etc/" + e.Name())
		}
	}
	if spec.Network {
		p.add("--ro-bind-try", "/etc/resolv.conf", "/etc/resolv.conf")
	}
	uid, gid := innerID(spec.UID, "uid_map"), innerID(spec.GID, "gid_map")
	own := map[string]string{
		"passwd": fmt.Sprintf("%s:x:%d:%d::%s:/bin/sh\n", User, uid, gid, spec.home()) +
			"root:x:0:0:root:/root:/usr/sbin/nologin\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
		"group": fmt.Sprintf("%s:x:%d:\nroot:x:0:\nnogroup:x:65534:\n", User, gid),
		"hosts": "127.0.0.1 localhost\n::1 localhost ip6-localhost\n127.0.1.1 " + string(spec.Agent) + "\n",
	}
	if text := spec.Git.config(); text != "" {
		own["gitconfig"] = text
	}
	if spec.Proxy {
		own[nodeModule] = nodeModuleText
	}
	if spec.SSH != nil {
		p.add("--dir", "/etc/ssh")
		own["ssh/ssh_config"], own["ssh/ssh_known_hosts"] = spec.SSH.config(spec.Proxy), spec.SSH.Known
	}
	for name, text := range own {
		p.add("--perms", "0444")
		if err := p.data("--file", []byte(text), "/etc/"+name); err != nil {
			return err
		}
	}
	return nil
}

// config returns the text of /etc/ssh/ssh_config, see ssh_config(5). That of HOME wins over it.
func (s *SSH) config(proxy bool) string {
	text := "Host *\n\tStrictHostKeyChecking yes\n\tUpdateHostKeys no\n"
	if proxy {
		text += "\tProxyCommand " + message.Program + " connect %h %p\n"
	}
	return text
}

// public opens a regular file that every user may read, and returns nil for any other. bwrap
// copies such a file: a bind mount takes ten times as long, because bwrap reads the table of
// mounts after each. Programs that change files of /etc replace them, so a bind mount would not show a
// change either.
func public(name string) *os.File {
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0) // a FIFO must not block
	if err != nil {
		return nil
	}
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() || info.Mode().Perm()&0o004 == 0 {
		f.Close()
		return nil
	}
	return f
}

// maxSmall is the number of files and directories in a directory up to which copies of them are faster than a bind mount.
const maxSmall = 4

// small copies a directory of the host with few files, which every user may read, and reports whether it did. What the host
// changes in it later is in the next sandbox.
func (p *plan) small(dir string) bool {
	before := *p
	if p.copy(dir) {
		return true
	}
	for _, f := range p.files[len(before.files):] {
		f.Close()
	}
	p.args, p.files = before.args, before.files
	return false
}

// copy is small, but leaves in the plan what it has copied until it fails.
func (p *plan) copy(dir string) bool {
	f, err := os.OpenFile(dir, unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || info.Mode().Perm()&0o005 != 0o005 || info.Size() > 4<<10 { // it has many names: it need not be read
		return false
	}
	names, err := f.ReadDir(maxSmall + 1)
	if err != nil && err != io.EOF || len(names) > maxSmall {
		return false
	}
	p.add("--dir", dir)
	for _, d := range names {
		at := filepath.Join(dir, d.Name())
		if d.IsDir() {
			if !p.copy(at) {
				return false
			}
			continue
		}
		if info, err := d.Info(); err != nil || !info.Mode().IsRegular() || info.Size() > 64<<10 {
			return false
		}
		f := public(at)
		if f == nil {
			return false
		}
		p.add("--perms", "0444")
		p.fd("--file", f, at)
	}
	return true
}

// publicDir shows a directory of the host, and covers the files in it that some user may not
// read. Java's management/jmxremote.password must be such a file, and the agent's user may own
// it.
func (p *plan) publicDir(dir string) {
	p.add("--ro-bind-try", dir, dir)
	_ = filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return nil
		}
		if info, err := d.Info(); err == nil && info.Mode().Perm()&0o004 == 0 {
			p.add("--ro-bind", "/dev/null", name)
		}
		return nil
	})
}

// config returns the text of /etc/gitconfig, see git-config(1); "": there is none. A repository's configuration
// and that of HOME win over it.
func (u GitUser) config() string {
	quote := strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`, "\x00", "")
	text := ""
	if u.Name != "" {
		text += "\tname = \"" + quote.Replace(u.Name) + "\"\n"
	}
	if u.Email != "" {
		text += "\temail = \"" + quote.Replace(u.Email) + "\"\n"
	}
	if text != "" {
		text = "[user]\n" + text
	}
	if u.Linked { // the sandbox does not have the other worktrees, and may not change what is theirs
		text += "[gc]\n\treflogExpire = never\n\treflogExpireUnreachable = never\n\tworktreePruneExpire = never\n"
	}
	return text
}

// pipeWith returns the reading end of a pipe that holds data and then ends. A pipe
// takes 64 KiB without a reader (pipe(7)); more is an error, not a wait.
func pipeWith(data []byte) (*os.File, error) {
	if len(data) > 64<<10 {
		return nil, fmt.Errorf("%w: %d bytes for a pipe", ErrInvalid, len(data))
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer w.Close()
	if _, err := w.Write(data); err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

// credential returns the credential of a child that runs as the agent's user. A daemon
// that cannot change ids (an ordinary user, or root of a user namespace with one id)
// runs only agents of its own user, with a nil credential.
func credential(uid, gid uint32) (*syscall.Credential, error) {
	setgroups, err := os.ReadFile("/proc/self/setgroups") // user_namespaces(7)
	if err != nil {
		return nil, err
	}
	if os.Geteuid() == 0 && strings.TrimSpace(string(setgroups)) == "allow" {
		return &syscall.Credential{Uid: uid, Gid: gid}, nil
	}
	if int(uid) != os.Geteuid() || int(gid) != os.Getegid() {
		return nil, &MissingError{fmt.Sprintf("user %d cannot run as %d:%d", os.Geteuid(), uid, gid), "run the daemon as root"}
	}
	return nil, nil
}
