package main

import (
	"fmt"
	"strconv"
	"strings"
)

// part is one job of the scripts. It gets as many arguments as usage has
// words, or more when the last word ends in dots.
type part struct {
	usage string
	run   func(args arguments) error
}

// parts are the jobs by name. Times are printed in microseconds.
var parts = map[string]part{
	// What the workloads work on.
	"files":      {"DIRS FILES BYTES DIR", makeGrid},
	"tree":       {"FILES DIRS DIR", makeTree},
	"packages":   {"COUNT DIR", makePackages},
	"typescript": {"MODULES DIR", makeTypescript},
	// What is measured.
	"rewrite": {"COUNT DIR", rewrite},
	"inotify": {"COUNT DIR", inotify},
	"rebuild": {"COUNT FILE COMMAND...", rebuild},
	"mcp":     {"COUNT WARM ROOT PLAIN SCOPEFS BASE NODE SERVER", mcpCompare},
	"stores":  {"COUNT WARM DIR SCOPEFS", storesCompare},
	"context": {"COUNT WARM DIR SCOPEFS SELF", contextCompare},
	"reads":   {"COUNT FILE...", reads},
	"egress":  {"COUNT ROUNDS MIB IDLE DIR SCOPEFS SELF NODE SRT", egressCompare},
	"client":  {"", egressClient},
	"fleet":   {"NODES AGENTS RATE SECONDS APPROVALS CUT DIR SCOPEFS", fleetCompare},
	"natsd":   {"DIR PORT", natsServer},
	"restart": {"ROUNDS AGENTS BUSY DIR SCOPEFS SELF", restartCompare},
	"start":   {"ROUNDS DIR PROGRAMS BEFORE", startCompare},
	"threads": {"THREADS DIRS FILES DIR", threads},
	"single":  {"ROUNDS DIRS FILES DIR...", single},
	// The programs of restart.
	"resident": {"", liveInSandbox},
	"echo":     {"", echo},
	// What is drawn: a table on standard input, the tables of a page.
	"chart":  {"TITLE", chartTable},
	"charts": {"PAGE", chartPage},
}

// main runs the part.
func (p part) main(args []string) error {
	words := strings.Fields(p.usage)
	if len(args) < len(words) || len(args) > len(words) && !strings.HasSuffix(p.usage, "...") {
		return fmt.Errorf("usage: %s", p.usage)
	}
	return p.run(args)
}

// arguments are those of a part.
type arguments []string

// numbers reads the leading arguments, one for each of to.
func (a arguments) numbers(to ...*int) (err error) {
	for i, n := range to {
		if *n, err = strconv.Atoi(a[i]); err != nil {
			return err
		}
		if *n < 0 {
			return fmt.Errorf("%d is negative", *n)
		}
	}
	return nil
}
