package kernels

import (
	"fmt"
	"strings"
	"time"
)

// suite is what a guest runs: the tests of a package, or a command.
type suite struct {
	name    string
	pkg     string // relative to the module; "" for a command
	command string
	run     string // regular expressions of testing(5)
	skip    string
	group   string // control group to run in, below the root; "" is that of a login session
	time    time.Duration
}

// suites are those of every kernel: of long packages the tests whose result depends on the kernel, within minutes of an
// emulated processor. What a guest lacks is left out: a Go toolchain, systemd, a network.
var suites = []suite{
	{name: "doctor", command: "/guest/scopefs doctor --json", time: 2 * time.Minute},
	{name: "fusedev", pkg: "fs/fusedev", time: 3 * time.Minute},
	{name: "fs", pkg: "fs", time: 3 * time.Minute},
	{name: "beneath", pkg: "scope/beneath", time: 3 * time.Minute},
	{name: "delegated", pkg: "tools/sandbox", group: "service/daemon", time: 3 * time.Minute,
		run: "^Test(MemoryLimit|PIDLimit|ForkBomb|CPULimit|GroupShared)$"},
	{name: "limits", pkg: "integration/daemon", time: 5 * time.Minute,
		run: "^Test(LimitsHoldForView|WorkerOutOfMemory|ViewOutOfMemory|FloodMemory)$"},
	{name: "sandbox", pkg: "tools/sandbox", time: 8 * time.Minute,
		skip: "^Test(OrdinaryUser|HostileInit|DaemonKilled)$"}, // long: a storm of processes in 20 seconds, 20 sandboxes, tests again
	{name: "view", pkg: "integration/view", time: 8 * time.Minute,
		run: "^Test(Exercise|Coherent|CoherentCorners|CoherentOwn|Posix|Listed|MovedDirectory|Execute.*|OpenUnlinked|FileToolsInView|PrivateView|Exposed)$"},
	{name: "attack", pkg: "integration/attack", time: 8 * time.Minute,
		run: "^TestAttack(ConfinedView|FromWithin|Proc|Links|Names|Policy|PrefixReplaced|MovedOut|ForkStorm|Handles|Ioctl|SetIDBits)$"},
}

// line is the suite in the form that run reads in the guest: name, directory, seconds, command.
func (s suite) line() string {
	dir, command := "/", s.command
	if s.pkg != "" {
		command = fmt.Sprintf("GOMAXPROCS=2 SCOPEFS_TEST_PROGRAM=/guest/scopefs /guest/%s.test -test.v -test.timeout=%s", s.name, s.time)
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
	return strings.Join([]string{s.name, dir, fmt.Sprint(int(s.time.Seconds()) + 5), command}, " ")
}
