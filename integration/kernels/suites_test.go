package kernels

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// suite is what a guest runs: the tests of a package, or a command.
type suite struct {
	name    string
	pkg     string // relative to the module; "" for a command
	command string
	run     string // regular expressions of testing(5)
	skip    string
	native  bool   // with KVM or as User-Mode Linux: an emulated processor does not hold its bounds of time
	env     string // further variables of the tests
	kernel  string // on this one alone; "" is each
	group   string // control group to run in, below the root; "" is that of a login session
	time    time.Duration
}

// suites are those of every kernel. What a guest lacks is left out: a Go toolchain, systemd, a network.
var suites = []suite{
	{name: "doctor", command: "/guest/scopefs doctor --json", time: 2 * time.Minute},
	{name: "fusedev", pkg: "fs/fusedev", time: 3 * time.Minute},
	{name: "fs", pkg: "fs", time: 3 * time.Minute},
	{name: "beneath", pkg: "scope/beneath", time: 3 * time.Minute},
	{name: "plan", pkg: "fs/plan", time: 3 * time.Minute},
	{name: "history", pkg: "fs/history", skip: "^Test(Model|Blocks|UndoInterrupted)", time: 5 * time.Minute},
	{name: "layers", pkg: "internal/view", run: "^Test(Former|Forged)$", time: 3 * time.Minute},
	{name: "limits", pkg: "tools/sandbox", run: limits, time: 3 * time.Minute},
	{name: "delegated", pkg: "tools/sandbox", run: limits, group: "service/daemon", time: 3 * time.Minute},
	{name: "confined", pkg: "tools/sandbox", run: "^Test(Confined|Syscalls|EnvironmentAndDirectory|Home|Expose)$", time: 3 * time.Minute},
	{name: "use", pkg: "integration/view", run: "^Test(CoherentOwn|ExecuteUnreadable|SearchClosed|OpenUnlinked)$", time: 3 * time.Minute},
	{name: "exercise", pkg: "integration/view", run: "^TestExercise$", time: 3 * time.Minute}, // the longest: 28,000 steps
	{name: "sandbox", pkg: "tools/sandbox", skip: foreign, native: true, time: 10 * time.Minute},
	{name: "foreign", pkg: "tools/sandbox", run: foreign, kernel: "newest", time: time.Minute},
	{name: "view", pkg: "integration/view", skip: "^TestLibrary$", native: true, time: 10 * time.Minute},
	{name: "attack", pkg: "integration/attack", skip: "^TestAttack(FromWithin|BesideHistory|Unconfined)$", native: true, // these compile
		time: 10 * time.Minute},
	{name: "outofmemory", pkg: "integration/daemon", native: true, time: 5 * time.Minute,
		run: "^Test(LimitsHoldForView|WorkerOutOfMemory|ViewOutOfMemory|FloodMemory)$"},
	{name: "apparmor", command: "/guest/apparmor", kernel: "6.8", time: 10 * time.Minute},
}

// chosen returns the suites with these names, separated by blanks, or all if there are none.
func chosen(t *testing.T, names string) []suite {
	if names == "" {
		return suites
	}
	var found []suite
	for _, name := range strings.Fields(names) {
		i := slices.IndexFunc(suites, func(s suite) bool { return s.name == name })
		require.GreaterOrEqual(t, i, 0, "%s: no suite %q", suitesEnv, name)
		found = append(found, suites[i])
	}
	return found
}

// User-Mode Linux has one architecture.
const foreign = "^TestForeignArchitecture$"

const limits = "^Test(MemoryLimit|PIDLimit|ForkBomb|CPULimit)$"

// program is the path of the package's tests in the guest.
func (s suite) program() string { return "/guest/" + strings.ReplaceAll(s.pkg, "/", "-") + ".test" }

// line is the suite in the form that run reads in the guest: name; native, any or a kernel; directory, seconds, command.
func (s suite) line() string {
	dir, command := "/", s.command
	if s.pkg != "" {
		command = fmt.Sprintf("GOMAXPROCS=2 SCOPEFS_TEST_PROGRAM=/guest/scopefs %s %s -test.v -test.timeout=%s", s.env, s.program(), s.time)
		for _, flag := range [][2]string{{"run", s.run}, {"skip", s.skip}} {
			if flag[1] != "" {
				command += fmt.Sprintf(" -test.%s='%s'", flag[0], flag[1])
			}
		}
		dir = "/src/" + s.pkg
	}
	if s.group != "" {
		group := "/sys/fs/cgroup/" + s.group
		command = fmt.Sprintf("mkdir -p %s && echo $$ >%[1]s/cgroup.procs && %s", group, command)
	}
	where := "any"
	switch {
	case s.kernel != "":
		where = s.kernel
	case s.native:
		where = "native"
	}
	return strings.Join([]string{s.name, where, dir, fmt.Sprint(int(s.time.Seconds()) + 5), command}, " ")
}
