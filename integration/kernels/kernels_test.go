// Package kernels runs scopefs on the kernels of distributions, in virtual machines with control groups v2:
// make test-kernels.
package kernels

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const (
	directoryEnv = "SCOPEFS_TEST_KERNELS" // the directory that fetch filled. Without it the test is skipped
	suitesEnv    = "SCOPEFS_TEST_SUITES"  // names of suites, separated by blanks. Without it all run
)

const (
	bootTime  = 20 * time.Minute // from QEMU's start to the guest's first line
	guestTime = 3 * time.Hour    // of all suites of a guest
)

// userMode is the version of a kernel that is a program of the host: User-Mode Linux.
const userMode = "user-mode"

// TestKernels boots each kernel in QEMU, and runs the suites in it. A guest has one processor and 2 GiB of memory.
func TestKernels(t *testing.T) {
	kernels := os.Getenv(directoryEnv)
	if kernels == "" {
		t.Skip("make test-kernels sets " + directoryEnv)
	}
	work := t.TempDir()
	suites := chosen(t, os.Getenv(suitesEnv))
	disk := makeDisk(t, work, filepath.Join(kernels, "apparmor"), suites)
	accelerator := "kvm"
	var table strings.Builder
	fmt.Fprintln(&table, "| kernel | passthrough | landlock | cgroups | passed, failed, skipped | minutes |\n|---|---|---|---|---|---|")
	for _, version := range []string{userMode, "5.15", "6.1", "6.8", "6.12", "newest"} {
		t.Run(version, func(t *testing.T) {
			g := &guest{version: version, kernel: filepath.Join(kernels, version), disk: disk, suites: suites,
				console: filepath.Join(kernels, version+".console"), log: filepath.Join(kernels, version+".log")}
			g.initramfs = makeInitramfs(t, g.kernel, filepath.Join(work, version+".initramfs"))
			begin := time.Now()
			err := g.run(accelerator)
			if g.release == "" && accelerator == "kvm" {
				t.Logf("KVM boots no guest (%v): TCG", err)
				accelerator = "tcg"
				err = g.run(accelerator)
			}
			require.NoError(t, err)
			fmt.Fprintln(&table, g.report(t, time.Since(begin)))
		})
	}
	t.Logf("with %s:\n%s", accelerator, &table)
}

// guest is a virtual machine, and what its suites printed.
type guest struct {
	version                 string // as fetch knows it
	kernel, initramfs, disk string
	suites                  []suite
	console, log            string // files with what the kernel and the suites print
	release                 string // uname -r; "" until the guest has booted
	emulated                bool   // without KVM
	results                 map[string]*result
}

// result is what a suite printed, and how it ended.
type result struct {
	output strings.Builder
	status string // of exit(3), 124 after a timeout; "" if the guest ended first
}

