package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// A started is a command whose start and end are measured.
type started struct {
	name  string
	path  string // the Go programs and sandboxes that it starts one after the other; "": only itself
	words []string
	dir   string
	fails bool   // it ends at once, with an error
	base  string // of the daemon that it asks; "": none

	took   []float64 // ms
	used   []float64 // ms of a processor, of its own process and of those that it waits for
	faults []int64   // pages, likewise
	served float64   // ms of a processor, of the daemon and its sandboxes, in all rounds
}

// starter measures starts as a user.
type starter struct {
	who  *syscall.Credential // nil: root
	env  []string
	all  []*started
	home string
}

func (s *starter) command(ctx context.Context, dir string, words ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, words[0], words[1:]...)
	cmd.Dir, cmd.Env, cmd.SysProcAttr = cmp.Or(dir, "/"), s.env, &syscall.SysProcAttr{Credential: s.who}
	return cmd
}

func (s *starter) add(one started) { s.all = append(s.all, &one) }

// measure runs each command once, another one first in each round.
func (s *starter) measure(round int) error {
	for i := range s.all {
		one := s.all[(i+round)%len(s.all)]
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		cmd := s.command(ctx, one.dir, one.words...)
		before := usedBy(one.base)
		began := time.Now()
		err := cmd.Run()
		took := time.Since(began)
		cancel()
		if _, ended := errors.AsType[*exec.ExitError](err); err != nil && (!one.fails || !ended) {
			out, _ := s.command(context.Background(), one.dir, one.words...).CombinedOutput()
			return fmt.Errorf("%s: %w: %s", strings.Join(one.words, " "), err, out)
		}
		if round > 0 { // the first is for the caches
			one.took = append(one.took, float64(took.Nanoseconds())/1e6)
			one.used = append(one.used, float64((cmd.ProcessState.UserTime()+cmd.ProcessState.SystemTime()).Nanoseconds())/1e6)
			one.faults = append(one.faults, cmd.ProcessState.SysUsage().(*syscall.Rusage).Minflt)
			one.served += usedBy(one.base) - before
		}
	}
	return nil
}

// usedBy returns the processor time of the daemon of a base and of the children that it has waited for, in ms: proc_pid_stat(5). It
// counts ticks of 10 ms, and is right for the sum of many.
func usedBy(base string) (ms float64) {
	if base == "" {
		return 0
	}
	all, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, name := range all {
		words, _ := os.ReadFile(name)
		if !strings.Contains(string(words), base+"\x00") {
			continue
		}
		text, _ := os.ReadFile(filepath.Join(filepath.Dir(name), "stat"))
		_, rest, _ := strings.Cut(string(text), ") ")
		if fields := strings.Fields(rest); len(fields) > 14 {
			for _, ticks := range fields[11:15] {
				n, _ := strconv.Atoi(ticks)
				ms += float64(n) * 10
			}
		}
	}
	return ms
}

