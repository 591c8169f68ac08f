package bash

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/printable"
	"github.com/scopefs/scopefs/tools"
)

const (
	defaultPage = 32 << 10        // bytes
	stopGrace   = 2 * time.Second // from the signal to SIGKILL
)

type readArgs struct {
	ID     string `json:"id,omitempty" jsonschema:"a process_id of bash; without it the result lists the session's processes" limit:"len=32"`
	Stream string `json:"stream,omitempty" jsonschema:"default: both, in the order of arrival" limit:"enum=stdout|stderr"`
	Offset *int64 `json:"offset,omitempty" jsonschema:"byte offset in the stream; default: the end of the last read" limit:"min=0,max=9007199254740991"`
	Limit  int    `json:"limit,omitempty" jsonschema:"maximum bytes; default 32768" limit:"min=1,max=262144"`
	WaitMS int    `json:"wait_ms,omitempty" jsonschema:"milliseconds to wait for the first output or the exit" limit:"min=0,max=30000"`
}

// Subject returns the process id as the target.
func (in readArgs) Subject() (path, target string) { return "", in.ID }

type readResult struct {
	ID string `json:"id,omitempty"`
	status
	Output     string `json:"output"`
	Offset     int64  `json:"offset" jsonschema:"byte offset of output: larger than requested if earlier bytes are no longer kept"`
	NextOffset int64  `json:"next_offset"`
	More       bool   `json:"more,omitempty" jsonschema:"more output is available now"`
	Replaced   int    `json:"replaced,omitempty" jsonschema:"bytes of output, NUL or not UTF-8, for which U+FFFD stands"`

	of tools.Begun

	Processes []process `json:"processes,omitempty" jsonschema:"without an id: the background commands of the session, and exited ones whose output is kept"`
}

// Of returns the call of the process: see tools.Of.
func (r readResult) Of() tools.Begun { return r.of }

// process is an entry of a list of processes.
type process struct {
	ID string `json:"id"`
	status
	Command string `json:"command" jsonschema:"the beginning of its first line"`
	Seconds int64  `json:"seconds" jsonschema:"since it started, or that it ran"`
}

// list returns the processes that have an id, oldest first.
func (s *Shell) list() (all []process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, j := range s.jobs {
		if j.id == "" {
			continue
		}
		p := process{ID: j.id, status: j.status(), Command: j.line, Seconds: int64(time.Since(j.began).Seconds())}
		if !p.Running {
			p.Seconds = int64(j.took.Seconds())
		}
		all = append(all, p)
	}
	return all
}

const maxFirstLine = 200 // bytes

func firstLine(command string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(command), "\n")
	return tools.Clip(tools.Clean(line), maxFirstLine)
}

func (s *Shell) read(ctx context.Context, _ tools.Env, in readArgs) (readResult, error) {
	if in.ID == "" {
		return readResult{Processes: s.list()}, nil
	}
	j, err := s.find(in.ID)
	if err != nil {
		return readResult{}, err
	}
	st := map[string]stream{"stdout": stdout, "stderr": stderr, "": both}[in.Stream]
	if in.Limit == 0 {
		in.Limit = defaultPage
	}
	off := j.log.position(st)
	if in.Offset != nil {
		off = *in.Offset
	}
	if err := j.await(ctx, st, off, time.Duration(in.WaitMS)*time.Millisecond); err != nil {
		return readResult{}, err
	}
	r := readResult{ID: in.ID, status: j.status(), of: j.begun} // taken before the output, so that an exited command's page is complete
	p, at := j.log.page(st, off, in.Limit)
	size := j.log.length(st)
	if t := trimEnd(p); len(t) > 0 && (at+int64(len(p)) < size || r.Running) {
		p = t // the next page returns the whole character
	}
	r.Output, r.Replaced = printable.OfBytes(p)
	r.Offset, r.NextOffset = at, at+int64(len(p))
	r.More = r.NextOffset < size
	j.log.setPosition(st, r.NextOffset)
	return r, nil
}

// await waits up to d for output at an offset. It returns early when the job has
// ended and its streams are closed.
func (j *job) await(ctx context.Context, s stream, off int64, d time.Duration) error {
	if d == 0 {
		return nil
	}
	timeout := time.NewTimer(d)
	defer timeout.Stop()
	ended := j.ended
	for {
		change := j.log.change()
		if j.log.length(s) > off || !j.running() && !j.log.isOpen() {
			return nil
		}
		if !j.running() {
			ended = nil
		}
		select {
		case <-change:
		case <-ended:
		case <-timeout.C:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Content returns the output, followed by the status.
func (r readResult) Content() []tools.Content {
	var b strings.Builder
	if r.ID == "" {
		for _, p := range r.Processes {
			how := strings.TrimSuffix(p.status.String(), "\n")
			switch {
			case p.Running:
				how = "running"
			case how == "":
				how = "exit status 0"
			}
			fmt.Fprintf(&b, "%s  %s  %ds  %s\n", p.ID, how, p.Seconds, p.Command)
		}
		if r.Processes == nil {
			b.WriteString("no processes\n")
		}
		return textContent(b.String())
	}
	writeLines(&b, r.Output)
	b.WriteString(printable.Replaced(r.Replaced))
	if r.More {
		fmt.Fprintf(&b, "[more from offset %d]\n", r.NextOffset)
	}
	switch {
	case r.Running:
		fmt.Fprintf(&b, "[%s is running]\n", r.ID)
	case r.status.String() == "":
		fmt.Fprintf(&b, "[%s exited]\n", r.ID)
	}
	b.WriteString(r.status.String())
	return textContent(b.String())
}

type stopArgs struct {
	ID     string `json:"id" limit:"len=32"`
	Signal string `json:"signal,omitempty" jsonschema:"default TERM" limit:"enum=TERM|INT|KILL"`
}

// Subject returns the process id as the target.
func (in stopArgs) Subject() (path, target string) { return "", in.ID }

type stopResult struct {
	ID string `json:"id"`
	status
	of tools.Begun
}

// Of returns the call of the process: see tools.Of.
func (r stopResult) Of() tools.Begun { return r.of }

// stop signals the command's process group, and sends SIGKILL to the command's
// whole session if it has not exited after stopGrace. A child that ignores the
// signal while the command exits lives until the sandbox ends.
func (s *Shell) stop(ctx context.Context, _ tools.Env, in stopArgs) (stopResult, error) {
	j, err := s.find(in.ID)
	if err != nil {
		return stopResult{}, err
	}
	sig := map[string]syscall.Signal{"": unix.SIGTERM, "TERM": unix.SIGTERM, "INT": unix.SIGINT}[in.Signal]
	if sig != 0 && j.running() && j.proc.Signal(sig) == nil {
		grace := time.NewTimer(stopGrace)
		defer grace.Stop()
		select {
		case <-j.ended:
		case <-grace.C:
		case <-ctx.Done():
			return stopResult{}, ctx.Err()
		}
	}
	j.kill()
	<-j.ended
	return stopResult{in.ID, j.status(), j.begun}, nil
}

// Content returns one line with the exit status.
func (r stopResult) Content() []tools.Content {
	how := strings.TrimSuffix(r.status.String(), "\n")
	if how == "" {
		how = "exit status 0"
	}
	return textContent(fmt.Sprintf("%s exited: %s\n", r.ID, how))
}
