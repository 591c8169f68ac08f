package cli

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	osuser "os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/doctor"
	"github.com/scopefs/scopefs/internal/mount"
	"github.com/scopefs/scopefs/internal/printable"
)

func (a *app) doctorCmd() *cobra.Command {
	var asJSON, inside bool
	c := &cobra.Command{
		Use:   "doctor",
		Short: "try what scopefs needs of this host, and say what is missing",
		Long: `Tries each facility that views and sandboxes need, as this user, and prints a line
for each: ok; degraded, if views and sandboxes work without it; or missing. A line that
is not ok ends with the remedy. For root it also tries as the user of sudo, or as nobody,
whether ordinary users can run agents of their own; what only these lack is degraded. It needs no base and no daemon, takes
at most a few seconds, and leaves nothing behind. It writes to where the state and the log
are: of the base or the project, else below $XDG_STATE_HOME.

--json prints an array of objects with user, check, status, part (views or sandboxes),
detail and remedy.

Exit status: 0 if nothing is missing, 1 if only sandboxes lack something, 3 if no view
can be mounted.`,
		Args: args(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			if inside {
				return a.printJSON(doctor.Examine(c.Context(), mount.Privileged()))
			}
			return a.doctor(c.Context(), asJSON)
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.Flags().BoolVar(&inside, "inside", false, "")
	_ = c.Flags().MarkHidden("inside")
	return c
}

func (a *app) doctor(ctx context.Context, asJSON bool) error {
	var others []doctor.Line
	var failed error
	var side sync.WaitGroup
	if mount.Privileged() {
		side.Go(func() { others, failed = examineAs(ctx, ordinaryUser()) })
	}
	lines, err := examine(ctx)
	side.Wait()
	if err = errors.Join(err, failed); err != nil {
		return err
	}
	lines = append(lines, a.examineState(ctx)...)
	for i := range others { // this user's agents need none of it
		if others[i].Status == doctor.Missing {
			others[i].Status = doctor.Degraded
		}
	}
	lines = append(lines, others...)
	status := exitOf(lines)
	if asJSON {
		err = a.printJSON(lines)
	} else {
		err = a.printDoctor(lines)
	}
	if err == nil && status != 0 {
		err = &exitError{status, nil}
	}
	return err
}

// examineState writes to the directories of the state and of the log.
func (a *app) examineState(ctx context.Context) []doctor.Line {
	var lines []doctor.Line
	p, err := a.stateOf()
	switch {
	case err != nil && (a.dir != "" || a.flags.Base != ""):
		lines = []doctor.Line{{Check: "state", Status: doctor.Missing, Part: doctor.Views, Detail: err.Error()}}
	case err != nil: // an agent of a base needs no HOME
		lines = []doctor.Line{{Check: "state", Status: doctor.Degraded, Part: doctor.Views, Detail: "--dir has no place for its state: " + err.Error()}}
	default:
		lines = []doctor.Line{doctor.Writable(ctx, "state", p.State)}
		if _, err := os.Stat(p.Audit()); err == nil {
			lines = append(lines, doctor.Writable(ctx, "log", p.Audit()))
		}
	}
	for i := range lines {
		lines[i].User = nameOf(os.Geteuid())
	}
	return lines
}

// stateOf returns the directories of the base or the project; without either, where the user's
// would be.
func (a *app) stateOf() (config.Paths, error) {
	p, project, err := a.where()
	switch {
	case err == nil && project != nil:
		p.State = cmp.Or(p.State, filepath.Join(p.Base, "state"))
	case err != nil && a.dir == "" && a.flags.Base == "":
		var home string
		home, err = config.StateHome()
		p.State = cmp.Or(a.flags.State, filepath.Join(home, "scopefs"))
	}
	return p, err
}

// printDoctor prints the lines. Another user can write those of that user's process.
func (a *app) printDoctor(lines []doctor.Line) error {
	w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
	for _, l := range lines {
		words := []string{string(l.Status), l.User, l.Check, l.Detail}
		if l.Remedy != "" {
			words[3] += ": " + l.Remedy
		}
		for i, word := range words {
			words[i] = printable.Text(word)
		}
		fmt.Fprintln(w, strings.Join(words, "\t"))
	}
	return w.Flush()
}

// exitOf returns the exit status for what was found.
func exitOf(lines []doctor.Line) int {
	lacks := func(p doctor.Part) bool {
		return slices.ContainsFunc(lines, func(l doctor.Line) bool { return l.Status == doctor.Missing && l.Part == p })
	}
	switch {
	case lacks(doctor.Views):
		return exitHost
	case lacks(doctor.Sandboxes):
		return exitFailed
	}
	return 0
}

// examine makes the tries as this user, in the namespaces of a daemon that one command
// starts for itself. Where those cannot be made it makes the tries without them.
func examine(ctx context.Context) ([]doctor.Line, error) {
	lines, err := ask(ctx, namespaces(), nil, "--inside")
	first := doctor.Namespaces(err, needsNamespaces())
	if errors.Is(err, errNotStarted) {
		lines, err = doctor.Examine(ctx, mount.Privileged()), nil
	}
	if err != nil {
		return nil, err
	}
	lines = append([]doctor.Line{first}, lines...)
	for i := range lines {
		lines[i].User = nameOf(os.Geteuid())
	}
	return lines, nil
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
func examineAs(ctx context.Context, u *osuser.User) ([]doctor.Line, error) {
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return nil, err
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
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
	return ask(ctx, &syscall.SysProcAttr{Setsid: true, Credential: who}, env, "--json")
}

// errNotStarted is in the error of a process that could not be started.
var errNotStarted = errors.New("not started")

// ask starts this program's doctor in another process, and returns its lines. Nothing of
// the process is left when ask returns.
func ask(ctx context.Context, attr *syscall.SysProcAttr, env []string, flag string) ([]doctor.Line, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*doctor.Longest)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/proc/self/exe", "doctor", flag)
	cmd.SysProcAttr, cmd.Env, cmd.Dir, cmd.WaitDelay = attr, env, "/", 100*time.Millisecond
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(errNotStarted, err)
	}
	// A program that it has tried, and that hangs: the session is the process's group.
	defer func() { _ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }()
	err := cmd.Wait()
	var lines []doctor.Line
	if json.Unmarshal(out.Bytes(), &lines) == nil && len(lines) > 0 {
		return lines, nil
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return nil, fmt.Errorf("doctor as a process of its own: %w %s", err, bytes.TrimSpace(errs.Bytes()))
}
