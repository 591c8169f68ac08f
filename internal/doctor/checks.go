package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/fusedev/passthrough"
	"github.com/scopefs/scopefs/fs/fusemount"
	"github.com/scopefs/scopefs/internal/companion"
	"github.com/scopefs/scopefs/internal/mount"
	"github.com/scopefs/scopefs/internal/view"
	"github.com/scopefs/scopefs/scope/beneath"
	"github.com/scopefs/scopefs/tools/sandbox"
)

const device = "/dev/fuse"

// tries returns the tries in the order of their lines.
func tries(root bool) []try {
	return []try{
		one("kernel", Views, kernel),
		one("device", Views, func() (string, error) { return openDevice(device) }),
		one("fuse", Views, func() (string, error) { return "a file system is mounted and dropped", mount.Check() }),
		{"passthrough", Views, func(context.Context) []Line { return []Line{passthroughLine(root, tryPassthrough())} }},
		{"landlock", Views, func(context.Context) []Line { return []Line{landlock(view.Landlock())} }},
		{"fanotify", Views, func(context.Context) []Line { return []Line{fanotify(beneath.NewWatch())} }},
		{"sandbox", Sandboxes, sandboxes},
		{"cgroups", Sandboxes, func(context.Context) []Line { return []Line{groups(sandbox.TryGroups())} }},
		{"open files", Views, func(context.Context) []Line {
			return []Line{limit(unix.RLIMIT_NOFILE, minFiles, "LimitNOFILE=524288, ulimit -Hn 524288")}
		}},
		{"processes", Sandboxes, func(context.Context) []Line {
			return []Line{limit(unix.RLIMIT_NPROC, minProcesses, "LimitNPROC=infinity, ulimit -Hu")}
		}},
		{"programs", Views, func(context.Context) []Line { return []Line{companions(Views)} }},
		{"programs of sandboxes", Sandboxes, func(context.Context) []Line { return []Line{companions(Sandboxes)} }},
		{"devices", Sandboxes, func(context.Context) []Line { return []Line{devices(sandbox.Devices())} }},
		{"git identity", Sandboxes, func(ctx context.Context) []Line { return []Line{gitIdentity(ctx)} }},
	}
}

// companions looks for the programs beside this one that a part needs, and for views also for those that only single features need.
func companions(part Part) Line {
	var needed, others []string
	ours, err := buildOf(nil)
	if err != nil {
		return missing(err)
	}
	all := companion.Programs()
	for _, name := range slices.Sorted(maps.Keys(all)) {
		p := all[name]
		if p.Part != string(part) && (p.Part != "" || part != Views) {
			continue
		}
		flaw := flawOf(name, ours)
		if flaw == "" {
			continue
		}
		flaw = fmt.Sprintf("%s (%s) %s", name, p.For, flaw)
		if p.Part == "" {
			others = append(others, flaw)
		} else {
			needed = append(needed, flaw)
		}
	}
	l := Line{Detail: strings.Join(append(needed, others...), "; "), Remedy: companion.Remedy + ", all of one build"}
	switch {
	case needed != nil:
		l.Status = Missing
	case others != nil:
		l.Status = Degraded
	default:
		l = Line{Detail: "all are installed beside this one, of the same build"}
	}
	return l
}

// flawOf says what is wrong with a program beside this one, "" if nothing.
func flawOf(name, ours string) string {
	file, err := companion.Open(name)
	if err != nil {
		return "is not installed"
	}
	defer file.Close()
	build, err := buildOf(file)
	switch {
	case err != nil:
		return "is no program of ours: " + err.Error()
	case build != ours:
		return fmt.Sprintf("is of another build: %s, scopefs is %s", cmp.Or(build, "unknown"), cmp.Or(ours, "unknown"))
	}
	return ""
}

func kernel() (string, error) {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return "", err
	}
	return "Linux " + unix.ByteSliceToString(name.Release[:]) + " has every system call", mount.CheckCalls()
}

// openDevice opens the device of FUSE. The kernel makes nothing until it is mounted.
func openDevice(name string) (string, error) {
	var st unix.Stat_t
	if err := unix.Stat(name, &st); err != nil {
		return "", &mount.HostError{What: fmt.Sprintf("%s: %v", name, err),
			Remedy: "load the module (modprobe fuse); a container needs --device " + name}
	}
	found := fmt.Sprintf("%s opens, mode %04o", name, st.Mode&0o7777)
	fd, err := unix.Open(name, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", &mount.HostError{What: fmt.Sprintf("%s is closed to this user: %v, mode %04o", name, err,
			st.Mode&0o7777), Remedy: "chmod 666 " + name + ", as udev does, or run as root"}
	}
	return found, unix.Close(fd)
}

// tryPassthrough tries to register this program as a backing file.
func tryPassthrough() error {
	self, err := os.Open("/proc/self/exe")
	if err != nil {
		return err
	}
	defer self.Close()
	dev, err := fusemount.Open(fusemount.MountOptions{})
	if err != nil {
		return err
	}
	defer dev.Close()
	return passthrough.Try(dev.FD(), int(self.Fd()))
}

func passthroughLine(root bool, err error) Line {
	switch {
	case err == nil:
		return Line{Detail: "the kernel reads and writes files itself"}
	case !root && errors.Is(err, unix.EPERM):
		return Line{Status: Degraded, Detail: "file data passes through the view's process", Remedy: "only a daemon of root has passthrough"}
	case errors.Is(err, passthrough.ErrNone):
		return Line{Status: Degraded, Detail: "file data passes through the view's process: " + err.Error(),
			Remedy: "use Linux 6.9 or newer with CONFIG_FUSE_PASSTHROUGH"}
	}
	return Line{Status: Degraded, Detail: "not tried: " + err.Error(), Remedy: "that of device or fuse"}
}

