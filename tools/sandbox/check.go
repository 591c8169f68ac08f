package sandbox

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/child"
)

// MissingError reports a part of the confinement that this host lacks.
type MissingError struct {
	What string // what is missing
	Get  string // the way to get it
}

func (e *MissingError) Error() string { return e.What + ": " + e.Get }

// needed are the options of bwrap that we use and that some release lacks.
var needed = []string{
	"--args", "--as-pid-1", "--bind-fd", "--clearenv", "--disable-userns",
	"--info-fd", "--perms", "--ro-bind-data", "--ro-bind-fd", "--seccomp", "--size",
}

// Facility is one part of what sandboxes need of a host.
type Facility struct {
	Name  string
	Found string // the version, or what works, if Err is nil
	Err   error  // a *MissingError: the host does not have it
}

// Examine tries what sessions need, and reports each part. It starts no session.
func Examine(ctx context.Context, c Config) []Facility {
	copy, err := newSealed(c.Files, child.Files)
	if err == nil {
		_, err = copy.file()
		copy.Close()
	}
	path, found := check(ctx, c.Bwrap, usersHere()) // last: after the end of ctx little is left to do
	if found[0].Err == nil {
		version := versionOf(ctx, path)
		found[0].Found = version + ", " + path + knownFlaw(version)
	}
	return append(found, Facility{"program in memory", "sealed", err})
}

// Check tries what sessions need. The error wraps a *MissingError for each missing facility.
// It takes tens of milliseconds: Open does not call it, and Start tries the same for its user to explain why
// bwrap has failed.
func Check(ctx context.Context, c Config) error {
	_, found := check(ctx, c.Bwrap, usersHere())
	return failures(found)
}

// check finds bwrap and tries whether it can confine users' programs here. A part that another missing one
// would fail is left out.
func check(ctx context.Context, bwrap string, users []uint32) (path string, found []Facility) {
	path, err := findBwrap(ctx, bwrap)
	found = append(found, Facility{"bubblewrap", path, err})
	if path == "" {
		return "", found
	}
	found = append(found, Facility{"seccomp", "filters can kill a process", checkSeccomp()})
	if failures(found) != nil {
		return path, found
	}
	tried := make([]error, len(users))
	var all sync.WaitGroup
	for i, uid := range users {
		all.Go(func() { tried[i] = trial(ctx, path, uid) })
	}
	all.Wait()
	found = append(found, Facility{"sandbox", "an ordinary user's sandbox starts", tried[0]})
	if len(users) > 1 {
		found = append(found, Facility{"sandbox of root", "a sandbox of an agent without user: starts", tried[1]})
	}
	return path, found
}

// usersHere returns users of the agents that a daemon of this process may have: an ordinary one, and root, which an agent without
// user: has; or this one alone.
func usersHere() []uint32 {
	const nobody = 65534
	if _, err := credential(nobody, nobody); err != nil {
		return []uint32{uint32(os.Geteuid())}
	}
	return []uint32{nobody, 0}
}

// failures joins the errors of facilities.
func failures(found []Facility) error {
	var errs []error
	for _, f := range found {
		errs = append(errs, f.Err)
	}
	return errors.Join(errs...)
}

// lookBwrap returns the path of bwrap.
func lookBwrap(bwrap string) (string, error) {
	path, err := exec.LookPath(cmp.Or(bwrap, "bwrap"))
	if err != nil {
		return "", &MissingError{"bubblewrap is not installed", "apt-get install bubblewrap"}
	}
	return path, nil
}

// findBwrap returns the path of bwrap, "" if it is not installed. It is an error when bwrap
// lacks an option that we use.
func findBwrap(ctx context.Context, bwrap string) (path string, err error) {
	if path, err = lookBwrap(bwrap); err != nil {
		return "", err
	}
	help, err := bounded(ctx, path, "--help").Output()
	if ctx.Err() != nil {
		return path, ctx.Err()
	}
	if err != nil {
		return path, &MissingError{fmt.Sprintf("%s does not say what it can (--help: %v)", path, err), needBwrap}
	}
	var lacks []string
	for _, option := range needed {
		if !bytes.Contains(help, []byte("    "+option+" ")) {
			lacks = append(lacks, option)
		}
	}
	if len(lacks) > 0 {
		err = &MissingError{versionOf(ctx, path) + " lacks " + strings.Join(lacks, ", "), needBwrap}
	}
	return path, err
}