// run boots the guest, in QEMU with the accelerator kvm or tcg, or as a process of the host, and reads what it prints. It returns when the guest is off, or kills it.
func (g *guest) run(accelerator string) error {
	ctx, cancel := context.WithTimeout(context.Background(), guestTime)
	defer cancel()
	g.emulated = accelerator == "tcg" && g.version != userMode
	g.release, g.results = "", map[string]*result{}
	log, err := os.Create(g.log)
	if err != nil {
		return err
	}
	defer log.Close()
	line := "panic=-1 random.trust_cpu=on cgroup_no_v1=all kernel=" + g.version
	processor := map[string][]string{"kvm": {"-cpu", "host"},
		// An instruction takes a nanosecond of the guest's clocks: bounds of time in the guest do not depend on how slow the host is.
		"tcg": {"-cpu", "max", "-icount", "shift=0"}}[accelerator]
	machine := exec.CommandContext(ctx, "qemu-system-x86_64", append(processor, "-accel", accelerator,
		"-smp", "1", "-m", "2048", "-nodefaults", "-display", "none", "-no-reboot",
		"-chardev", "file,id=console,append=on,path="+g.console, "-serial", "chardev:console", "-serial", "stdio",
		"-object", "rng-random,id=rng,filename=/dev/urandom", "-device", "virtio-rng-pci,rng=rng",
		"-drive", "file="+g.disk+",if=virtio,format=raw,snapshot=on",
		"-kernel", filepath.Join(g.kernel, "vmlinuz"), "-initrd", g.initramfs,
		"-append", "console=ttyS0 disk=vda "+line+" "+map[string]string{"tcg": "emulated"}[accelerator])...)
	if g.version == userMode { // it keeps what changes on the disk in a file of its own
		machine = exec.CommandContext(ctx, filepath.Join(g.kernel, "linux"), append(strings.Fields(line), "mem=3G", "disk=ubda", "initrd="+g.initramfs,
			"ubd0="+g.disk+".changes,"+g.disk, "con=null", "con0=null,fd:2", "ssl=null", "ssl1=null,fd:1")...)
	}
	machine.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	console, err := os.Create(g.console)
	if err != nil {
		return err
	}
	defer console.Close()
	machine.Stderr = console
	out, err := machine.StdoutPipe()
	if err == nil {
		err = machine.Start()
	}
	if err != nil {
		return err
	}
	boot := time.AfterFunc(bootTime, cancel)
	defer boot.Stop()
	g.read(io.TeeReader(out, log), boot)
	if err := machine.Wait(); err != nil {
		text, _ := os.ReadFile(g.console)
		return fmt.Errorf("%s: %w: %s", machine.Path, err, text)
	}
	return nil
}

// read reads the lines of run in the guest, and stops the timer at the first one.
func (g *guest) read(out io.Reader, boot *time.Timer) {
	var now *result
	for lines := bufio.NewReader(out); ; {
		line, err := lines.ReadString('\n')
		word := strings.Fields(line)
		switch {
		case len(word) == 3 && word[1] == "booted":
			boot.Stop()
			g.release = word[2]
		case len(word) == 3 && word[0] == "===" && word[1] == "start":
			now = &result{}
			g.results[word[2]] = now
		case len(word) == 5 && word[0] == "===" && word[1] == "end":
			now.status, now = word[3], nil
		case now != nil:
			now.output.WriteString(line)
		}
		if err != nil {
			return
		}
	}
}

// verdict is a line of testing(5) about a test or a subtest.
var verdict = regexp.MustCompile(`(?m)^ *--- (PASS|FAIL|SKIP): (\S+)`)

// report fails the test for each suite that failed, and returns the kernel's row of the table.
func (g *guest) report(t *testing.T, took time.Duration) string {
	count := map[string]int{}
	for _, s := range g.suites {
		r := g.results[s.name]
		if s.kernel != "" && s.kernel != g.version {
			continue
		}
		if r == nil && s.native && g.emulated {
			t.Logf("%s is left out: the processor is emulated", s.name)
			continue
		}
		if r == nil {
			t.Errorf("%s did not start", s.name)
			continue
		}
		out := r.output.String()
		for _, m := range verdict.FindAllStringSubmatch(out, -1) {
			count[m[1]]++
		}
		if r.status != "0" {
			t.Errorf("%s ended with status %q:\n%s", s.name, r.status, out)
		} else if s.pkg == "" {
			t.Logf("%s:\n%s", s.name, out)
		}
	}
	checks := map[string]string{}
	if r := g.results["doctor"]; r != nil {
		checks = doctor(r.output.String())
	}
	return fmt.Sprintf("| %s | %s | %s | %s | %d, %d, %d | %.1f |", g.release, checks["passthrough"], checks["landlock"], checks["cgroups"],
		count["PASS"], count["FAIL"], count["SKIP"], took.Minutes())
}

// doctor returns the details of scopefs doctor --json for root, by check.
func doctor(text string) map[string]string {
	var lines []struct{ User, Check, Status, Detail string }
	_ = json.Unmarshal([]byte(text), &lines)
	found := map[string]string{}
	for _, l := range lines {
		if l.User == "root" {
			found[l.Check] = l.Status + ": " + l.Detail
		}
	}
	return found
}

// command runs a program on the host.
func command(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s %s: %s", name, args, out)
	return string(out)
}
