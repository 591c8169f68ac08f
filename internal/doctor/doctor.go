// Package doctor tries each facility of the host that scopefs needs, and reports what it
// found with the remedy. It needs no base and no daemon, and leaves nothing behind.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/scopefs/scopefs/internal/mount"
	"github.com/scopefs/scopefs/tools/sandbox"
)

// Status is the result of a try.
type Status string

// The results. Without what is Degraded, views and sandboxes work; the detail says what
// does not.
const (
	OK       Status = "ok"
	Degraded Status = "degraded"
	Missing  Status = "missing"
)

// Part is the part of scopefs that a facility is for.
type Part string

// The parts. Sandboxes also need what views need.
const (
	Views     Part = "views"
	Sandboxes Part = "sandboxes"
)

// Line is what was found of one facility.
type Line struct {
	User   string `json:"user"`  // who tried
	Check  string `json:"check"` // the facility
	Status Status `json:"status"`
	Part   Part   `json:"part"`
	Detail string `json:"detail"`
	Remedy string `json:"remedy,omitempty"`
}

// Patience bounds each try, each program that a try starts, and the end of a try that was
// cancelled.
const Patience = 2 * time.Second

// longest bounds Examine.
const longest = (programs + 1) * Patience

const programs = 3 // that the try of sandboxes starts, one after the other

// try is one facility and how it is tried. run returns one line or more; a line without
// Check, Status or Part has those of the try, and the status OK.
type try struct {
	check string
	part  Part
	run   func(ctx context.Context) []Line
}

// Examine makes all tries in this process, side by side, and returns their lines in a
// fixed order. A try that gives no answer in time is Missing. root says whether the
// process is root of the host, and not of an ordinary user's namespace.
func Examine(ctx context.Context, root bool) []Line {
	tries := tries(root)
	found := make([][]Line, len(tries))
	var all sync.WaitGroup
	for i, t := range tries {
		all.Go(func() { found[i] = t.within(ctx) })
	}
	all.Wait()
	return slices.Concat(found...)
}

// within makes the try, for a bounded time. A system call that blocks keeps its thread.
func (t try) within(ctx context.Context) []Line {
	limit := Patience
	if t.part == Sandboxes {
		limit *= programs
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	done := make(chan []Line, 1)
	go func() { done <- t.run(ctx) }()
	var lines []Line
	select {
	case lines = <-done:
	case <-ctx.Done():
		// run may have seen the end of ctx, and returns what it was about.
		select {
		case lines = <-done:
		case <-time.After(Patience):
			lines = []Line{{Status: Missing, Detail: fmt.Sprintf("no answer within %v", limit), Remedy: "see the kernel's log (dmesg)"}}
		}
	}
	for i := range lines {
		l := &lines[i]
		if l.Check == "" {
			l.Check = t.check
		}
		if l.Status == "" {
			l.Status = OK
		}
		l.Part = t.part
	}
	return lines
}

// one makes a try of a function that returns what it found, or an error that is Missing.
func one(check string, part Part, run func() (string, error)) try {
	return try{check, part, func(context.Context) []Line {
		found, err := run()
		if err != nil {
			return []Line{missing(err)}
		}
		return []Line{{Detail: found}}
	}}
}

// missing is the line of an error, with the error's own remedy.
func missing(err error) Line {
	if host, ok := errors.AsType[*mount.HostError](err); ok {
		return Line{Status: Missing, Detail: host.What, Remedy: host.Remedy}
	}
	if part, ok := errors.AsType[*sandbox.MissingError](err); ok {
		return Line{Status: Missing, Detail: part.What, Remedy: part.Get}
	}
	return Line{Status: Missing, Detail: err.Error()}
}