// Flaw returns the sentence about a known flaw of bubblewrap, or "".
func Flaw(ctx context.Context, c Config) string {
	path, err := lookBwrap(c.Bwrap)
	if err != nil {
		return ""
	}
	version := versionOf(ctx, path)
	if flaw := knownFlaw(version); flaw != "" {
		return version + flaw
	}
	return ""
}

// knownFlaw returns what CVE-2026-87766 means with a version of bubblewrap, or "".
func knownFlaw(version string) string {
	var major, minor int
	if _, err := fmt.Sscanf(version, "bubblewrap %d.%d", &major, &minor); err != nil || major > 0 || minor >= 12 {
		return ""
	}
	return " (before 0.12: CVE-2026-87766, unless the distribution mended it; sandboxes give it no destination that an agent controls)"
}

func checkSeccomp() error {
	actions, err := os.ReadFile("/proc/sys/kernel/seccomp/actions_avail")
	if err != nil || !strings.Contains(string(actions), "kill_process") {
		return &MissingError{"the kernel has no seccomp filters", "need Linux 4.14 with CONFIG_SECCOMP_FILTER"}
	}
	return nil
}

// bounded is a command that ends with ctx, also when a process that it has started holds
// its output open.
func bounded(ctx context.Context, path string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.WaitDelay = 5 * time.Second // a busy host closes the pipe late
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) } // see Session.killStart
	return cmd
}

const needBwrap = "install bubblewrap 0.11 or newer, or that of Debian 12 or Ubuntu 24.04 with security updates"

// versionOf names a bubblewrap, as "bubblewrap 0.4.1" where it says so.
func versionOf(ctx context.Context, path string) string {
	out, err := bounded(ctx, path, "--version").Output()
	if version := strings.TrimSpace(string(out)); err == nil && len(version) < 40 && strings.HasPrefix(version, "bubblewrap ") {
		return version
	}
	return "bubblewrap"
}

// trial makes a smallest sandbox, as a user: whether namespaces can be
// had depends on too many settings to be read off them.
func trial(ctx context.Context, bwrap string, uid uint32) error {
	as, err := credential(uid, uid)
	if err != nil {
		return err
	}
	cmd := bounded(ctx, bwrap, "--unshare-all", "--unshare-user", "--disable-userns", "--cap-drop", "ALL", "--hostname", "localhost",
		"--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "/bin/true")
	cmd.Dir, cmd.Env, cmd.SysProcAttr.Credential = "/", []string{}, as
	out, err := cmd.CombinedOutput()
	if err == nil || ctx.Err() != nil {
		return ctx.Err()
	}
	get := "allow user, pid, network and mount namespaces to ordinary users; a container needs --cap-add SYS_ADMIN --cap-add DAC_READ_SEARCH --security-opt systempaths=unconfined"
	why := string(bytes.TrimSpace(out))
	if why == "" {
		why = err.Error()
	}
	// A process that maps its parent's root needs CAP_SETFCAP: user_namespaces(7). A child of root has what the bounding set has:
	// capabilities(7).
	if has, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, unix.CAP_SETFCAP, 0, 0, 0); err == nil && has == 0 && uid == 0 {
		return &MissingError{fmt.Sprintf("CAP_SETFCAP is missing, without which no agent runs as root (%s)", why),
			"add it to CapabilityBoundingSet of the unit, or to a container (--cap-add SETFCAP); or set user: in each definition"}
	}
	for name, off := range map[string]string{
		"user.max_user_namespaces":                         "0",
		"kernel.unprivileged_userns_clone":                 "0", // Debian before 11
		"kernel.apparmor_restrict_unprivileged_userns":     "1", // Ubuntu from 23.10
		"kernel.apparmor_restrict_unprivileged_unconfined": "1",
	} {
		value, err := os.ReadFile("/proc/sys/" + strings.ReplaceAll(name, ".", "/"))
		if err == nil && strings.TrimSpace(string(value)) == off {
			get = fmt.Sprintf("unprivileged user namespaces are off (sysctl %s=%s): change it in /etc/sysctl.d", name, off)
			if strings.Contains(name, "apparmor") {
				get += ", or load scopefs's profile (docs/operating.md#apparmor)"
			}
		}
	}
	return &MissingError{fmt.Sprintf("bubblewrap cannot make a sandbox (%s)", why), get}
}

// dup returns a second descriptor of what f has open.
func dup(f *os.File) (*os.File, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}
