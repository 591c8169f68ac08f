package doctor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	osuser "os/user"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/mount"
)

// Run makes the tries as this user, in the namespaces of a daemon that one command starts for itself. For root it makes them also
// as an ordinary user, whom root's agents do not need, so that nothing there is Missing; and with the capabilities of the shipped
// unit, where that is installed. remedy is for namespaces that cannot be made. here returns further lines of this user.
func Run(ctx context.Context, namespaces *syscall.SysProcAttr, remedy string, here func(context.Context) []Line) ([]Line, error) {
	var others, service []Line
	var failed error
	var side sync.WaitGroup
	if mount.Privileged() {
		side.Go(func() { others, failed = examineAs(ctx, ordinaryUser()) })
		side.Go(func() { service = examineUnit(ctx) })
	}
	lines, err := examine(ctx, namespaces, remedy)
	side.Wait()
	if err = errors.Join(err, failed); err != nil {
		return nil, err
	}
	service = unitLines(service, lines)
	lines = append(lines, here(ctx)...)
	for i := range lines {
		lines[i].User = nameOf(os.Geteuid())
	}
	for i := range others {
		if others[i].Status == Missing {
			others[i].Status = Degraded
		}
	}
	return slices.Concat(lines, service, others), nil
}

// Lacks reports whether something is Missing that a part needs.
func Lacks(lines []Line, part Part) bool {
	return slices.ContainsFunc(lines, func(l Line) bool { return l.Status == Missing && l.Part == part })
}

// examine makes the tries as this user, in the namespaces of a daemon that one command
// starts for itself. Where those cannot be made it makes the tries without them.
func examine(ctx context.Context, namespaces *syscall.SysProcAttr, remedy string) ([]Line, error) {
	lines, err := ask(ctx, namespaces, nil, "/proc/self/exe", "doctor", "--inside")
	first := namespacesLine(err, remedy)
	if errors.Is(err, errNotStarted) {
		lines, err = Examine(ctx, mount.Privileged()), nil
	}
	if err != nil {
		return nil, err
	}
	return append([]Line{first}, lines...), nil
}

// ordinaryUser returns the user who ran sudo, or nobody.
func ordinaryUser() *osuser.User {
	const nobody = "65534"
	id := os.Getenv("SUDO_UID")
	if u, err := osuser.LookupId(id); err == nil && u.Uid != "0" {
		return u
	}
	return &osuser.User{Uid: nobody, Gid: nobody, Username: "nobody", HomeDir: "/"}
}

func nameOf(uid int) string {
	if u, err := osuser.LookupId(strconv.Itoa(uid)); err == nil {
		return u.Username
	}
	return strconv.Itoa(uid)
}

// examineAs returns the lines of scopefs doctor as another user.
func examineAs(ctx context.Context, u *osuser.User) ([]Line, error) {
	uid, wrong := strconv.ParseUint(u.Uid, 10, 32)
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err = errors.Join(wrong, err); err != nil {
		return nil, err
	}
	who := &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	ids, _ := u.GroupIds() // none: that of the user alone
	for _, id := range ids {
		if n, err := strconv.ParseUint(id, 10, 32); err == nil {
			who.Groups = append(who.Groups, uint32(n))
		}
	}
	env := []string{"PATH=" + os.Getenv("PATH"), "HOME=" + u.HomeDir}
	return ask(ctx, &syscall.SysProcAttr{Setsid: true, Credential: who}, env, "/proc/self/exe", "doctor", "--json")
}

// unit is the shipped unit of a daemon of root.
const unit = "scopefs.service"

// examineUnit makes the tries with the capabilities that the unit has with its drop-ins: systemd knows them. It returns no lines
// where the unit is not installed, or systemd does not run.
func examineUnit(ctx context.Context) []Line {
	known, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	out, err := exec.CommandContext(known, "systemctl", "show", "--property=LoadState,CapabilityBoundingSet", unit).Output()
	if err != nil || !bytes.Contains(out, []byte("LoadState=loaded\n")) {
		return nil
	}
	_, names, _ := bytes.Cut(out, []byte("CapabilityBoundingSet="))
	names, _, _ = bytes.Cut(names, []byte("\n"))
	set := "-all"
	for _, name := range bytes.Fields(names) {
		set += ",+" + string(bytes.TrimPrefix(name, []byte("cap_")))
	}
	var lines []Line
	self, err := os.Executable()
	if err == nil {
		lines, err = ask(ctx, &syscall.SysProcAttr{Setsid: true}, nil, "setpriv", "--bounding-set", set, "--inh-caps",
			"-all", "--no-new-privs", "--", self, "doctor", "--inside")
	}
	if err != nil {
		return []Line{{Check: "capabilities", Status: Degraded, Part: Views, Detail: "not tried with those of the unit: " + err.Error()}}
	}
	return lines
}

// unitLines returns the lines of the unit that are not those of this process, or one that says that there are none.
func unitLines(service, lines []Line) (all []Line) {
	for _, l := range service {
		l.User = unit
		if !slices.ContainsFunc(lines, func(own Line) bool { return own.Check == l.Check && own.Status == l.Status }) {
			all = append(all, l)
		}
	}
	if len(service) > 0 && len(all) == 0 {
		return []Line{{User: unit, Check: "capabilities", Status: OK, Part: Views, Detail: "with those of the unit a daemon has what root has"}}
	}
	return all
}

// errNotStarted is in the error of a process that could not be started.
var errNotStarted = errors.New("not started")

// ask starts this program's doctor in another process, by argv, and returns its lines. Nothing of
// the process is left when ask returns.
func ask(ctx context.Context, attr *syscall.SysProcAttr, env []string, argv ...string) ([]Line, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*longest)
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.SysProcAttr, cmd.Env, cmd.Dir, cmd.WaitDelay = attr, env, "/", 5*time.Second
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(errNotStarted, err)
	}
	// A program that it has tried, and that hangs: the session is the process's group.
	defer func() { _ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }()
	err := cmd.Wait()
	var lines []Line
	if json.Unmarshal(out.Bytes(), &lines) == nil && len(lines) > 0 {
		return lines, nil
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return nil, fmt.Errorf("doctor as a process of its own: %w %s", err, bytes.TrimSpace(errs.Bytes()))
}
