package bash

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/scopefs/scopefs/internal/printable"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/sandbox"
)

const (
	defaultTimeout = 2 * time.Minute
	maxShown       = 64 << 10 // bytes per stream in the result of bash
)

type runArgs struct {
	Command    string `json:"command" jsonschema:"what bash -c runs" limit:"len=131072"`
	Cwd        string `json:"cwd,omitempty" jsonschema:"working directory, relative to the workspace or absolute; default: its root"`
	TimeoutMS  int    `json:"timeout_ms,omitempty" jsonschema:"milliseconds until the command is killed; default 120000, none for a background command" limit:"min=1,max=600000"`
	Stdin      string `json:"stdin,omitempty" jsonschema:"its standard input" limit:"len=1048576"`
	Background bool   `json:"background,omitempty" jsonschema:"return at once, with a process_id for process_read and process_stop; the command lives until the session ends"`
}

// Shell returns the command. It is alone without a working directory and standard
// input: what a program does depends on both.
func (in runArgs) Shell() (command string, alone bool) {
	return in.Command, in.Cwd == "" && in.Stdin == ""
}

// Subject returns the working directory and the command.
func (in runArgs) Subject() (path, target string) { return relative(in.Cwd), in.Command }

func (in runArgs) timeout() time.Duration {
	if in.TimeoutMS == 0 && !in.Background {
		return defaultTimeout
	}
	return time.Duration(in.TimeoutMS) * time.Millisecond
}

type runResult struct {
	status
	Stdout     string `json:"stdout"`
	Stderr     string `json:"stderr"`
	Truncated  bool   `json:"truncated,omitempty" jsonschema:"the middle of stdout or stderr is left out"`
	Replaced   int    `json:"replaced,omitempty" jsonschema:"bytes of stdout and stderr, NUL or not UTF-8, for which U+FFFD stands"`
	DurationMS int64  `json:"duration_ms"`
	ProcessID  string `json:"process_id,omitempty" jsonschema:"for process_read: set if the command runs in the background or has more output"`
}

func (s *Shell) run(ctx context.Context, env tools.Env, in runArgs) (runResult, error) {
	if env.Resumed {
		j, detach, err := s.resume(ctx, env)
		if err != nil {
			return runResult{}, err
		}
		return s.result(ctx, j, detach)
	}
	exec := func(ctx context.Context) (*sandbox.Process, error) { return s.exec(ctx, env, in) }
	j, detach, err := s.start(ctx, env, command{firstLine(in.Command), in.Stdin, in.Background, in.timeout(), exec})
	if err != nil {
		return runResult{}, err
	}
	if in.Background {
		id := s.publish(j)
		detach()
		return runResult{status: status{Running: true}, ProcessID: id}, nil
	}
	return s.result(ctx, j, detach)
}

// await waits for a command. After an error there is nothing of it any more, or it is left to the next daemon: tools.ErrLeft.
func (s *Shell) await(ctx context.Context, j *job, detach func() bool) error {
	select {
	case <-j.ended:
	case <-ctx.Done():
		if s.leaves(j) {
			return tools.ErrLeft
		}
		<-j.ended
	}
	detach()
	if errors.Is(j.err, sandbox.ErrLeft) {
		return tools.ErrLeft
	}
	err := cmp.Or(ctx.Err(), j.err)
	if err != nil {
		s.drop(j)
	}
	return err
}

// result waits for a command, and returns its result.
func (s *Shell) result(ctx context.Context, j *job, detach func() bool) (runResult, error) {
	if err := s.await(ctx, j, detach); err != nil {
		return runResult{}, execError(err, "")
	}
	r := runResult{status: j.status(), DurationMS: j.took.Milliseconds()}
	for from, to := range map[stream]*string{stdout: &r.Stdout, stderr: &r.Stderr} {
		text, truncated, replaced := j.log.clip(from, maxShown)
		*to, r.Truncated, r.Replaced = text, r.Truncated || truncated, r.Replaced+replaced
	}
	if r.Truncated || j.log.isOpen() {
		r.ProcessID = s.publish(j)
	} else {
		s.drop(j)
	}
	return r, nil
}

// clip returns the text of a stream. Beyond limit bytes, or if not all are kept, it returns the
// beginning and the end, half of limit each at most. replaced is of [printable.OfBytes].
func (l *log) clip(s stream, limit int) (shown string, truncated bool, replaced int) {
	size := l.length(s)
	if all, _ := l.page(s, 0, limit); int64(len(all)) >= size {
		shown, replaced = printable.OfBytes(all)
		return shown, false, replaced
	}
	half := min(size, int64(limit)) / 2
	head, _ := l.page(s, 0, int(half))
	tail, from := l.page(s, size-half, int(half))
	head, start := trimEnd(head), trimStart(tail)
	first, n1 := printable.OfBytes(head)
	last, n2 := printable.OfBytes(start)
	left := from + int64(len(tail)-len(start)) - int64(len(head))
	return fmt.Sprintf("%s\n[%d bytes left out]\n%s", first, left, last), true, n1 + n2
}

// Content returns stdout, stderr and the exit status as text.
func (r runResult) Content() []tools.Content {
	var b strings.Builder
	for _, text := range []string{r.Stdout, r.Stderr} {
		writeLines(&b, text)
	}
	b.WriteString(printable.Replaced(r.Replaced))
	switch {
	case r.Running:
		fmt.Fprintf(&b, "running in the background as %s, until the session ends: process_read, process_stop\n", r.ProcessID)
	case r.ProcessID != "" && r.Truncated:
		fmt.Fprintf(&b, "[for the whole output: process_read %s]\n", r.ProcessID)
	case r.ProcessID != "":
		fmt.Fprintf(&b, "[background processes may write more: process_read %s]\n", r.ProcessID)
	}
	b.WriteString(r.status.String())
	return textContent(b.String())
}

// String returns a line about an unsuccessful exit, or "".
func (s status) String() string {
	if s.ExitCode == nil || *s.ExitCode == 0 && !s.OutOfMemory {
		return ""
	}
	text := fmt.Sprintf("exit status %d", *s.ExitCode)
	if s.Signal != "" {
		text += " (" + s.Signal + ")"
	}
	if s.TimedOut {
		text += ": timed out"
	}
	if s.OutOfMemory {
		text += ": out of memory"
	}
	return text + "\n"
}