// build adds the starts of a build of scopefs, whose programs are in a directory, with a daemon of its own, which end stops.
func (s *starter) build(label, programs, dir string) (end func(), err error) {
	scopefs := filepath.Join(programs, "scopefs")
	base, project := filepath.Join(dir, "base"), filepath.Join(dir, "project")
	for _, made := range []string{filepath.Join(base, "agents.d"), filepath.Join(base, "agents", "a"), project} {
		err = errors.Join(err, os.MkdirAll(made, 0o700))
	}
	err = errors.Join(err, os.WriteFile(filepath.Join(base, "agents.d", "a.md"), []byte("---\nname: a\ndescription: measured\n---\n"), 0o600),
		os.WriteFile(filepath.Join(base, "agents", "a", "f"), []byte("text\n"), 0o600))
	if err == nil && s.who != nil {
		err = filepath.WalkDir(dir, func(name string, _ os.DirEntry, err error) error {
			return errors.Join(err, os.Lchown(name, int(s.who.Uid), int(s.who.Gid)))
		})
	}
	if err != nil {
		return nil, err
	}
	words := []string{scopefs, "daemon", "--base", base}
	if s.who != nil {
		words = append(words, "--user")
	}
	daemon := s.command(context.Background(), "", words...)
	var says strings.Builder
	daemon.Stderr = &says
	if err := daemon.Start(); err != nil {
		return nil, err
	}
	ended := make(chan struct{})
	go func() {
		_ = daemon.Wait()
		close(ended)
	}()
	end = func() {
		_ = daemon.Process.Signal(os.Interrupt)
		<-ended
	}
	run := []string{scopefs, "--base", base, "run", "a", "--", "true"}
	for late := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		select {
		case <-ended:
			return nil, fmt.Errorf("the daemon has ended: %s", says.String())
		default:
		}
		out, err := s.command(context.Background(), "", scopefs, "--base", base, "ps").CombinedOutput()
		if err == nil && strings.Contains(string(out), "mounted") {
			break
		}
		if time.Now().After(late) {
			end()
			return nil, fmt.Errorf("the daemon does not mount: %s", out)
		}
	}
	s.add(started{name: label + "scopefs version", words: []string{scopefs, "version"}})
	all, err := filepath.Glob(filepath.Join(programs, "scopefs*"))
	for _, program := range all {
		if name := filepath.Base(program); name != "scopefs" {
			s.add(started{name: label + name, words: []string{program, "version"}, fails: true})
		}
	}
	s.add(started{name: label + "run -- true, with a daemon", path: "2+1", words: run, base: base})
	s.add(started{name: label + "call read_file, with a daemon", path: "3+1", base: base,
		words: []string{scopefs, "--base", base, "call", "read_file", "path=f", "--agent", "a"}})
	s.add(started{name: label + "run --dir . -- true, without", path: "6+1",
		words: []string{scopefs, "run", "--dir", ".", "--", "true"}, dir: project})
	return end, err
}

// startCompare prints how long starts take: medians of rounds, beside an empty Go program and bubblewrap, in the same rounds. BEFORE is a
// directory of programs of another build; "" is none.
func startCompare(args arguments) error {
	var rounds int
	if err := args.numbers(&rounds); err != nil {
		return err
	}
	dir, programs, before := args[1], args[2], args[3]
	empty := filepath.Join(dir, "empty")
	for i, user := range []string{"root", "an ordinary user"} {
		home := filepath.Join(dir, strconv.Itoa(i))
		if err := os.Mkdir(home, 0o700); err != nil {
			return err
		}
		s := &starter{home: home, env: []string{"PATH=" + os.Getenv("PATH"), "HOME=" + home, "XDG_STATE_HOME=" + filepath.Join(home, "state")}}
		if i > 0 {
			s.who = &syscall.Credential{Uid: 1234, Gid: 1234}
			if err := os.Chown(home, 1234, 1234); err != nil {
				return err
			}
		}
		s.add(started{name: "an empty Go program", words: []string{empty}})
		s.add(started{name: "bwrap --unshare-all --ro-bind / / true", words: []string{"bwrap", "--unshare-all", "--ro-bind", "/", "/", "true"}})
		var ends []func()
		var err error
		for _, build := range [][2]string{{"", programs}, {"before: ", before}} {
			if build[1] == "" || err != nil {
				continue
			}
			var end func()
			if end, err = s.build(build[0], build[1], filepath.Join(home, filepath.Base(build[1]))); err == nil {
				ends = append(ends, end)
			}
		}
		for r := range rounds + 1 {
			if err == nil {
				err = s.measure(r)
			}
		}
		for _, end := range ends {
			end()
		}
		if err != nil {
			return err
		}
		s.print(user)
	}
	return nil
}

// print prints a row for each command.
func (s *starter) print(user string) {
	empty, bwrap := median(s.all[0].took), median(s.all[1].took)
	fmt.Printf("| %s | median, ms | to empty | to bwrap | sum of its path, ms | to the sum | its processor, ms | its page faults | the daemon's and the sandbox's processor, ms |\n|---|---|---|---|---|---|---|---|---|\n", user)
	for _, one := range s.all {
		took, sum := median(one.took), "|  "
		var programs, sandboxes float64
		if n, _ := fmt.Sscanf(one.path, "%f+%f", &programs, &sandboxes); n == 2 {
			of := programs*empty + sandboxes*bwrap
			sum = fmt.Sprintf("%.1f | %.1f×", of, took/of)
		}
		fmt.Printf("| %s | %.1f | %.1f× | %.1f× | %s | %.1f | %d | %.1f |\n", one.name, took, took/empty, took/bwrap, sum,
			median(one.used), median(one.faults), one.served/float64(len(one.took)))
	}
	fmt.Println()
}