func landlock(abi int, used bool, err error) Line {
	switch {
	case err != nil:
		return Line{Status: Missing, Detail: err.Error()}
	case !used:
		return Line{Status: Degraded, Detail: fmt.Sprintf("ABI %d forbids renames: views run behind their other layers",
			abi), Remedy: "use Linux 5.19 or newer"}
	}
	return Line{Detail: fmt.Sprintf("ABI %d", abi)}
}

// fanotify reports whether a view can watch its directories.
func fanotify(w *beneath.Watch, err error) Line {
	groups, marks := sysctl("fs.fanotify.max_user_groups"), sysctl("fs.fanotify.max_user_marks")
	if err != nil {
		remedy := "use Linux 5.13 or newer"
		switch {
		case errors.Is(err, unix.EMFILE):
			remedy = fmt.Sprintf("raise the sysctl fs.fanotify.max_user_groups (%s): other programs use all", groups)
		case errors.Is(err, unix.EPERM):
			remedy = "allow fanotify_init in the seccomp profile of the container; --cap-add SYS_ADMIN does"
		}
		return Line{Status: Degraded, Detail: fmt.Sprintf("changes by the host are visible after a second: %v", err), Remedy: remedy}
	}
	_ = w.Close()
	return Line{Detail: fmt.Sprintf(
		"for %s views at a time, %s directories (sysctl fs.fanotify.max_user_groups, max_user_marks)", groups, marks)}
}

// sysctl returns a setting of the kernel, "" if it does not exist.
func sysctl(name string) string {
	text, _ := os.ReadFile("/proc/sys/" + strings.ReplaceAll(name, ".", "/"))
	return strings.TrimSpace(string(text))
}

// sandboxes returns a line for each facility of sandboxes.
func sandboxes(ctx context.Context) (lines []Line) {
	for _, f := range sandbox.Examine(ctx, sandbox.Config{}) {
		l := Line{Detail: f.Found}
		switch {
		case errors.Is(f.Err, context.DeadlineExceeded):
			l = Line{Status: Missing, Detail: fmt.Sprintf("no answer within %v", programs*Patience), Remedy: "see whether the program hangs"}
		case f.Err != nil:
			l = missing(f.Err)
		}
		l.Check = f.Name
		lines = append(lines, l)
	}
	return lines
}

// devices reports the devices of this host that definitions may name.
func devices(found, left []string) Line {
	text := cmp.Or(strings.Join(found, ", "), "no GPU and no KVM is here") + " (agents have what sandbox: {devices} of their definition names)"
	return Line{Detail: strings.Join(append([]string{text}, left...), "; ")}
}

func groups(version string, err error) Line {
	if err != nil {
		l := missing(err)
		l.Status, l.Detail = Degraded, "definitions with limits of memory, cpu or pids are refused: "+l.Detail
		return l
	}
	return Line{Detail: version + ": limits of memory, cpu and pids hold"}
}

// Below these, views and sandboxes work for few clients only.
const (
	minFiles     = 65536
	minProcesses = 1024
)

// limit reports a resource's hard limit: the daemon raises its soft limit of open files to
// it.
func limit(resource int, enough uint64, remedy string) Line {
	var l unix.Rlimit
	if err := unix.Getrlimit(resource, &l); err != nil {
		return Line{Status: Degraded, Detail: err.Error()}
	}
	if l.Max == unix.RLIM_INFINITY {
		return Line{Detail: "unlimited"}
	}
	if l.Max < enough {
		return Line{Status: Degraded, Detail: fmt.Sprintf("at most %d: many clients get EMFILE or EAGAIN", l.Max),
			Remedy: fmt.Sprintf("raise it to %d or more (%s)", enough, remedy)}
	}
	return Line{Detail: fmt.Sprintf("at most %d", l.Max)}
}

// gitIdentity reports the name and address that git uses for commits.
func gitIdentity(ctx context.Context) Line {
	var values []string
	for _, key := range []string{"user.name", "user.email"} {
		cmd := exec.CommandContext(ctx, "git", "config", "--get", key)
		cmd.Dir, cmd.WaitDelay = "/", 5*time.Second // not in a repository
		out, err := cmd.Output()
		if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
			return Line{Status: Degraded, Detail: "git is not installed", Remedy: "apt-get install git"}
		}
		value := strings.TrimSpace(string(out))
		if err != nil || value == "" {
			return Line{Status: Degraded, Detail: "git has no " + key + ": commits of agents fail",
				Remedy: "git config --global " + key + " " + map[string]string{"user.name": "NAME", "user.email": "ADDRESS"}[key]}
		}
		values = append(values, value)
	}
	return Line{Detail: fmt.Sprintf("%s <%s>", values[0], values[1])}
}

// namespacesLine is the line of the namespaces that an embedded daemon has, or the daemon of
// an ordinary user: whether a process was started in them.
func namespacesLine(err error, remedy string) Line {
	l := Line{Check: "namespaces", Part: Views, Status: OK, Detail: "a process starts in its own"}
	if restricted := sysctl("kernel.apparmor_restrict_unprivileged_userns"); restricted == "1" && os.Geteuid() != 0 {
		l.Detail += "; AppArmor restricts user namespaces"
	}
	if err != nil {
		if errno, ok := errors.AsType[syscall.Errno](err); ok {
			err = errno
		}
		l.Status, l.Detail, l.Remedy = Missing, "no process starts in its own: "+err.Error(), remedy
	}
	return l
}
